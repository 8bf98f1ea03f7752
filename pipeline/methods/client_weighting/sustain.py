"""SUSTAIN: one loop, w and x moved together along recursive-momentum (STORM) directions.

Source: Khanduri et al., "A near-optimal algorithm for stochastic bilevel optimization via double-momentum" (2021),
specialised to client weighting; lead specification, section 3.

| paper | here | shape |
|---|---|---|
| z_t = (w_t, x_t), z_(t-1) | `w`, `x`; `previous_w`, `previous_x` | [d], [N] |
| d_w, d_x | `momentum_w`, `momentum_x` | [d], [N] |
| xi_t: every active set (its N/n included) and minibatch of iteration t | the step's own draws | |
| c | `hyper.storm_weight` | (0, 1] |
| K | `hyper.series_products` | |
| eta_w, eta_h, eta_x | `hyper.eta_w`, ... | scalars |

    d <- G(z_t; xi_t) + (1 - c) ( d - G(z_(t-1); xi_t) )          d <- G(z_1; xi_1) at t = 1;   c = 1: plain descent
    w <- w - eta_w d_w ;   x <- Proj_X( x - eta_x d_x )           simultaneously

    G_w(z) = sum_i x_i grad f_i(w)
    G_x(z)_i = - v^T grad f_i(w),   v = eta_h sum_{q=0..K} prod_{j=1..q} (I - eta_h H_j) grad f_0(w)    `neumann`

The SAME sample serves both points: draws are functions of (seed, round), so evaluating both in one step shares them.

Per active client and iteration (t > 1): K + 1 exchanges, K for the series' factors and one for G_w and the inner
products. Up (2K+1)d + 2: two vectors per factor, ONE vector for both G_w (a client that receives its two coefficients
sends their combination, all that d_w needs), two inner products. Down 4(K+1)d + 2: w and a vector, at two points, in
each exchange, and the two coefficients. Under `memory` the server needs the gradient at the new point by itself to
remember it: up d more, down 2 less. 2 gradients, 2K products. At t = 1 there is one point: up (K+1)d + 1, down 2(K+1)d.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from pipeline import projections
from pipeline.config.spec import param
from pipeline.methods.base import Algorithm, Cost, State, Step
from pipeline.methods.client_weighting.common import estimators, steps, weighted_neumann
from pipeline.methods.client_weighting.common.weighting_context import ETA_X, WEIGHTING, ServerOptions, WeightingContext


@dataclass(frozen=True)
class Sustain(ServerOptions):
    """A single loop with recursive momentum."""

    eta_w: float = param(0.6, "step size of the model", gt=0, symbol="eta_w")
    eta_x: float = param(0.07, ETA_X, gt=0, symbol="eta_x")
    eta_h: float = param(0.1, "step of the Neumann series, below 1 / (largest curvature)", gt=0, symbol="eta_h")
    storm_weight: float = param(
        0.5, "share of the fresh estimate in a direction; 1 = plain stochastic descent", gt=0, le=1, symbol="c"
    )
    series_products: int = param(1, "Hessian-vector products of the Neumann series", ge=0, symbol="K")
    series: Literal["deterministic", "randomised"] = param(
        "deterministic", "the whole series, or one random product of the same mean"
    )


def init(context: WeightingContext) -> State:
    """w = the model's initialisation, x = 1/N; the momenta are set at t = 1."""
    w, x = steps.start(context)
    memory = {"momentum_w": w.new_zeros(w.shape), "momentum_x": x.new_zeros(x.shape)}
    memory |= {"previous_w": w.clone(), "previous_x": x.clone()}
    return State(
        {"w": w, "x": x},
        steps.remembered(context, memory | estimators.remembered(context, w), w, x),
    )


def step(state: State, context: WeightingContext) -> Step:
    """Directions of w and x: the two momenta, that of w clipped and within the curvature, that of x scaled."""
    memory, keep = state.memory, 1.0 - context.hyper.storm_weight
    w, x, d_w, d_x = state.variables["w"], state.variables["x"], memory["momentum_w"], memory["momentum_x"]
    two_points = context.round > 1
    if two_points:  # the old point first: `memory` then remembers the new point's gradients
        old_w, old_x, _ = _estimates(context, memory, memory["previous_w"], memory["previous_x"])
    new_w, new_x, cost = _estimates(context, memory, w, x)
    if two_points:
        d_w.copy_(new_w + keep * (d_w - old_w))
        d_x.copy_(new_x + keep * (d_x - old_x))
        cost = _cost_of_two(cost, context, "G" in memory)
    else:
        d_w.copy_(new_w)
        d_x.copy_(new_x)
    memory["previous_w"].copy_(w)
    memory["previous_x"].copy_(x)
    directions = {
        "w": steps.within_curvature(context, memory, w, projections.clip(d_w, context.hyper.clip_norm)),
        "x": steps.weight_direction(context, memory, d_x, context.active().to(w.device)),
    }
    return Step(directions, cost, steps.settling(context, memory))


def _estimates(
    context: WeightingContext, memory: dict[str, Tensor], w: Tensor, x: Tensor
) -> tuple[Tensor, Tensor, Cost]:
    """(G_w(z; xi_t), G_x(z; xi_t), cost at one point)."""
    v, cost = weighted_neumann.inverse_product(context, w, x, context.hyper.series_products)
    active = context.active().to(w.device)
    B = context.batch("gradient", active, context.federation.batch_size)
    sum_g, inner = estimators.gradient_with_inner(context, memory, w, v, x, active, B)
    n, d = len(active), context.problem.dimension
    return sum_g, -inner, cost + Cost(1, floats_up=(d + 1) * n, floats_down=2 * d * n, gradients=n)


def _cost_of_two(one: Cost, context: WeightingContext, remembers: bool) -> Cost:
    """The cost of both points: everything twice but the exchanges and, unless remembered, the gradient sent up."""
    n, d = len(context.active()), context.problem.dimension
    combined = Cost() if remembers else Cost(floats_up=-d * n, floats_down=2 * n)
    return one + Cost(0, one.floats_up, one.floats_down, one.gradients, one.hvps) + combined


SUSTAIN = Algorithm(
    name="sustain",
    summary="single loop with recursive momentum and a Neumann series",
    family=WEIGHTING,
    options=Sustain,
    init=init,
    step=step,
    step_sizes=lambda hyper: {"w": hyper.eta_w, "x": hyper.eta_x},
    projections={"x": lambda value, hyper: projections.simplex(value)},
    measures=steps.MEASURES,
    client_rows=estimators.ROWS,
)
