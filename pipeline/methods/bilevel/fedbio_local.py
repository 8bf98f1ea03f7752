"""FedBiO and FedBiOAcc with local lower levels: every client keeps its own y and its own hypergradient.

Source: "Federated Bilevel Optimization" (FedBiO, FedBiOAcc), Algorithms 3 and 4 and equation (6); FedBiO specification,
sections 2.3 and 2.4.

| paper | here | shape |
|---|---|---|
| x | server variable "x"; `X` holds the clients' | [d_x]; rows |
| y^m | memory "Y" | [N, d_y] |
| nu (averaged), omega^m (never averaged) | memory "nu", "omega" | [d_x], [N, d_y] |
| Phi-hat_m, Q, its step tau | `neumann.local_hypergradients`, `hyper.series_terms` - 1, `hyper.eta_h` | rows |
| eta, gamma; alpha_t; c_nu, c_omega | `hyper.eta_x`, `hyper.eta_y`; `storm.alpha`; `hyper.storm_x`, `hyper.storm_y` | |
| I | `hyper.local_steps` | |

One outer iteration here is one communication round of I iterations, after which x (and nu) are averages:

    fedbio_local     y <- y - gamma grad_y g_m(x, y) ;   x <- x - eta Phi-hat_m(x, y)         both at the old (x, y)
    fedbioacc_local  y <- y - gamma alpha omega ;        x <- x - eta alpha nu ;              then STORM for both,
                     on one draw at the old and the new point

With exact y^m the mean of the clients' hypergradients IS the hypergradient of this problem (it is linear in them), so
nothing but x has to be sent. Averaging y would destroy it. One client and I = 1: StocBiO's and MRBO's single loops.

Minibatches. The analysis wants larger ones below than above: Algorithm 4 starts with b_1 samples for nu and M b_1 for
omega (M clients), and goes on with b and M b. Here both levels have one size: `hyper.initial_batch_size` for the first
momenta (also for the omega of a client that comes back), `federation.batch_size` from then on. A size that gives omega
what the analysis asks gives nu M times as much.

Partial participation (the paper treats full participation only): an absent client keeps its y^m. Its omega^m belongs to
the x of its last round; a client that was absent therefore starts with a fresh gradient, as all do in round 1,
since a momentum may only be carried along a path that was walked. nu is the server's.

Per active client and round: fedbio_local one exchange, d_x each way; fedbioacc_local two exchanges, 2 d_x each way,
and d_x more down where clients come and go. 3 gradients, Q + 1 products per evaluation.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pipeline.config.spec import param
from pipeline.methods.base import Cost, State, Step
from pipeline.methods.bilevel.common import neumann, storm
from pipeline.methods.bilevel.common.bilevel_context import (
    LOCAL_LOWER,
    BilevelContext,
    BilevelOptions,
    ClientUpper,
    assigning,
    rows,
)
from pipeline.methods.bilevel.common.storm import Momentum


@dataclass(frozen=True)
class FedBioLocal(BilevelOptions):
    """FedBiO with local lower levels."""

    eta_x: float = param(0.01, "step size of the upper variable", gt=0, symbol="eta")
    eta_y: float = param(0.1, "step size of the clients' lower variables", gt=0, symbol="gamma")
    eta_h: float = param(0.1, "step of the Neumann series, below 1 / (largest curvature)", gt=0, symbol="tau")
    series_terms: int = param(6, "terms of the Neumann series, one product fewer", ge=1, symbol="Q + 1")
    local_steps: int = param(5, "iterations between synchronisations: one round of train.rounds", ge=1, symbol="I")


@dataclass(frozen=True)
class FedBioAccLocal(Momentum):
    """The same with recursive momentum."""

    eta_x: float = param(0.02, "step size of the upper variable, times alpha_t", gt=0, symbol="eta")
    eta_y: float = param(0.2, "step size of the clients' lower variables, times alpha_t", gt=0, symbol="gamma")
    eta_h: float = param(0.1, "step of the Neumann series, below 1 / (largest curvature)", gt=0, symbol="tau")
    series_terms: int = param(6, "terms of the Neumann series, one product fewer", ge=1, symbol="Q + 1")
    local_steps: int = param(5, "iterations between synchronisations: one round of train.rounds", ge=1, symbol="I")


def init(context: BilevelContext, method: str = "fedbio_local") -> State:
    """x as the problem starts it, and the same start for every y^m."""
    context.require_lower_level(method, local=True)
    problem = context.problem
    Y = rows(problem.initial_lower(context.seed), problem.clients)
    return State({"x": problem.initial_upper(context.seed)}, {"Y": Y})


def init_acc(context: BilevelContext) -> State:
    """The same, with momenta; `last`: the round in which a client was last active, 0 = never."""
    storm.require_weights("fedbioacc_local", context.hyper, ("storm_x", "storm_y"))
    state = init(context, "fedbioacc_local")
    Y = state.memory["Y"]
    last = torch.zeros(len(Y), dtype=torch.int64, device=Y.device)
    more = {"nu": torch.zeros_like(state.variables["x"]), "omega": torch.zeros_like(Y), "last": last}
    return State(state.variables, state.memory | more)


def step(state: State, context: BilevelContext) -> Step:
    """One communication round of fedbio_local."""
    hyper, x, (clients, p) = context.hyper, state.variables["x"], context.cohort()
    mine, n = clients.to(x.device), len(clients)
    X, Y = rows(x, n), state.memory["Y"][mine]
    for t in range(hyper.local_steps):
        omega, nu = _evaluate(context, X, Y, clients, t)
        X, Y = X - context.schedule * hyper.eta_x * nu, Y - context.schedule * hyper.eta_y * omega
    context.judge()
    state.memory["Y"][mine] = Y
    cost = Cost(1, floats_up=len(x) * n, floats_down=len(x) * n) + _work(context, n * hyper.local_steps)
    return Step({"x": context.total(p.to(x) @ (x - X))}, cost)


def step_acc(state: State, context: BilevelContext) -> Step:
    """One communication round of fedbioacc_local."""
    hyper, period, x, memory = context.hyper, context.hyper.local_steps, state.variables["x"], state.memory
    clients, p = context.cohort()
    mine, n, p = clients.to(x.device), len(clients), p.to(x)
    X, Y = rows(x, n), memory["Y"][mine]
    nu, omega = rows(memory["nu"], n), memory["omega"][mine]
    anew = (memory["last"][mine] != context.round - 1).nonzero()[:, 0] if context.round > 1 else torch.arange(n)
    fresh = _initial_momenta(context, X[anew], Y[anew], clients[anew.cpu()])
    omega[anew] = fresh[0]
    if context.round == 1:
        nu = rows(context.total(p @ fresh[1]), n) if hyper.average_initial_momentum else fresh[1]
    x_new = x
    for i in range(1, period + 1):
        alpha = context.schedule * storm.alpha(hyper, (context.round - 1) * period + i)
        X_ahead, Y_ahead = X - hyper.eta_x * alpha * nu, Y - hyper.eta_y * alpha * omega
        if i == period:
            x_new = context.constrain("x", x - context.total(p @ (x - X_ahead)))
            X_ahead = rows(x_new, n)
        omega_ahead, nu_ahead = _evaluate(context, X_ahead, Y_ahead, clients, i)
        omega_old, nu_old = _evaluate(context, X, Y, clients, i)
        omega = omega_ahead + (1 - hyper.storm_y * alpha**2) * (omega - omega_old)
        nu = nu_ahead + (1 - hyper.storm_x * alpha**2) * (nu - nu_old)
        X, Y = X_ahead, Y_ahead
    context.judge()
    memory["Y"][mine], memory["omega"][mine], memory["last"][mine] = Y, omega, context.round
    memory["nu"] -= context.total(p @ (memory["nu"] - nu))

    first, partial = context.round == 1, context.federation.participation < 1
    up = 2 + (1 if first and hyper.average_initial_momentum else 0)
    down = up + (1 if partial and not first else 0)
    started = Cost(gradients=len(anew)) if not first else _work(context, n)
    cost = Cost(up, floats_up=up * len(x) * n, floats_down=down * len(x) * n) + started
    return Step({"x": x - x_new}, cost + _work(context, 2 * period * n))


def _evaluate(
    context: BilevelContext, X: Tensor, Y: Tensor, clients: Tensor, t: int, size: int | None = None
) -> tuple[Tensor, Tensor]:
    """(grad_y g_m, Phi-hat_m) at the clients' points on the draws number t: the same again when asked again."""
    omega = context.oracle.lower_gradients(X, Y, context.lower_batch("local y", clients, t, size=size))
    batches = neumann.draw_local(context, clients, context.hyper.series_terms, t, one_upper=True, size=size)
    return omega, neumann.local_hypergradients(context, X, Y, batches, ClientUpper(context.oracle), context.hyper.eta_h)


def _initial_momenta(context: BilevelContext, X: Tensor, Y: Tensor, clients: Tensor) -> tuple[Tensor, Tensor]:
    """(omega, nu) of clients that start; nu is needed in round 1 alone."""
    size = context.batch_size(context.hyper.initial_batch_size)
    if context.round == 1:
        return _evaluate(context, X, Y, clients, 0, size)
    B = context.lower_batch("local y", clients, 0, size=size)
    return context.oracle.lower_gradients(X, Y, B), torch.empty(0)


def _work(context: BilevelContext, evaluations: int) -> Cost:
    """grad_y g and a local hypergradient each, summed over clients."""
    return Cost(gradients=evaluations) + neumann.local_work(context, evaluations, context.hyper.series_terms)


FEDBIO_LOCAL = assigning(
    init,
    step,
    "x",
    rows="Y",
    name="fedbio_local",
    summary="local lower levels: local steps, x averaged",
    family=LOCAL_LOWER,
    options=FedBioLocal,
)
FEDBIOACC_LOCAL = assigning(
    init_acc,
    step_acc,
    "x",
    rows="Y omega last",
    name="fedbioacc_local",
    summary="local lower levels: the same with recursive momentum",
    family=LOCAL_LOWER,
    options=FedBioAccLocal,
)
