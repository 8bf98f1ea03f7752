"""FedCM: the last round's mean direction as momentum in every local step.

Source: Xu et al., "FedCM: Federated Learning with Client-level Momentum" (2021); specification a_fedpd, section 3.2.

| symbol | here | shape |
|---|---|---|
| theta | `w` | [d] |
| m, gradient-like, 0 at the start | `memory["momentum"]` | [d] |
| alpha | `hyper.alpha` | scalar |

    theta_i <- K steps  x <- x - eta_t ( alpha grad f_i(x; B) + (1 - alpha) m + wd x )  from theta
    m       <- mean_i (theta - theta_i) / (eta_t K)          eta_t of this round; K_i of each client where they differ
    theta   <- theta + eta_g mean_i (theta_i - theta)

Weight decay enters m too and comes back in every step, so at rest it acts 1/alpha-fold: m = grad f + (wd / alpha) x.
In a single trial with the family's 0.001 LeNet-5 did not leave the plateau it starts on (MNIST, lead partition, 120
rounds); hence a default of 0.0001 here.

alpha = 1 is FedAvg. In the first round, where m = 0, steps are alpha times as long. Per active client: 2d down (theta
and m), d up, K gradients.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from pipeline.config.spec import param
from pipeline.methods.base import State, Step
from pipeline.methods.consensus.common import local_training, primal
from pipeline.methods.consensus.common.local_context import LocalContext
from pipeline.methods.consensus.common.primal import WeightedOptions


@dataclass(frozen=True)
class FedCm(WeightedOptions):
    """Client-level momentum."""

    weight_decay: float = param(
        0.0001,
        "adds this times the client's model to every local step; the momentum makes 1/alpha times as much of it",
        ge=0,
    )
    alpha: float = param(0.1, "share of the fresh gradient; 1 = FedAvg", gt=0, le=1, symbol="alpha")


def init(context: LocalContext) -> State:
    """m = 0."""
    state = primal.start(context)
    state.memory["momentum"] = torch.zeros_like(state.variables["w"])
    return state


def step(state: State, context: LocalContext) -> Step:
    """One round."""
    theta, m, alpha = state.variables["w"], state.memory["momentum"], context.hyper.alpha
    active = context.cohort()
    trained = local_training.train(context, theta, active, local_training.Rule(lin=(1 - alpha) * m, fresh=alpha))
    m.copy_(-primal.change(state, context, theta, trained, per=context.eta * trained.steps))
    return primal.move(state, context, active, trained, down=2, server=2)


FEDCM = primal.method(name="fedcm", summary="averaging with client-level momentum", options=FedCm, init=init, step=step)
