"""FedNest for any federated bilevel problem: FedInn for y, FedIHGP for the inverse Hessian, FedOut for x.

Source: Tarzanagh, Li, Thrampoulidis and Oymak, "FedNest: Federated Bilevel, Minimax, and Compositional Optimization"
(2022); SimFBO specification, section 2.2. The form made for client weighting, with one local step, is
`pipeline.methods.client_weighting.fednest`: `algorithm: fednest` means that one on client weighting and this one
everywhere else; `algorithm: fednest_general` means this one everywhere.

| paper | here | shape |
|---|---|---|
| x, y | `x`, `y` | [d_x], [d_y] |
| T calls of FedInn | `hyper.lower_rounds` | |
| N terms of the series, lambda | `hyper.series_terms`, `hyper.eta_h` | |
| alpha, beta | `hyper.eta_x`, `hyper.eta_y` | |
| tau_i of FedOut, of FedInn | `hyper.upper_local_steps`, `hyper.local_steps` | |
| p_N' | `v` | [d_y] |

Per outer iteration, each call of FedInn with its own clients:

    T times    y <- FedInn(x, y)                                          `fedinn.lower_steps`
    then       v  = lambda sum_{m < N} (I - lambda D2yy G)^m grad_y F     `neumann.federated`
               h  = avg ( grad_x f_i(x, y) - D2xy g_i(x, y) v )
               x <- average of clients' steps along h, its direct part corrected     `fedinn.upper_steps`

`mode` (the specification lists how the public code differs from the paper): clean = the paper. code_global_batch and
code_local_batch = the code's sums over each client's own running vector (`neumann`), on one client set for the whole of
FedOut, and with N + 1 terms here where the code says N. The code sets lambda = the outer step and, for
hyper-representation, multiplies the sum by it: that is eta_h = eta_x here; where it does not (imbalanced data), eta_x
is 1 for the same. Its full local passes for anchors, Hessians and gradients are a large federation.batch_size.

Per active client: exchanges 2T + N + 3, or 2T + N' + 3 with N' random factors; T fewer without correction. The
published number (`counting: published`) is one exchange of d_y numbers each way above what N terms need, and it is what
figures in the literature are drawn against; `exchanges` counts what is sent. Up 2T d_y + (N + 1) d_y + 2 d_x; down
T (d_x + 2 d_y) + (N + 2) d_y + 2 d_x, where d_x + d_y of it are x and y at the start of FedOut. With fresh client sets
and partial participation every client that FedOut asks is sent x and y when it is asked first: in place of these
d_x + d_y times the n clients of a set, d_x + d_y times those of all N + 1 sets together. Where the server holds f, the
exchange for grad_y f and its set fall away.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from pipeline.config.spec import param
from pipeline.methods.base import Cost, State, Step
from pipeline.methods.bilevel.common import fedinn, neumann, step_counts
from pipeline.methods.bilevel.common.bilevel_context import (
    BILEVEL,
    BilevelContext,
    Cohort,
    UpperLevel,
    assigning,
    rows,
    start,
)
from pipeline.methods.bilevel.common.fedinn import NestedSteps


@dataclass(frozen=True)
class FedNestGeneral(NestedSteps):
    """FedNest for any bilevel problem."""

    lower_rounds: int = param(1, "calls of FedInn before each step of the upper variable", ge=1, symbol="T")
    correction: Literal["svrg", "none"] = param(
        "svrg", "svrg = local steps corrected against client drift, one exchange more; none = plain local descent"
    )
    series_terms: int = param(
        5, "terms of the Neumann series; with the public code's modes one more than its number", ge=1, symbol="N"
    )
    series: Literal["deterministic", "randomised"] = param(
        "deterministic", "of `mode: clean`: the whole series, or one random product of the same mean"
    )
    mode: Literal["clean", "code_global_batch", "code_local_batch"] = param(
        "clean", "clean = as published; code_... = the sums over local products of the public code's two modes"
    )
    client_sets: Literal["fresh", "one"] = param(
        "fresh", "active clients of the series' exchanges and the step of x: drawn for each, or one set for all"
    )
    counting: Literal["published", "exchanges"] = param(
        "published", "of deterministic series: the published 2T + N + 3 exchanges, or those of N terms, one fewer"
    )


def init(context: BilevelContext, method: str = "fednest_general") -> State:
    """x and y as the problem starts them."""
    x, y = start(context, method)
    for key in ("local_steps", "upper_local_steps"):
        step_counts.steps(context, key)  # so that a wrong list is refused before work starts
    return State({"x": x, "y": y})


def step(state: State, context: BilevelContext) -> Step:
    """Steps 1..T: FedInn. Step T + 1: FedOut."""
    hyper, x, y = context.hyper, state.variables["x"], state.variables["y"]
    if context.inner <= hyper.lower_rounds:
        y_new, cost = fedinn.lower_steps(context, x, y, context.cohort())
        return Step({"y": y - y_new}, cost)
    upper = context.upper_level(x, y)
    v, cost, asked = neumann.federated(context, x, y, upper)
    cohort = neumann.client_sets(context, hyper.series_terms)
    asked = torch.cat([asked, cohort.clients]).unique()
    cost += Cost(floats_down=(context.upper_floats + len(y)) * len(asked))
    x_new, more = fed_out(context, x, y, v, cohort, upper)
    if hyper.mode == "clean" and hyper.series == "deterministic" and hyper.counting == "published":
        n, d_y = len(cohort.clients), len(y)
        more += Cost(1, floats_up=d_y * n, floats_down=d_y * n)
    return Step({"x": x - x_new}, cost + more)


def fed_out(
    context: BilevelContext, x: Tensor, y: Tensor, v: Tensor, cohort: Cohort, upper: UpperLevel
) -> tuple[Tensor, Cost]:
    """x after an exchange for the hypergradient at v and one for the local steps along it; cost, but for sending x and
    y."""
    clients, p, n = cohort.clients, cohort.p.to(x), len(cohort.clients)
    X, Y, V = rows(x, n), rows(y, n), rows(v, n)
    direct = upper.gradient_x(X, Y, context.upper_batch("direct", clients))
    h = context.total(p @ (direct - context.oracle.cross_products(X, Y, V, context.lower_batch("cross", clients))))
    x_new, cost = fedinn.upper_steps(context, x, y, h, cohort, upper)
    gradients = 0 if context.server_upper else n
    up = context.upper_floats * n
    return x_new, cost + Cost(1, floats_up=up, floats_down=len(y) * n, gradients=gradients, hvps=n)


FEDNEST_GENERAL = assigning(
    init,
    step,
    "xy",
    inner_steps=lambda hyper: hyper.lower_rounds + 1,
    name="fednest_general",
    summary="general: FedNest beyond client weighting",
    family=BILEVEL,
    options=FedNestGeneral,
)
