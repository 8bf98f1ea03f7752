"""FBO-AggITD: the hypergradient's products ride on the exchanges that the lower level needs anyway.

Source: Xiao and Ji, "Communication-Efficient Federated Hypergradient Computation via Aggregated Iterative
Differentiation" (2023), rules as in SimFBO specification, section 2.4, which resolves the index range.

| paper | here | shape |
|---|---|---|
| x, y^0 .. y^N | `x`, `y`, `y_t` | [d_x], [d_y] |
| N lower rounds = N terms, lambda | `hyper.series_terms`, `hyper.eta_h` | |
| Q, uniform on 0..N-1 | `Q` | |
| r (randomised), s^t (deterministic) | `r` | [d_y] |
| alpha, beta, tau_i | `hyper.eta_x`, `hyper.eta_y`, `hyper.upper_local_steps`, `hyper.local_steps` | |

One set of clients per outer iteration. For t = 0 .. N - 1, at y^t:

    randomised       t = Q:  r = lambda N avg grad_y f_i(x, y^Q) ;    t > Q:  r = avg ( r - lambda D2yy g_i(x, y^t) r )
    deterministic    r <- r - lambda avg ( D2yy g_i(x, y^t) r - grad_y f_i(x, y^t) )        from r = 0
    y^(t+1) = FedInn(x, y^t)                                                               `fedinn.lower_steps`
    then h = avg ( grad_x f_i(x, y^N) - D2xy g_i(x, y^N) r ), and FedOut's local steps along it; y = y^N

The product runs over t = Q + 1 .. N - 1, so its length is uniform on 0..N-1 and E_Q[r] is exactly the deterministic r
along the same y^t: N gradient steps, from 0, on the quadratic whose minimiser is the adjoint. Up to N it would miss
lambda grad_y F.

Per active client: 2N + 2 exchanges (N + 2 without correction); up (2N + N - Q) d_y + 2 d_x, down (2N + 1 + N - Q) d_y
+ 2 d_x (each N d_y less without correction), deterministic = Q 0. The original is recalled to count 2N + 3 exchanges:
`counting: published`. Where the server holds f, the vector of round Q need not be sent up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from pipeline.config.spec import param
from pipeline.methods.base import Cost, State, Step
from pipeline.methods.bilevel import fednest_general
from pipeline.methods.bilevel.common import fedinn
from pipeline.methods.bilevel.common.bilevel_context import BILEVEL, BilevelContext, assigning, rows
from pipeline.methods.bilevel.common.fedinn import NestedSteps


@dataclass(frozen=True)
class AggItd(NestedSteps):
    """Aggregated iterative differentiation."""

    correction: Literal["svrg", "none"] = param(
        "svrg", "svrg = local steps corrected against client drift, one exchange more; none = plain local descent"
    )
    series_terms: int = param(5, "lower rounds, which are the terms of the series too", ge=1, symbol="N")
    series: Literal["deterministic", "randomised"] = param(
        "randomised", "randomised = from a random round Q on, as published; deterministic = its mean"
    )
    counting: Literal["exchanges", "published"] = param(
        "exchanges", "2N + 2, what is exchanged, or 2N + 3, what the original is recalled to count"
    )


def init(context: BilevelContext) -> State:
    """x and y as the problem starts them."""
    return fednest_general.init(context, "aggitd")


def step(state: State, context: BilevelContext) -> Step:
    """One outer iteration."""
    hyper, oracle, x, y = context.hyper, context.oracle, state.variables["x"], state.variables["y"]
    N, size = hyper.series_terms, hyper.eta_h
    cohort = context.cohort()
    clients, p, n = cohort.clients, cohort.p.to(y), len(cohort.clients)
    deterministic = hyper.series == "deterministic"
    Q = 0 if deterministic else context.integer("series", N)
    X, r, y_t, work = rows(x, n), torch.zeros_like(y), y, Cost()
    for t in range(N):
        Y = rows(y_t, n)
        if t > Q:
            B = context.lower_batch("series", clients, t)
            r = r - size * context.total(p @ oracle.hessian_products(X, Y, rows(r, n), B))
            work += Cost(hvps=n)
        if t == Q or deterministic:
            B = context.upper_batch("series", clients, t)
            b = context.total(p @ context.upper_level(x, y_t, t).gradient_y(X, Y, B))
            r = r + size * (1 if deterministic else N) * b
            work += Cost(gradients=0 if context.server_upper else n)
        y_t, cost = fedinn.lower_steps(context, x, y_t, cohort, t)
        work += Cost(gradients=cost.gradients)
    upper = context.upper_level(x, y_t, N)
    x_new, out = fednest_general.fed_out(context, x, y_t, r, cohort, upper)
    work += Cost(gradients=out.gradients, hvps=out.hvps)

    exchanges = (2 if hyper.correction == "svrg" else 1) * N  # of the lower level, d_y each way
    d_x, d_y = context.upper_floats, len(y)
    up = 2 * d_x + (exchanges + N - Q - (1 if context.server_upper else 0)) * d_y
    down = 2 * d_x + (exchanges + 1 + N - Q) * d_y
    counted = exchanges + 2 + (1 if hyper.counting == "published" else 0)
    return Step({"x": x - x_new, "y": y - y_t}, work + Cost(counted, floats_up=up * n, floats_down=down * n))


AGGITD = assigning(
    init,
    step,
    "xy",
    name="aggitd",
    summary="general: the series uses the lower level's exchanges",
    family=BILEVEL,
    options=AggItd,
)
