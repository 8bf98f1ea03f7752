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

from pipeline.methods.base import State, Step
from pipeline.methods.consensus.common import local_training, primal
from pipeline.methods.consensus.common.local_context import LocalContext


def step(state: State, context: LocalContext) -> Step:
    """One round."""
    active = context.cohort()
    trained = local_training.train(context, state.variables["w"], active, local_training.Rule(prox=context.hyper.rho))
    return primal.move(state, context, active, trained, rho=context.hyper.rho)


FEDPROX = primal.method(primal.start, step)
