"""SimFBO and ShroFBO: one loop and one exchange per round for the upper variable, the lower variable and the adjoint.

Source: Yang, Xiao and Ji, "SimFBO: Towards Simple, Flexible and Communication-efficient Federated Bilevel Learning"
(2023), Algorithm 1 with the resolutions of section 3 of the specification.

| paper | here | shape |
|---|---|---|
| x, y, v | server variables; `at` holds the clients' copies (X, Y, V) | [d_x], [d_y], [d_y]; rows |
| C^(t); P is its size | `clients` | [n] |
| p-tilde_i = (N/P) p_i | `p` | [n] |
| tau_i, a_i^(t,k), norm1(a_i) | `tau`, `a`, `A` (`pipeline.methods.bilevel.common.step_counts`) | [n] |
| rho = sum_j p_j norm1(a_j), over ALL N clients | `rho` | scalar |
| q_(u,i), h_(u,i) = q_(u,i) / norm1(a_i) | rows of `q` | [n, d] |
| eta_u of clients, gamma_u of the server | `hyper.eta_x`, ..., `hyper.gamma_x`, ... | scalars |
| r | `hyper.adjoint_radius` | scalar |

Per round, every active client from (X, Y, V) = (x, y, v), for k = 0 .. tau_i - 1, directions d_u of
`pipeline.methods.bilevel.common.directions` on fresh minibatches:

    q_u += a d_u ,      U <- U - a eta_u d_u                  for u = x, y, v, simultaneously; no projection here

    SimFBO   server:  u <- u - gamma_u sum_i p_i q_(u,i)
    ShroFBO  server:  u <- u - gamma_u rho sum_i p_i q_(u,i) / A_i          and v <- Proj_r(v) in both

q has no eta in it: with one local step eta does not matter at all. SimFBO ends where the objective reweighted by
w_i = p_i A_i / rho is stationary, ShroFBO where the true one is, both up to a client drift O(eta) if tau_i > 1. The
server's gamma = eta and p-tilde of sum 1 give plain averaging of the local (X, Y, V).

Per active client and round: one exchange; d_x + 2 d_y numbers each way (the server knows tau_i); 3 gradients and 2
products per local step.

Theory asks for r = L_f / mu, which is unknown for a network: the ball is a safeguard, and `adjoint_norm` in the
record shows whether it is ever reached.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import torch

from pipeline import projections
from pipeline.config.spec import param
from pipeline.methods.base import Algorithm, Cost, State, Step
from pipeline.methods.bilevel.common import step_counts
from pipeline.methods.bilevel.common.bilevel_context import BILEVEL, BilevelContext, start
from pipeline.methods.bilevel.common.directions import Point, directions, draw, work
from pipeline.methods.bilevel.common.step_counts import HeterogeneousSteps


@dataclass(frozen=True)
class SimFbo(HeterogeneousSteps):
    """One loop, one exchange."""

    main_step_size: ClassVar[str] = "gamma_y"

    gamma_x: float = param(0.05, "server's step size of the upper variable", gt=0, symbol="gamma_x")
    gamma_y: float = param(0.2, "server's step size of the lower variable", gt=0, symbol="gamma_y")
    gamma_v: float = param(0.1, "server's step size of the adjoint", gt=0, symbol="gamma_v")
    eta_x: float = param(0.05, "clients' step size of the upper variable; no effect with one local step", ge=0)
    eta_y: float = param(0.2, "clients' step size of the lower variable; no effect with one local step", ge=0)
    eta_v: float = param(0.1, "clients' step size of the adjoint; no effect with one local step", ge=0)
    adjoint_radius: float = param(
        100.0, "the server keeps the adjoint in this ball; it should (almost) never be reached", gt=0, symbol="r"
    )
    local_coefficients: Literal["constant", "momentum", "proximal"] | list[float] = param(
        "constant",
        "weights of a client's local gradients: constant = plain descent, momentum, proximal, or a list, one per step",
        symbol="a_i",
    )
    local_coefficient: float = param(
        0.5, "of momentum (its factor) and proximal (strength times local step); unused otherwise", ge=0, lt=1
    )
    shared_batch: bool = param(
        False, "one minibatch of each kind for all three directions: cheaper, but not what the analysis assumes"
    )


@dataclass(frozen=True)
class ShroFbo(SimFbo):
    """SimFBO for unequal local steps."""


def init(context: BilevelContext, method: str) -> State:
    """x and y as the problem starts them, v = 0."""
    x, y = start(context, method)
    step_counts.norms(context.hyper, step_counts.longest(context))  # so that a wrong list is refused before work starts
    return State({"x": x, "y": y, "v": torch.zeros_like(y)})


def step(state: State, context: BilevelContext, normalised: bool) -> Step:
    """One round. normalised: ShroFBO."""
    hyper, problem = context.hyper, context.problem
    server = Point(*(state.variables[name] for name in "xyv"))
    eta = [context.schedule * size for size in (hyper.eta_x, hyper.eta_y, hyper.eta_v)]
    (clients, p), all_steps = context.cohort(), step_counts.steps(context)
    n, tau = len(clients), all_steps[clients]
    upper = context.upper_level(server.x, server.y)

    at = server.rows(n)
    q = Point(*(torch.zeros_like(U) for U in at))
    for k in range(step_counts.most(tau)):
        movers = step_counts.moving(tau, k)
        d = directions(context, at.select(movers), draw(context, clients[movers], k), upper)
        a = step_counts.coefficients(hyper, tau[movers], k).to(server.y)[:, None]
        rows = movers.to(a.device)
        for U, Q, D, size in zip(at, q, d, eta, strict=True):
            Q[rows] += a * D
            U[rows] -= a * size * D

    p = p.to(server.y)
    if normalised:
        rho = problem.client_probabilities.double().cpu() @ step_counts.norms(hyper, all_steps)
        p = p * (rho / step_counts.norms(hyper, tau)).to(p)
    moves = dict(zip("xyv", context.share.total(*(p @ Q for Q in q)), strict=True))

    floats = n * (context.upper_floats + 2 * problem.lower_dimension)
    frozen = int((tau > 1).sum()) * problem.lower_dimension if context.server_upper else 0
    return Step(moves, Cost(1, floats_up=floats, floats_down=floats + frozen) + work(context, int(tau.sum())))


def _method(name: str, summary: str, options: type[SimFbo], normalised: bool) -> Algorithm[BilevelContext]:
    return Algorithm(
        name=name,
        summary=summary,
        family=BILEVEL,
        options=options,
        init=partial(init, method=name),
        step=partial(step, normalised=normalised),
        step_sizes=lambda hyper: {"x": hyper.gamma_x, "y": hyper.gamma_y, "v": hyper.gamma_v},
        projections={"v": lambda value, hyper: projections.ball(value, hyper.adjoint_radius)},
        reports={"adjoint_norm": lambda variables: torch.linalg.vector_norm(variables["v"])},
    )


SIMFBO = _method("simfbo", "general: one loop, one exchange a round", SimFbo, normalised=False)
SHROFBO = _method("shrofbo", "general: SimFBO for unequal local steps", ShroFbo, normalised=True)
