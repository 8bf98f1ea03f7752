"""LFedNest: every client takes hypergradient steps of its own, and only the results are averaged.

Source: the variant of FedNest in Tarzanagh, Li, Thrampoulidis and Oymak (2022); SimFBO specification, section 2.3.

| paper | here | shape |
|---|---|---|
| x, y | `x`, `y`; or with local lower levels `Y` in memory | [d_x], [d_y]; [N, d_y] |
| T calls of LFedInn | `hyper.lower_rounds` | |
| M terms, lambda | `hyper.series_terms`, `hyper.eta_h` | |
| alpha, beta | `hyper.eta_x`, `hyper.eta_y` | |
| tau_i of LFedOut, of LFedInn | `hyper.upper_local_steps`, `hyper.local_steps` | |

    LFedInn    z <- z - beta_i grad_y g_i(x, z)     tau_i times from z = y;           y = average
    LFedOut    s  = lambda sum_{m < M} (I - lambda D2yy g_i(z, y))^m grad_y f_i(z, y)       all local
               z <- z - alpha_i ( grad_x f_i(z, y) - D2xy g_i(z, y) s )   tau_i times from z = x;   x = average

The average of local hypergradients is the hypergradient only where lower levels are local; with a common lower level
and clients that differ it is biased, whatever M. `correction: svrg` gives LFedNest_SVRG, LFedInn replaced by FedInn.

Local lower levels: LFedInn keeps every client's own y_i, nothing of it is sent and no server is asked, so T calls are
T tau_i steps in a row; absent clients keep theirs. There the correction has nothing to correct and is refused.

Per active client: T + 1 exchanges (2T + 1 with correction); up T d_y + d_x (2T d_y + d_x); down (T + 1)(d_x + d_y)
(T (d_x + 2 d_y) + d_x + d_y). Local lower levels: one exchange, d_x each way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from pipeline.config.spec import param
from pipeline.errors import not_allowed
from pipeline.methods.base import Cost, State, Step
from pipeline.methods.bilevel.common import fedinn, neumann, step_counts
from pipeline.methods.bilevel.common.bilevel_context import (
    EITHER_LOWER,
    BilevelContext,
    ClientUpper,
    Cohort,
    UpperLevel,
    assigning,
    rows,
)
from pipeline.methods.bilevel.common.fedinn import NestedSteps


@dataclass(frozen=True)
class LFedNest(NestedSteps):
    """FedNest's local variant."""

    lower_rounds: int = param(1, "rounds of local steps before each step of the upper variable", ge=1, symbol="T")
    correction: Literal["svrg", "none"] = param(
        "none", "none = LFedNest; svrg = LFedNest_SVRG, whose steps of y are corrected against client drift"
    )
    series_terms: int = param(6, "terms of each client's own Neumann series", ge=1, symbol="M")


def init(context: BilevelContext) -> State:
    """x and y, or each client's own y_i, as the problem starts them."""
    problem = context.problem
    for key in ("local_steps", "upper_local_steps"):
        step_counts.steps(context, key)  # so that a wrong list is refused before work starts
    x, y = problem.initial_upper(context.seed), problem.initial_lower(context.seed)
    if not problem.local_lower:
        return State({"x": x, "y": y})
    if context.hyper.correction != "none":
        raise not_allowed(
            "algorithms.lfednest.correction",
            context.hyper.correction,
            "none where lower levels are local: no client drifts away from a minimiser that is its own",
            "set it to none",
        )
    return State({"x": x}, {"Y": rows(y, problem.clients)})


def step(state: State, context: BilevelContext) -> Step:
    """Common lower level: steps 1..T are LFedInn, step T + 1 is LFedOut. Local ones: LFedOut's clients do both."""
    hyper, x = context.hyper, state.variables["x"]
    last = context.inner == hyper.lower_rounds + 1
    if context.problem.local_lower:
        return _local_round(state, context) if last else Step({}, Cost())
    y = state.variables["y"]
    cohort = context.cohort()
    if not last:
        y_new, cost = fedinn.lower_steps(context, x, y, cohort)
        return Step({"y": y - y_new}, cost)
    n = len(cohort.clients)
    direction, cost = _upper_direction(context, x, rows(y, n), cohort, context.upper_level(x, y))
    return Step({"x": direction}, cost + Cost(floats_down=len(y) * n))


def _local_round(state: State, context: BilevelContext) -> Step:
    """T tau_i plain steps on every active client's own y_i, then its steps on x."""
    x, Y, cohort = state.variables["x"], state.memory["Y"], context.cohort()
    clients = cohort.clients
    mine = clients.to(Y.device)
    X, own = rows(x, len(clients)), Y[mine]
    tau = step_counts.steps(context)[clients]
    size = fedinn.step_sizes(context, context.hyper.eta_y, tau).to(own)
    for t in range(context.hyper.lower_rounds):
        for k in range(step_counts.most(tau)):
            moving = step_counts.moving(tau, k)
            at = moving.to(own.device)
            B = context.lower_batch("local y", clients[moving], t, k)
            own[at] -= size[at, None] * context.oracle.lower_gradients(X[at], own[at], B)
    direction, cost = _upper_direction(context, x, own, cohort, ClientUpper(context.oracle))
    context.judge()
    Y[mine] = own
    return Step({"x": direction}, cost + Cost(gradients=context.hyper.lower_rounds * int(tau.sum())))


def _upper_direction(
    context: BilevelContext, x: Tensor, Y: Tensor, cohort: Cohort, upper: UpperLevel
) -> tuple[Tensor, Cost]:
    """LFedOut at the clients' Y: (old minus new x, cost but for what of y is sent)."""
    clients, p, n = cohort.clients, cohort.p.to(x), len(cohort.clients)
    hyper, terms = context.hyper, context.hyper.series_terms
    tau = step_counts.steps(context, "upper_local_steps")[clients]
    size = fedinn.step_sizes(context, hyper.eta_x, tau).to(x)
    Z = rows(x, n)
    for k in range(step_counts.most(tau)):
        moving = step_counts.moving(tau, k)
        at = moving.to(x.device)
        batches = neumann.draw_local(context, clients[moving], terms, k, one_upper=False)
        Z[at] -= size[at, None] * neumann.local_hypergradients(context, Z[at], Y[at], batches, upper, hyper.eta_h)
    down = context.upper_floats + (Y.shape[1] if context.server_upper else 0)
    cost = Cost(1, floats_up=context.upper_floats * n, floats_down=down * n)
    return context.total(p @ (x - Z)), cost + neumann.local_work(context, int(tau.sum()), terms)


LFEDNEST = assigning(
    init,
    step,
    "xy",
    inner_steps=lambda hyper: hyper.lower_rounds + 1,
    rows="Y",
    name="lfednest",
    summary="general: every client's own hypergradient steps, averaged",
    family=EITHER_LOWER,
    options=LFedNest,
)
