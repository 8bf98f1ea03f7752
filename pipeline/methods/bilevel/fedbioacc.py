"""FedBiOAcc: FedBiO with recursive momentum (STORM) on all three directions.

Source: "Federated Bilevel Optimization" (FedBiO, FedBiOAcc), Algorithm 2; FedBiO specification, section 2.2.

| paper | here | shape |
|---|---|---|
| z = (x, y, u) | server variables "x", "y", "v"; `at` holds the clients' | [d_x], [d_y], [d_y]; rows |
| nu, omega, q | memory "nu", "omega", "q"; `momenta` holds the clients' | as z |
| eta, gamma, tau; alpha_t | `hyper.eta_x`, `hyper.eta_y`, `hyper.eta_v`; `storm.alpha` | scalars |
| c_nu, c_omega, c_u | `hyper.storm_x`, `hyper.storm_y`, `hyper.storm_v` | scalars |
| I; b_1 | `hyper.local_steps`; `hyper.initial_batch_size` | |

One outer iteration here is one communication round, I iterations t of the paper. At t = 1 every client computes its
momenta on a first minibatch. For t = (r - 1) I + 1 .. r I, with G = (dx, dy, dv) of
`pipeline.methods.bilevel.common.directions`:

    z_(t+1) = z_t - (eta, gamma, tau) alpha_t momenta ;   its average when t = r I                     first exchange
    one draw B:   momenta <- G(z_(t+1); B) + (1 - c alpha_t^2) (momenta - G(z_t; B)) ;
                  their average when t = r I                                                          second exchange

z_t is the client's own iterate before averaging, z_(t+1) the one after it. Momenta are taken at the average, so they
cannot ride with the variables. The very first momenta stay local as the listing has it, unless
`average_initial_momentum`. alpha follows `schedule` too.

Partial participation (the paper treats full participation only): after a round variables and momenta are averages which
the server keeps, so a client that was absent catches up with the first message it receives.

Per active client and round: two exchanges; 2 (d_x + 2 d_y) numbers each way, and d_x + 2 d_y more down where clients
come and go and the averages must be sent afresh; twice FedBiO's work, and one evaluation more in the first round.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pipeline.config.spec import param
from pipeline.methods.base import Cost, State, Step
from pipeline.methods.bilevel.common import storm
from pipeline.methods.bilevel.common.bilevel_context import BILEVEL, BilevelContext, assigning, start
from pipeline.methods.bilevel.common.directions import Point, directions, draw, work
from pipeline.methods.bilevel.common.storm import Momentum


@dataclass(frozen=True)
class FedBioAcc(Momentum):
    """FedBiO with recursive momentum."""

    eta_x: float = param(0.01, "step size of the upper variable, times alpha_t", gt=0, symbol="eta")
    eta_y: float = param(0.2, "step size of the lower variable, times alpha_t", gt=0, symbol="gamma")
    eta_v: float = param(0.06, "step size of the adjoint, times alpha_t", gt=0, symbol="tau")
    storm_v: float = param(1.0, "momentum of the adjoint", ge=0, symbol="c_u")
    local_steps: int = param(5, "iterations between synchronisations: one round of train.rounds", ge=1, symbol="I")
    shared_batch: bool = param(
        False, "one minibatch of each kind for all three directions: cheaper, but their noises are correlated"
    )


MOMENTA = ("nu", "omega", "q")


def init(context: BilevelContext) -> State:
    """x and y as the problem starts them, u = 0; momenta are computed in the first round."""
    storm.require_weights("fedbioacc", context.hyper, ("storm_x", "storm_y", "storm_v"))
    x, y = start(context, "fedbioacc")
    momenta = (torch.zeros_like(u) for u in (x, y, y))
    return State({"x": x, "y": y, "v": torch.zeros_like(y)}, dict(zip(MOMENTA, momenta, strict=True)))


def step(state: State, context: BilevelContext) -> Step:
    """One communication round."""
    hyper, problem, period = context.hyper, context.problem, context.hyper.local_steps
    server = Point(*(state.variables[name] for name in "xyv"))
    kept = Point(*(state.memory[name] for name in MOMENTA))
    clients, p = context.cohort()
    n, upper = len(clients), context.upper_level(server.x, server.y)
    at = server.rows(n)
    first = context.round == 1
    momenta = _initial_momenta(context, server, clients, p) if first else kept.rows(n)
    new = server
    for i in range(1, period + 1):
        alpha = context.schedule * storm.alpha(hyper, (context.round - 1) * period + i)
        sizes = (hyper.eta_x, hyper.eta_y, hyper.eta_v)
        ahead = Point(*(u - size * alpha * m for u, size, m in zip(at, sizes, momenta, strict=True)))
        upper_ahead = upper
        if i == period:
            new = server.mean_change(context, ahead, p)
            new = new._replace(x=context.constrain("x", new.x))
            ahead = new.rows(n)
            # One minibatch at both points also where the server holds f.
            upper = context.upper_level(server.x, server.y, period)
            upper_ahead = context.upper_level(new.x, new.y, period)
        B = draw(context, clients, i)
        fresh, old = directions(context, ahead, B, upper_ahead), directions(context, at, B, upper)
        shares = (c * alpha**2 for c in (hyper.storm_x, hyper.storm_y, hyper.storm_v))
        momenta = Point(*(g + (1 - a) * (m - o) for g, a, m, o in zip(fresh, shares, momenta, old, strict=True)))
        at = ahead
    context.judge()
    for memory, averaged in zip(kept, kept.mean_change(context, momenta, p), strict=True):
        memory.copy_(averaged)

    floats = n * (context.upper_floats + 2 * problem.lower_dimension)
    averaged_first = 1 if first and hyper.average_initial_momentum else 0
    afresh = 1 if context.federation.participation < 1 and not first else 0
    frozen = n * problem.lower_dimension if context.server_upper and period > 1 else 0
    cost = Cost(
        2 + averaged_first,
        floats_up=floats * (2 + averaged_first),
        floats_down=floats * (2 + averaged_first + afresh) + frozen,
    )
    evaluations = n * (2 * period + (1 if first else 0))
    moves = {name: u - u_new for name, u, u_new in zip("xyv", server, new, strict=True)}
    return Step(moves, cost + work(context, evaluations))


def _initial_momenta(context: BilevelContext, server: Point, clients: Tensor, p: Tensor) -> Point:
    """(nu_1, omega_1, q_1) of every client on a first minibatch."""
    first = draw(context, clients, 0, size=context.batch_size(context.hyper.initial_batch_size))
    found = directions(context, server.rows(len(clients)), first, context.upper_level(server.x, server.y, 0))
    if not context.hyper.average_initial_momentum:
        return found
    return Point(*context.share.total(*(p.to(server.y) @ G for G in found))).rows(len(clients))


FEDBIOACC = assigning(
    init,
    step,
    "xyv",
    name="fedbioacc",
    summary="general: the same with recursive momentum",
    family=BILEVEL,
    options=FedBioAcc,
)
