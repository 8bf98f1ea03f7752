"""FedBiO: local steps on the upper variable, the lower variable and the adjoint, then averaging.

Source: "Federated Bilevel Optimization" (FedBiO, FedBiOAcc), Algorithm 1; FedBiO specification, section 2.1.

| paper | here | shape |
|---|---|---|
| x, y, u | server variables "x", "y", "v"; `at` holds the clients' | [d_x], [d_y], [d_y]; rows |
| nu, omega, q | `d.x`, `d.y`, `d.v` (`pipeline.methods.bilevel.common.directions`) | rows |
| eta, gamma, tau | `hyper.eta_x`, `hyper.eta_y`, `hyper.eta_v` | scalars |
| I | `hyper.local_steps` | |

One outer iteration here is one communication round, I iterations t of the paper, so the server's variables always are
averages (and T = I * train.rounds):

    I times, every client    x <- x - eta nu ;  y <- y - gamma omega ;  u <- u - tau q      all at the old (x, y, u)
    server                   (x, y, u) = average

With I = 1 it is the centralised single-loop method on (F, G); with more, clients that differ drift, proportionally to
the steps and to I - 1. It is SimFBO with equal client and server steps, I local steps and no ball.

The paper treats full participation. Since all clients hold the averages after a round, and nothing else, an absent
client misses nothing that the next message does not bring: the active ones average among themselves, with (N/n) p_i.

Client weighting as a general problem scales client i's lower loss by N x_i. Local copies of x are not projected, and a
client whose x_i a local step makes negative ascends its loss until the round ends, in y and in v: with I > 1 the local
step of x must stay small (on digits, MLP, I = 5: 0.003 and more blew up sooner or later, 0.001 did not in 200 rounds).
FedBiOAcc's averaged momenta, which make the first local step the mean one, bear ten times that.

Per active client and round: one exchange; d_x + 2 d_y numbers each way; 3 gradients and 2 products per iteration.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from pipeline.config.spec import param
from pipeline.methods.base import Cost, State, Step
from pipeline.methods.bilevel.common.bilevel_context import BILEVEL, BilevelContext, BilevelOptions, assigning, start
from pipeline.methods.bilevel.common.directions import Point, directions, draw, work


@dataclass(frozen=True)
class FedBio(BilevelOptions):
    """Local steps on all three variables."""

    eta_x: float = param(0.001, "step size of the upper variable", gt=0, symbol="eta")
    eta_y: float = param(0.05, "step size of the lower variable", gt=0, symbol="gamma")
    eta_v: float = param(0.02, "step size of the adjoint", gt=0, symbol="tau")
    local_steps: int = param(5, "iterations between synchronisations: one round of train.rounds", ge=1, symbol="I")
    shared_batch: bool = param(
        False, "one minibatch of each kind for all three directions: cheaper, but their noises are correlated"
    )


def init(context: BilevelContext) -> State:
    """x and y as the problem starts them, u = 0."""
    x, y = start(context, "fedbio")
    return State({"x": x, "y": y, "v": torch.zeros_like(y)})


def step(state: State, context: BilevelContext) -> Step:
    """One communication round."""
    hyper, problem = context.hyper, context.problem
    server = Point(*(state.variables[name] for name in "xyv"))
    sizes = [context.schedule * size for size in (hyper.eta_x, hyper.eta_y, hyper.eta_v)]
    clients, p = context.cohort()
    n, upper = len(clients), context.upper_level(server.x, server.y)
    at = server.rows(n)
    for t in range(hyper.local_steps):
        d = directions(context, at, draw(context, clients, t), upper)
        at = Point(*(u - size * du for u, size, du in zip(at, sizes, d, strict=True)))
    new = server.mean_change(context, at, p)

    floats = n * (context.upper_floats + 2 * problem.lower_dimension)
    frozen = n * problem.lower_dimension if context.server_upper and hyper.local_steps > 1 else 0
    cost = Cost(1, floats_up=floats, floats_down=floats + frozen) + work(context, n * hyper.local_steps)
    return Step({name: u - u_new for name, u, u_new in zip("xyv", server, new, strict=True)}, cost)


FEDBIO = assigning(
    init,
    step,
    "xyv",
    name="fedbio",
    summary="general: local steps on all variables, then averaging",
    family=BILEVEL,
    options=FedBio,
)
