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

from torch import Tensor

from pipeline.algorithms.base import Cost, State, Step
from pipeline.algorithms.bilevel import fedinn, local, neumann
from pipeline.algorithms.bilevel.turn import BilevelTurn, ClientUpper, Cohort, UpperLevel, assigning, rows
from pipeline.errors import not_allowed
from pipeline.params import LFedNest


def init(turn: BilevelTurn) -> State:
    """x and y, or everybody's own y_i, as the problem starts them."""
    problem = turn.problem
    for key in ("local_steps", "upper_local_steps"):
        local.steps(turn, key)  # so that a wrong list is refused before work starts
    x, y = problem.initial_upper(turn.seed), problem.initial_lower(turn.seed)
    if not problem.local_lower:
        return State({"x": x, "y": y})
    if turn.hyper.correction != "none":
        raise not_allowed(
            "algorithms.lfednest.correction",
            turn.hyper.correction,
            "none where lower levels are local: no client drifts away from a minimiser that is its own",
            "set it to none",
        )
    return State({"x": x}, {"Y": rows(y, problem.clients)})


def step(state: State, turn: BilevelTurn) -> Step:
    """Common lower level: steps 1..T are LFedInn, step T + 1 is LFedOut. Local ones: LFedOut's clients do both."""
    hyper, x = turn.hyper, state.variables["x"]
    last = turn.inner == hyper.lower_rounds + 1
    if turn.problem.local_lower:
        return _local_round(state, turn) if last else Step({}, Cost())
    y = state.variables["y"]
    cohort = turn.cohort()
    if not last:
        y_new, cost = fedinn.lower_steps(turn, x, y, cohort)
        return Step({"y": y - y_new}, cost)
    n = len(cohort.clients)
    direction, cost = _upper_direction(turn, x, rows(y, n), cohort, turn.upper_level(x, y))
    return Step({"x": direction}, cost + Cost(floats_down=len(y) * n))


def _local_round(state: State, turn: BilevelTurn) -> Step:
    """T tau_i plain steps on every active client's own y_i, then its steps on x."""
    x, Y, cohort = state.variables["x"], state.memory["Y"], turn.cohort()
    clients = cohort.clients
    mine = clients.to(Y.device)
    X, own = rows(x, len(clients)), Y[mine]
    tau = local.steps(turn)[clients]
    size = fedinn.step_sizes(turn, turn.hyper.eta_y, tau).to(own)
    for t in range(turn.hyper.lower_rounds):
        for k in range(local.most(tau)):
            moving = local.moving(tau, k)
            at = moving.to(own.device)
            B = turn.lower_batch("local y", clients[moving], t, k)
            own[at] -= size[at, None] * turn.oracle.lower_gradients(X[at], own[at], B)
    Y[mine] = own
    direction, cost = _upper_direction(turn, x, own, cohort, ClientUpper(turn.oracle))
    return Step({"x": direction}, cost + Cost(gradients=turn.hyper.lower_rounds * int(tau.sum())))


def _upper_direction(turn: BilevelTurn, x: Tensor, Y: Tensor, cohort: Cohort, upper: UpperLevel) -> tuple[Tensor, Cost]:
    """LFedOut at the clients' Y: (old minus new x, cost but for what of y is sent)."""
    clients, p, n = cohort.clients, cohort.p.to(x), len(cohort.clients)
    hyper, terms = turn.hyper, turn.hyper.series_terms
    tau = local.steps(turn, "upper_local_steps")[clients]
    size = fedinn.step_sizes(turn, hyper.eta_x, tau).to(x)
    Z = rows(x, n)
    for k in range(local.most(tau)):
        moving = local.moving(tau, k)
        at = moving.to(x.device)
        batches = neumann.draw_local(turn, clients[moving], terms, k, one_upper=False)
        Z[at] -= size[at, None] * neumann.local_hypergradients(turn, Z[at], Y[at], batches, upper, hyper.eta_h)
    down = turn.upper_floats + (Y.shape[1] if turn.server_upper else 0)
    cost = Cost(1, floats_up=turn.upper_floats * n, floats_down=down * n)
    return turn.total(p @ (x - Z)), cost + neumann.local_work(turn, int(tau.sum()), terms)


LFEDNEST = assigning(init, step, "xy", inner_steps=lambda hyper: hyper.lower_rounds + 1, rows="Y")

__all__ = ["LFEDNEST", "LFedNest"]
