"""FedNest: K steps on the lower level, then a hypergradient by a truncated Neumann series.

Source: Tarzanagh, Li, Thrampoulidis and Oymak, "FedNest" (2022), specialised to client weighting with one local step
(its variance-reducing correction then vanishes); lead specification, section 3.

| paper | here | shape |
|---|---|---|
| w, x | `w`, `x` | [d], [N] |
| v, approximately [sum_j x_j Hess f_j(w)]^(-1) grad f_0(w) | `v` | [d] |
| K, Q | `hyper.inner_steps`, `hyper.series_products` (auto = K) | |
| eta_w, eta_h, eta_x | `hyper.eta_w`, ... | scalars |

For each outer iteration:

    K times     w <- w - eta_w sum_i x_i grad f_i(w)                                    `lower.descend`
    then        v = eta_h sum_{q=0..Q} prod_{j=1..q} (I - eta_h H_j) grad f_0(w)        `weighted_neumann`
                x <- Proj_X( x - eta_x g_x ),   g_x,i = - v^T grad f_i(w)

Every lower step, every factor and the last line have their own active set and minibatches.

Per active client and outer iteration, Q = K: 2K + 1 exchanges; up 2Kd + 1 (K gradients, K products, one inner product);
down K d + 2K d + 2d (w; w and a vector; w and v); K + 1 gradients, K products.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pipeline import projections
from pipeline.config.spec import Auto, NonNegativeInt, param
from pipeline.methods.base import Algorithm, Cost, State, Step
from pipeline.methods.client_weighting.common import estimators, lower, steps, weighted_neumann
from pipeline.methods.client_weighting.common.weighting_context import ETA_X, WEIGHTING, ServerOptions, WeightingContext


@dataclass(frozen=True)
class FedNest(ServerOptions):
    """Lower steps and a Neumann series."""

    eta_w: float = param(1.8, "step size of the model", gt=0, symbol="eta_w")
    eta_x: float = param(0.07, ETA_X, gt=0, symbol="eta_x")
    eta_h: float = param(0.1, "step of the Neumann series, below 1 / (largest curvature)", gt=0, symbol="eta_h")
    inner_steps: int = param(1, "steps of the model per update of the weights", ge=1, symbol="K")
    series_products: NonNegativeInt | Auto = param(
        "auto", "Hessian-vector products of the series; auto = inner_steps", symbol="Q"
    )
    series: Literal["deterministic", "randomised"] = param(
        "deterministic", "the whole series, or one random product of the same mean"
    )


def init(context: WeightingContext) -> State:
    """w = the model's initialisation, x = 1/N."""
    w, x = steps.start(context)
    return State(
        {"w": w, "x": x},
        steps.remembered(context, estimators.remembered(context, w), w, x),
    )


def step(state: State, context: WeightingContext) -> Step:
    """Steps 1..K: the direction of w. Step K + 1: that of x, at the new w."""
    hyper = context.hyper
    if context.inner <= hyper.inner_steps:
        return lower.descend(state, context)

    w, x = state.variables["w"], state.variables["x"]
    products = hyper.inner_steps if hyper.series_products == "auto" else hyper.series_products
    v, cost = weighted_neumann.inverse_product(context, w, x, products)
    active = context.active().to(w.device)
    B = context.batch("gradient", active, context.federation.batch_size)
    fresh = context.oracle.inner_products(w, v, B)
    g_x = -estimators.inner_products(context, state.memory, v, active, fresh)
    n, d = len(active), context.problem.dimension
    cost += Cost(1, floats_up=n, floats_down=2 * d * n, gradients=n)
    direction = steps.weight_direction(context, state.memory, g_x, active)
    return Step({"x": direction}, cost, steps.settling(context, state.memory))


FEDNEST = Algorithm(
    name="fednest",
    summary="steps of the model, then a Neumann series for the weights",
    family=WEIGHTING,
    options=FedNest,
    general_form="fednest_general",
    init=init,
    step=step,
    inner_steps=lambda hyper: hyper.inner_steps + 1,
    step_sizes=lambda hyper: {"w": hyper.eta_w, "x": hyper.eta_x},
    projections={"x": lambda value, hyper: projections.simplex(value)},
    measures=steps.MEASURES,
    client_rows=estimators.ROWS,
)
