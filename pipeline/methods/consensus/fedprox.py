"""FedProx: averaging, with every client held near the model it received.

Source: Li et al., "Federated Optimization in Heterogeneous Networks" (2020); specification a_fedpd, section 3.12.

| paper | here | shape |
|---|---|---|
| w | `w` | [d] |
| mu | `hyper.rho` | scalar |

    theta_i <- K steps  x <- x - eta_t ( grad f_i(x; B) + rho (x - theta) + wd x )  from theta
    theta   <- theta + eta_g mean_i (theta_i - theta)

rho = 0 is FedAvg. Per active client: d down, d up, K gradients.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pipeline.config.spec import param
from pipeline.methods.base import State, Step
from pipeline.methods.consensus.common import local_training, primal
from pipeline.methods.consensus.common.local_context import LocalContext
from pipeline.methods.consensus.common.primal import WeightedOptions


@dataclass(frozen=True)
class FedProx(WeightedOptions):
    """Averaging with a proximal term."""

    rho: float = param(0.1, "weight of the proximal term", ge=0, symbol="mu")


def step(state: State, context: LocalContext) -> Step:
    """One round."""
    active = context.cohort()
    trained = local_training.train(context, state.variables["w"], active, local_training.Rule(prox=context.hyper.rho))
    return primal.move(state, context, active, trained, rho=context.hyper.rho)


def check(name: str, options: FedProx, params: Any, problem: str) -> None:
    """As for all; but a single local step starts where the proximal term is 0."""
    single = options.local_steps == 1 and not options.local_epochs
    primal.check(name, options, params, problem, rho=0.0 if single else options.rho)


FEDPROX = primal.method(
    name="fedprox", summary="averaging with a proximal term", options=FedProx, step=step, check=check
)
