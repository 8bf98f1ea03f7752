"""One step on the lower level at given weights:  w <- w - eta_w sum_i x_i grad f_i(w).

What average and oracle_weights do for ever, and what RFHO, FedNest and the exact gradient do K times before each
hypergradient. Per active client: down w (d numbers), up g_i (d numbers), one gradient, one exchange.
"""

from __future__ import annotations

from pipeline import projections
from pipeline.methods.base import Cost, State, Step
from pipeline.methods.client_weighting.common import estimators, steps
from pipeline.methods.client_weighting.common.weighting_context import WeightingContext


def descend(state: State, context: WeightingContext) -> Step:
    """The direction of w: sum_i x_i g_i, by the active estimator, clipped and within the curvature."""
    w, x = state.variables["w"], state.variables["x"]
    active = context.active().to(w.device)
    B = context.batch("gradient", active, context.federation.batch_size)
    sum_g = estimators.weighted_gradient(context, state.memory, w, x, active, B)
    n, d = len(active), context.problem.dimension
    direction = projections.clip(sum_g, context.hyper.clip_norm)
    shortening = steps.shortening(context, state.memory, w, direction)
    if "shortening" in state.memory:  # of a method that differentiates the realised steps
        state.memory["shortening"][context.inner - 1] = shortening
    direction = shortening * direction
    return Step({"w": direction}, Cost(1, floats_up=d * n, floats_down=d * n, gradients=n))
