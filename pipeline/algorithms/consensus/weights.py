"""Client weights for methods with local steps: noisy clients are unlearned in the many-local-steps regime too.

    min_x f_0(w*(x))   s.t.  w*(x) = argmin_w sum_i x_i f_i(w),  x on the simplex

The lead method (`pipeline.algorithms.client_weighting.primal_dual`) descends and ascends

    L_x(w, lambda) = f_0(w) + lambda^T sum_i x_i grad f_i(w) + Gamma sum_i x_i f_i(w)

in w by  eta_w ( grad f_0 + sum_i x_i h_i ) + eta_w Gamma sum_i x_i g_i,  with h_i = Hess f_i lambda. Its last part is
one step of weighted federated averaging. Here it is handed to the clients, who take many: with x_i (theta_i - w) for
-eta_w Gamma x_i g_i, a round is

    theta_i  = K local steps of client i from w
    g_i, h_i   at w, the round's start, on minibatches of their own
    w       <- w + sum_i x_i (theta_i - w) - eta_w ( grad f_0(w) + sum_i x_i h_i )
    lambda  <- Proj( lambda + eta_lambda ( sum_i x_i g_i - rho lambda ) )
    x       <- Proj_X( x - eta_x lambda^T g_i )

To first order theta_i - w = -eta K g_i, so this is the lead method with Gamma = K eta / eta_w, exactly so for K = 1:
where its Gamma is large, many local steps do in one exchange what it needs many for. lambda's fixed point is that of
the lower level's optimality condition, sum_i x_i g_i = rho lambda, taken where no client drifts: at the server's own w.
What local steps add is the usual drift of averaging: heterogeneous clients pull w off sum_i x_i g_i = 0 by
O(eta K), and lambda pulls back. x moves by lambda^T g_i, the mean over both minibatches, as in the lead method.

Absent clients: sums take x_i / max(sum of active x, floor) and an inner product counts N/n-fold, as the estimator
`normalised` of the client-weighting family.

Per active client, beside local training: down lambda, up g_i and h_i (2d) and the inner product on h_i's minibatch (one
number); one gradient and one product.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pipeline.algorithms.base import Cost, State
from pipeline.algorithms.client_weighting import estimators
from pipeline.algorithms.consensus.turn import LocalTurn


def learned(turn: LocalTurn) -> bool:
    """Whether weights move."""
    return turn.weighting and turn.hyper.weights.mode == "learned"


def start(turn: LocalTurn, w: Tensor) -> dict[str, Tensor]:
    """The variables beside w: x = 1/N (plain: as federation.aggregation says; oracle: the oracle's), and lambda = 0 if
    x is learned."""
    mode, everybody = turn.hyper.weights.mode, torch.arange(turn.problem.clients, device=w.device)
    if mode == "learned":
        x = torch.full((len(everybody),), 1.0 / len(everybody), dtype=w.dtype, device=w.device)
        return {"lambda": torch.zeros_like(w), "x": x}
    return {"x": turn.oracle.problem.oracle_weights.to(w) if mode == "oracle" else turn.shares(everybody, w)}


def step_sizes(hyper: Any) -> dict[str, float]:
    """Of the server's variables; lambda and x are there only if weights are learned."""
    sizes = {"w": hyper.eta_g}
    if hasattr(hyper, "weights") and hyper.weights.mode == "learned":
        sizes |= {"lambda": hyper.weights.eta_lambda, "x": hyper.weights.eta_x}
    return sizes


def shares(state: State, turn: LocalTurn, active: Tensor) -> Tensor:
    """c over the active clients, [n]: their weights, which sum to 1 once more if that is not too few."""
    x, floor = state.variables["x"], turn.hyper.weights.active_weight_floor
    return estimators.coefficients("normalised", x, active, floor)


def step(state: State, turn: LocalTurn, active: Tensor) -> tuple[dict[str, Tensor], Cost]:
    """Directions of lambda and x, what the direction of w gains, and the cost beside local training."""
    hyper, oracle, problem = turn.hyper.weights, turn.oracle, turn.oracle.problem
    w, lam = state.variables["w"], state.variables["lambda"]
    c, size = shares(state, turn, active), turn.federation.batch_size
    B, B_product = (problem.draw(turn.stream(purpose), active, size) for purpose in ("gradient", "product"))
    sum_h, inner_h = oracle.weighted_product(w, lam, B_product, c)
    sum_g, inner_g = oracle.gradient_with_inner(w, lam, B, c)
    g_0 = oracle.validation_gradient(w, problem.draw_validation(turn.stream("validation")))
    directions = {
        # The server's optimizer multiplies by eta_g, which is the clients' part of the step, not this one's.
        "w": hyper.eta_w / turn.hyper.eta_g * (g_0 + sum_h),
        "lambda": hyper.dual_damping * lam - sum_g,
        "x": estimators.scatter((inner_g + inner_h) / 2, active, problem.clients),
    }
    n, d = len(active), problem.dimension
    return directions, Cost(0, floats_up=2 * d * n + n, floats_down=d * n, gradients=n, hvps=n)
