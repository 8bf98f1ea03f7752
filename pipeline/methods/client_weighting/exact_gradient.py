"""Hypergradient descent with the exact inverse Hessian: the reference of the toy problem.

"GD" of the lead paper: K warm-started steps on the lower level, then one dense solve at that w.

| paper | here | shape |
|---|---|---|
| w, x | `w`, `x` | [d], [N] |
| sum_j x_j Hess f_j(w), estimated | `H` | [d, d] |
| v = H^(-1) grad f_0(w) | `v` | [d] |
| K | `hyper.inner_steps` | |
| eta_w, eta_x | `hyper.eta_w`, `hyper.eta_x` | scalars |

    K times     w <- w - eta_w sum_i x_i grad f_i(w)                                 `lower.descend`
    then        x <- Proj_X( x - eta_x g_x ),   g_x,i = - grad f_i(w)^T H^(-1) grad f_0(w)

The Hessian is dense (d Hessian-vector products along the unit vectors), so d must be small. With noisy Hessians the
inverse of the mean is not the mean of the inverse: the method is biased then, as the paper observes.

Per active client and outer iteration: K + 2 exchanges (the Hessian needs one, v^T grad f_i another); up
K d + d(d+1)/2 + 1, down K d + d + 2d; K + 1 gradients, d products.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pipeline import projections
from pipeline.config.spec import param
from pipeline.errors import UserError
from pipeline.methods.base import Algorithm, Cost, State, Step
from pipeline.methods.client_weighting.common import estimators, lower, steps
from pipeline.methods.client_weighting.common.weighting_context import ETA_X, WEIGHTING, ServerOptions, WeightingContext
from pipeline.models import MODELS


@dataclass(frozen=True)
class ExactGradient(ServerOptions):
    """Dense inverse Hessian, for small models."""

    eta_w: float = param(0.03, "step size of the model", gt=0, symbol="eta_w")
    eta_x: float = param(0.1, ETA_X, gt=0, symbol="eta_x")
    inner_steps: int = param(1, "steps of the model per update of the weights", ge=1, symbol="K")


LARGEST = 2000


def check(name: str, options: ExactGradient, params: Any, problem: str) -> None:
    """UserError for a network of ours on images, where each has thousands of parameters; of own data `init` looks."""
    if problem != "toy" and params.model.name in MODELS and not params.data.dataset.own:
        raise UserError(
            f"algorithm: {name} needs a dense Hessian, so at most {LARGEST} model parameters; {params.model.name} on"
            f" {params.data.name} has more. Fix: another algorithm, such as primal_dual; or data.name: toy."
        )


def init(context: WeightingContext) -> State:
    """w = the model's initialisation, x = 1/N. UserError where a dense Hessian is out of reach."""
    if context.problem.dimension > LARGEST:
        raise UserError(
            f"algorithm: exact_gradient needs a dense Hessian, so at most {LARGEST} model parameters, and the model has"
            f" {context.problem.dimension}. Fix: another algorithm, such as primal_dual; this one is for the toy"
            " problem."
        )
    w, x = steps.start(context)
    return State(
        {"w": w, "x": x},
        steps.remembered(context, estimators.remembered(context, w), w, x),
    )


def step(state: State, context: WeightingContext) -> Step:
    """Steps 1..K: the direction of w. Step K + 1: that of x, at the new w."""
    if context.inner <= context.hyper.inner_steps:
        return lower.descend(state, context)

    w, x, d = state.variables["w"], state.variables["x"], context.problem.dimension
    size = context.federation.batch_size
    measured = context.active(1).to(w.device)
    H = _hessian(context, w, x, measured)
    # The least-norm solution: H is singular where the active clients' weights are all zero.
    v = torch.linalg.pinv(H, hermitian=True) @ context.oracle.validation_gradient(w, context.validation())
    active = context.active().to(w.device)
    fresh = context.oracle.inner_products(w, v, context.batch("gradient", active, size))
    g_x = -estimators.inner_products(context, state.memory, v, active, fresh)
    m, n = len(measured), len(active)
    cost = Cost(1, floats_up=d * (d + 1) // 2 * m, floats_down=d * m, hvps=d * m)
    cost += Cost(1, floats_up=n, floats_down=2 * d * n, gradients=n)
    direction = steps.weight_direction(context, state.memory, g_x, active)
    return Step({"x": direction}, cost, steps.settling(context, state.memory))


def _hessian(context: WeightingContext, w: Tensor, x: Tensor, active: Tensor) -> Tensor:
    """sum_i x_i Hess f_i(w), column by column on one minibatch, [d, d]."""
    B = context.batch("product", active, context.federation.batch_size)
    units = torch.eye(len(w), dtype=w.dtype, device=w.device)
    return torch.stack([estimators.weighted_product(context, w, unit, x, active, B)[0] for unit in units])


EXACT_GRADIENT = Algorithm(
    name="exact_gradient",
    summary="reference for the toy problem: dense inverse Hessian",
    family=WEIGHTING,
    options=ExactGradient,
    check=check,
    init=init,
    step=step,
    inner_steps=lambda hyper: hyper.inner_steps + 1,
    step_sizes=lambda hyper: {"w": hyper.eta_w, "x": hyper.eta_x},
    projections={"x": lambda value, hyper: projections.simplex(value)},
    measures=steps.MEASURES,
    client_rows=estimators.ROWS,
)
