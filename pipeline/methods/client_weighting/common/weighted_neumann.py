"""The inverse Hessian of the weighted loss, applied to grad f_0 by a truncated Neumann series.

    v = eta_h sum_{q=0..Q} prod_{j=1..q} (I - eta_h H_j) grad f_0(w)        H_j = sum_i x_i Hess f_i(w), estimated
      -> [sum_i x_i Hess f_i(w)]^(-1) grad f_0(w)   as Q grows, if eta_h < 1 / (largest eigenvalue)

Q Hessian-vector products, Q + 1 terms. Every factor has its own active set and its own minibatches: with shared ones
the mean of the product is not the product of the means. With H_j = H the error is (I - eta_h H)^(Q+1) H^(-1) grad f_0,
at most (1 - eta_h mu)^(Q+1) of the exact solution's norm.

| series | v | exchanges |
|---|---|---|
| deterministic | the sum | Q |
| randomised | (Q+1) eta_h prod_{j=1..q} (I - eta_h H_j) grad f_0, q uniform on 0..Q: the same in the mean | q |

Shared by FedNest and SUSTAIN.
"""

from __future__ import annotations

from torch import Tensor

from pipeline.methods.base import Cost
from pipeline.methods.client_weighting.common import estimators
from pipeline.methods.client_weighting.common.weighting_context import WeightingContext


def inverse_product(context: WeightingContext, w: Tensor, x: Tensor, products: int) -> tuple[Tensor, Cost]:
    """(v [d], what it costs). products: Q. Per factor and active client: down w and the vector, up one vector."""
    hyper, d = context.hyper, context.problem.dimension
    randomised = hyper.series == "randomised"
    length = context.integer("series", products + 1) if randomised else products
    term = context.oracle.validation_gradient(w, context.validation())
    total, cost = term, Cost()
    for q in range(1, length + 1):
        active = context.active(q).to(w.device)
        B = context.batch("factor", active, context.federation.batch_size, q)
        term = term - hyper.eta_h * estimators.weighted_product(context, w, term, x, active, B)[0]
        total = total + term
        n = len(active)
        cost += Cost(1, floats_up=d * n, floats_down=2 * d * n, hvps=n)
    v = (products + 1) * hyper.eta_h * term if randomised else hyper.eta_h * total
    return v, cost
