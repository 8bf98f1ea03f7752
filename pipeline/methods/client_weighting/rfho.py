"""RFHO: the derivative of the validation loss through K realised steps on the lower level.

Source: Franceschi, Donini, Frasconi and Pontil, "Forward and reverse gradient-based hyperparameter optimization"
(2017), specialised to client weighting and truncated at K steps; lead specification, section 3.

| paper | here | shape |
|---|---|---|
| w_0, ..., w_(K-1) | rows of `trajectory` | [K, d] |
| a | `a` | [d] |
| Z = dw/dx | `Z`, transposed: row i is dw/dx_i | [N, d] |
| K | `hyper.inner_steps` | |
| eta_w, eta_x | the step size as taken (schedule and `curvature_limit` included), `hyper.eta_x` | scalars |

    w_(k+1) = w_k - eta_w sum_i x_i grad f_i(w_k),   k = 0..K-1              then  x <- Proj_X( x - eta_x g_x )

    reverse     a = grad f_0(w_K); for k = K-1..0:   g_x,i += - eta_w grad f_i(w_k)^T a
                                                     a <- a - eta_w sum_i x_i Hess f_i(w_k) a
    forward     Z = 0; for k = 0..K-1:   Z <- (I - eta_w sum_i x_i Hess f_i(w_k)) Z - eta_w [grad f_1 ... grad f_N](w_k)
                g_x = Z^T grad f_0(w_K)
    realtime    as forward, but Z is carried over from one outer iteration to the next (x changes meanwhile)

All differentiate the REALISED steps: step k's active set, N/n and minibatches are drawn again from their streams, only
the trajectory is kept. Forward equals reverse; it costs N products a step but needs no way back. Under `memory` an
absent client's remembered gradient counts as one that does not depend on w; in reverse its newest one stands in for
every k, so that the two modes agree exactly for K = 1 only.

(Neither the sum of active weights in `normalised` coefficients nor the limit of a step is differentiated.)

The steps must be plain ones: with momentum or Adam the steps taken would differ from those differentiated here.

| mode, per active client and outer iteration | exchanges | up | down | gradients | products |
|---|---|---|---|---|---|
| reverse | 2K | (2K-1)d + K | K d + 2K d (w; w_k and a) | 2K | K-1 |
| forward | K | K d + (K-1) N d | the same (w; Z) | K | (K-1) N |
| realtime | K | K d + K N d (but for Z = 0 at the very start) | the same | K | K N |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from pipeline import projections
from pipeline.config.spec import param
from pipeline.errors import not_allowed
from pipeline.methods.base import Algorithm, Cost, State, Step
from pipeline.methods.client_weighting.common import estimators, lower, steps
from pipeline.methods.client_weighting.common.weighting_context import ETA_X, WEIGHTING, ServerOptions, WeightingContext


@dataclass(frozen=True)
class Rfho(ServerOptions):
    """Differentiation through realised steps."""

    eta_w: float = param(0.6, "step size of the model", gt=0, symbol="eta_w")
    eta_x: float = param(0.07, ETA_X, gt=0, symbol="eta_x")
    inner_steps: int = param(1, "steps of the model that are differentiated through", ge=1, symbol="K")
    mode: Literal["reverse", "forward", "realtime"] = param(
        "reverse",
        "reverse and forward give the same hypergradient (forward costs N products a step); realtime = forward, with"
        " dw/dx carried over from one outer iteration to the next",
    )


def require_plain_steps(name: str, options: Rfho, *_: Any) -> None:
    """UserError for an optimizer other than sgd and for clipping: the derivation contains the step itself."""
    if options.optimizer != "sgd":
        raise not_allowed(
            f"algorithms.{name}.optimizer",
            options.optimizer,
            f"sgd, since {name} differentiates through plain steps of the model",
            "set it to sgd, or choose another algorithm",
        )
    if options.clip_norm:
        raise not_allowed(
            f"algorithms.{name}.clip_norm",
            options.clip_norm,
            f"0, since {name} differentiates through plain steps of the model",
            "set it to 0, or choose another algorithm",
        )


def init(context: WeightingContext) -> State:
    """w = the model's initialisation, x = 1/N. UserError for an optimizer whose steps are not plain ones."""
    require_plain_steps("rfho", context.hyper)
    w, x = steps.start(context)
    rows = (
        {"trajectory": context.hyper.inner_steps} if context.hyper.mode == "reverse" else {"Z": context.problem.clients}
    )
    memory = {name: w.new_zeros(count, context.problem.dimension) for name, count in rows.items()}
    memory["shortening"] = w.new_ones(context.hyper.inner_steps)
    return State(
        {"w": w, "x": x},
        steps.remembered(context, memory | estimators.remembered(context, w), w, x),
    )


def step(state: State, context: WeightingContext) -> Step:
    """Steps 1..K: the direction of w. Step K + 1: that of x, at the new w."""
    reverse, last = context.hyper.mode == "reverse", context.inner > context.hyper.inner_steps
    if last:
        a = context.oracle.validation_gradient(state.variables["w"], context.validation())
        g_x, cost = _backward(state, context, a) if reverse else (state.memory["Z"] @ a, Cost())
        answered = context.at(context.hyper.inner_steps).active().to(a.device)
        direction = steps.weight_direction(context, state.memory, g_x, answered)
        return Step({"x": direction}, cost, steps.settling(context, state.memory))
    if reverse:
        state.memory["trajectory"][context.inner - 1] = state.variables["w"]
        return lower.descend(state, context)
    return _forward(state, context)


def _backward(state: State, context: WeightingContext, a: Tensor) -> tuple[Tensor, Cost]:
    """The way back over the realised steps, from a = grad f_0(w_K): g_x and what it costs."""
    x, d = state.variables["x"], context.problem.dimension
    realised = context.step_sizes["w"] * state.memory["shortening"]
    g_x, cost = torch.zeros_like(x), Cost()
    for k in range(context.hyper.inner_steps, 0, -1):
        w, eta, then = state.memory["trajectory"][k - 1], realised[k - 1], context.at(k)
        active = then.active().to(w.device)
        B, n = then.batch("gradient", active, context.federation.batch_size), len(active)
        if k > 1:
            product, fresh = estimators.weighted_product(context, w, a, x, active, B)
        else:
            fresh = context.oracle.inner_products(w, a, B)
        g_x -= eta * estimators.inner_products(context, state.memory, a, active, fresh)
        cost += Cost(1, floats_up=n, floats_down=2 * d * n, gradients=n)
        if k > 1:
            a = a - eta * product
            cost += Cost(floats_up=d * n, hvps=n)
    return g_x, cost


def _forward(state: State, context: WeightingContext) -> Step:
    """One step of w, and of Z with it."""
    hyper, N, d = context.hyper, context.problem.clients, context.problem.dimension
    w, x, Z = state.variables["w"], state.variables["x"], state.memory["Z"]
    active = context.active().to(w.device)
    B, n = context.batch("gradient", active, context.federation.batch_size), len(active)
    sum_g, G = estimators.all_gradients(context, state.memory, w, x, active, B)
    cost = Cost(1, floats_up=d * n, floats_down=d * n, gradients=n)
    shortening = steps.shortening(context, state.memory, w, sum_g)
    eta = context.step_sizes["w"] * shortening
    if context.inner == 1 and (hyper.mode == "forward" or context.round == 1):
        Z.zero_()
    else:
        products = [estimators.weighted_product(context, w, z, x, active, B)[0] for z in Z]
        Z -= eta * torch.stack(products)
        cost += Cost(floats_up=N * d * n, floats_down=N * d * n, hvps=N * n)
    Z -= eta * G
    return Step({"w": shortening * sum_g}, cost)


RFHO = Algorithm(
    name="rfho",
    summary="differentiation through realised steps of the model",
    family=WEIGHTING,
    options=Rfho,
    check=require_plain_steps,
    init=init,
    step=step,
    inner_steps=lambda hyper: hyper.inner_steps + 1,
    step_sizes=lambda hyper: {"w": hyper.eta_w, "x": hyper.eta_x},
    projections={"x": lambda value, hyper: projections.simplex(value)},
    measures=steps.MEASURES,
    client_rows=estimators.ROWS,
)
