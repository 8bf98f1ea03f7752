"""FedSAM: averaging of sharpness-aware local steps.

Source: Qu et al., "Generalized Federated Learning via Sharpness Aware Minimization" (2022); specification a_fedpd,
section 3.4.

| symbol | here | shape |
|---|---|---|
| theta | `w` | [d] |
| r, eps_sam | `hyper.radius`, `hyper.sam_eps` | scalars |

    theta_i <- K steps  x <- x - eta_t ( grad f_i(x + r g / (||g|| + eps_sam); B) + wd x ),  g = grad f_i(x; B)
    theta   <- theta + eta_g mean_i (theta_i - theta)

r = 0 is FedAvg. Per active client: d down, d up, 2 K gradients.
"""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.methods.base import State, Step
from pipeline.methods.consensus.common import local_training, primal
from pipeline.methods.consensus.common.local_context import LocalContext
from pipeline.methods.consensus.common.local_training import sam_epsilon, sam_radius
from pipeline.methods.consensus.common.primal import WeightedOptions


@dataclass(frozen=True)
class FedSam(WeightedOptions):
    """Averaging of sharpness-aware local steps."""

    radius: float = sam_radius(0.05)
    sam_eps: float = sam_epsilon()


def step(state: State, context: LocalContext) -> Step:
    """One round."""
    hyper, active = context.hyper, context.cohort()
    rule = local_training.Rule(radius=hyper.radius, sam_eps=hyper.sam_eps)
    return primal.move(state, context, active, local_training.train(context, state.variables["w"], active, rule))


FEDSAM = primal.method(name="fedsam", summary="averaging of sharpness-aware local steps", options=FedSam, step=step)
