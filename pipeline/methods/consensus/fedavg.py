"""FedAvg: local steps, then the mean.

Source: McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data" (2017);
specification a_fedpd, section 3.1.

| symbol | here | shape |
|---|---|---|
| theta | `w` | [d] |
| theta_i | `trained.models` | [n, d] |
| eta_t, K, eta_g | `context.eta`, `hyper.local_steps`, `hyper.eta_g` | scalars |

    theta_i <- K steps  x <- x - eta_t ( grad f_i(x; B) + wd x )  from theta        active i, in parallel
    theta   <- theta + eta_g mean_i (theta_i - theta)                              `primal.move`

With K > 1 and clients that differ its fixed point is not the optimum (property 12). Per active client: d down, d up,
K gradients.
"""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.methods.base import State, Step
from pipeline.methods.consensus.common import local_training, primal
from pipeline.methods.consensus.common.local_context import LocalContext
from pipeline.methods.consensus.common.primal import WeightedOptions


@dataclass(frozen=True)
class FedAvg(WeightedOptions):
    """Federated averaging."""


def step(state: State, context: LocalContext) -> Step:
    """One round."""
    active = context.cohort()
    trained = local_training.train(context, state.variables["w"], active)
    return primal.move(state, context, active, trained)


FEDAVG = primal.method(name="fedavg", summary="local steps, then the mean of the models", options=FedAvg, step=step)
