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
    then        v = eta_h sum_{q=0..Q} prod_{j=1..q} (I - eta_h H_j) grad f_0(w)        `neumann.inverse_product`
                x <- Proj_X( x - eta_x g_x ),   g_x,i = - v^T grad f_i(w)

Every lower step, every factor and the last line have their own active set and minibatches.

Per active client and outer iteration, Q = K: 2K + 1 exchanges; up 2Kd + 1 (K gradients, K products, one inner product);
down K d + 2K d + 2d (w; w and a vector; w and v); K + 1 gradients, K products.
"""

from __future__ import annotations

from pipeline import projections
from pipeline.algorithms.base import Algorithm, Cost, State, Step
from pipeline.algorithms.client_weighting import estimators, lower, neumann, steps
from pipeline.algorithms.client_weighting.turn import WeightingTurn
from pipeline.params import FedNest


def init(turn: WeightingTurn) -> State:
    """w = the model's initialisation, x = 1/N."""
    w, x = lower.start(turn)
    return State(
        {"w": w, "x": x},
        steps.remembered(turn.hyper.weight_step, estimators.remembered(turn, w), x) | steps.curvature(turn, w),
    )


def step(state: State, turn: WeightingTurn) -> Step:
    """Steps 1..K: the direction of w. Step K + 1: that of x, at the new w."""
    hyper = turn.hyper
    if turn.inner <= hyper.inner_steps:
        return lower.descend(state, turn)

    w, x = state.variables["w"], state.variables["x"]
    products = hyper.inner_steps if hyper.series_products == "auto" else hyper.series_products
    v, cost = neumann.inverse_product(turn, w, x, products)
    active = turn.active().to(w.device)
    B = turn.batch("gradient", active, turn.federation.batch_size)
    fresh = turn.oracle.inner_products(w, v, B)
    g_x = -estimators.inner_products(turn, state.memory, v, active, fresh)
    n, d = len(active), turn.problem.dimension
    cost += Cost(1, floats_up=n, floats_down=2 * d * n, gradients=n)
    direction = steps.weight_direction(turn, state.memory, g_x, active)
    return Step({"x": direction}, cost, steps.settling(turn, state.memory))


FEDNEST = Algorithm(
    turn=WeightingTurn,
    init=init,
    step=step,
    inner_steps=lambda hyper: hyper.inner_steps + 1,
    step_sizes=lambda hyper: {"w": hyper.eta_w, "x": hyper.eta_x},
    projections={"x": lambda value, hyper: projections.simplex(value)},
    measures=steps.MEASURES,
    client_rows=estimators.ROWS,
)

__all__ = ["FEDNEST", "FedNest"]
