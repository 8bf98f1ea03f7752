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

from pipeline.algorithms.base import State, Step
from pipeline.algorithms.consensus import local, primal
from pipeline.algorithms.consensus.turn import LocalTurn


def step(state: State, turn: LocalTurn) -> Step:
    """One round."""
    active = turn.cohort()
    trained = local.train(turn, state.variables["w"], active, local.Rule(prox=turn.hyper.rho))
    return primal.move(state, turn, active, trained, rho=turn.hyper.rho)


FEDPROX = primal.method(primal.start, step)
