"""SCAFFOLD: control variates take the clients' differences out of their local steps.

Source: Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning" (2020), option II;
specification a_fedpd, section 3.3.

| symbol | here | shape |
|---|---|---|
| theta | `w` | [d] |
| c, the mean of all c_i | `memory["control"]` | [d] |
| c_i, tends to grad f_i | `memory["controls"]` | [N, d] |

    theta_i <- K steps  x <- x - eta_t ( grad f_i(x; B) + c - c_i + wd x )  from theta            active i
    c_i'    <- c_i - c + (theta - theta_i) / (K eta_t)                       the old c; K_i where clients differ
    c       <- c + (1/N) sum_{i active} (c_i' - c_i)                         all N clients in the denominator
    theta   <- theta + eta_g mean_i (theta_i - theta)

Absent c_i stay. At a fixed point c_i = grad f_i(theta) and c = 0: unlike FedAvg's it is the optimum, at any
participation. Per active client: 2d down (theta, c), 2d up (the changes of theta_i and c_i), K gradients; the client
keeps c_i.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from pipeline.errors import not_allowed
from pipeline.methods.base import State, Step
from pipeline.methods.consensus.common import local_training, primal
from pipeline.methods.consensus.common.local_context import CONSENSUS, LocalContext
from pipeline.methods.consensus.common.primal import PrimalOptions


@dataclass(frozen=True)
class Scaffold(PrimalOptions):
    """Control variates."""


def init(context: LocalContext) -> State:
    """c = c_i = 0."""
    state = primal.start(context)
    w = state.variables["w"]
    state.memory["control"] = torch.zeros_like(w)
    state.memory["controls"] = w.new_zeros(context.problem.clients, len(w))
    return state


def step(state: State, context: LocalContext) -> Step:
    """One round."""
    theta, c, controls = state.variables["w"], state.memory["control"], state.memory["controls"]
    active = context.cohort()
    correction = c - controls[active]
    trained = local_training.train(context, theta, active, local_training.Rule(lin=correction))
    change = (theta - trained.models) / (context.eta * trained.steps)[:, None] - c  # c_i' - c_i
    controls[active] += change
    c += context.total(change.sum(0)) / context.problem.clients
    return primal.move(state, context, active, trained, down=2, up=2, server=2, client=1)


def check(name: str, options: Scaffold, params: Any, problem: str) -> None:
    """As for all, and the plain mean of the clients' losses."""
    primal.check(name, options, params, problem)
    if params.federation.aggregation != "uniform":
        raise not_allowed(
            "federation.aggregation",
            params.federation.aggregation,
            f"uniform for {name}, whose control variates belong to the plain mean of the clients' losses",
            "set it to uniform, or choose fedavg",
        )


SCAFFOLD = primal.method(
    name="scaffold",
    summary="control variates against client drift",
    options=Scaffold,
    family=CONSENSUS,
    init=init,
    step=step,
    rows="controls",
    check=check,
)
