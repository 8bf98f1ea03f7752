"""FedSpeed: FedDyn with sharpness-aware local steps.

Source: Sun et al., "FedSpeed" (2023), in the form of the A-FedPD authors' simulator; specification a_fedpd, section 3.8
and item A6; symbols in `dual`.

| symbol | here |
|---|---|
| r, eps_sam | `hyper.radius`, `hyper.sam_eps` |
| a, of the original | `hyper.sam_share` |

| variant | local gradient | server |
|---|---|---|
| simulator | grad f_i(x + r g / (||g|| + eps_sam)),  g = grad f_i(x) | `feddyn` |
| original | (1 - a) g + a grad f_i(x + r g / (||g|| + eps_sam)) | `fedadmm`: mean_active (theta_i + lambda_i/rho) |

r = 0 is FedDyn (simulator). Per active client: d down, d up, 2 K gradients; the client keeps lambda_i.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pipeline.config.spec import param
from pipeline.methods.base import State, Step
from pipeline.methods.consensus import fedadmm, feddyn
from pipeline.methods.consensus.common import dual
from pipeline.methods.consensus.common.dual import DualOptions
from pipeline.methods.consensus.common.local_context import LocalContext
from pipeline.methods.consensus.common.local_training import sam_epsilon, sam_radius


@dataclass(frozen=True)
class FedSpeed(DualOptions):
    """FedDyn with sharpness-aware local steps."""

    radius: float = sam_radius(0.1)
    sam_eps: float = sam_epsilon()
    variant: Literal["simulator", "original"] = param(
        "simulator",
        "simulator = FedDyn's server and purely sharpness-aware gradients; original = FedADMM's server and a mixture",
    )
    sam_share: float = param(
        0.5, "of `variant: original`: share of the sharpness-aware gradient in the mixture", ge=0, le=1, symbol="alpha"
    )


def step(state: State, context: LocalContext) -> Step:
    """One round."""
    hyper = context.hyper
    sam = {"radius": hyper.radius, "sam_eps": hyper.sam_eps}
    if hyper.variant == "original":
        return fedadmm.step(state, context, **sam, sam_share=hyper.sam_share)
    return feddyn.step(state, context, **sam)


FEDSPEED = dual.method(name="fedspeed", summary="feddyn with sharpness-aware local steps", options=FedSpeed, step=step)
