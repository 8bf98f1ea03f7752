"""Primal-dual client weighting, the lead method.

Source: "Efficient Weighting and Optimization in Federated Learning: A Primal-Dual Approach", Algorithms 1 (the
clients) and 2 (the server); lead specification, section 2.

    L_x(w, lambda) = f_0(w) + lambda^T sum_i x_i grad f_i(w) + Gamma sum_i x_i f_i(w)

w descends and lambda ascends this augmented Lagrangian of the lower level's optimality condition; at its stationary
point lambda* = -[sum_j x_j Hess f_j(w*)]^(-1) grad f_0(w*), so that  d f_0(w*(x)) / d x_i = lambda*^T grad f_i(w*):
one inner product per client instead of an inverse Hessian.

| paper | here | shape |
|---|---|---|
| w_(t,k) | `w` | [d] |
| lambda_(t,k) | `lam` (variable "lambda") | [d] |
| x_t | `x` | [N] |
| A_(t,k), n | `active`, `n` | [n] |
| g_i, h_i = Hess f_i lambda | rows of `G`, `H`; never formed by the fused pass | [n, d] |
| Gamma, D_lambda | `hyper.gamma`, `hyper.dual_radius` | scalars |
| s_t (ours) | with `gamma_schedule: rising` the schedule's factor of all steps, `context.schedule`; else 1 | scalar |
| rho (ours) | `hyper.dual_damping`; 0 = the paper | scalar |
| eta_w, eta_lambda, eta_x | `hyper.eta_w`, ... | scalars |
| K | `hyper.inner_steps` | |

For t = 1..T, k = 1..K, with sums estimated over the active clients (`common.estimators`),
H = sum_i x_i Hess f_i(w), G = sum_i x_i g_i and the residual r of the dual's linear system H lambda = - grad f_0:

    r        = s_t ( grad f_0(w; B_0) + sum_i x_i h_i )
    w       <- w - eta_w ( r + Gamma G )
    lambda  <- Proj( lambda - eta_lambda ( r + s_t Gamma rho lambda ) )     `dual: residual`, the default
    lambda  <- Proj( lambda + eta_lambda ( G - s_t rho lambda ) )           `dual: printed`, Algorithm 2
    after k = K:   x <- Proj_X( x - eta_x g_x ),   g_x,i = lambda_K^T g_(K,i)      values BEFORE the K-th update

w and lambda move simultaneously; how long each step may be, and the units of x's, are those of `common.steps`. The text
prints g_w's last term outside the sum; the Lagrangian puts it inside, with x_i (specification, section 2, item 1). g_i
and h_i come from independent minibatches B and B', which the analysis needs. The pass that yields h_i also yields
lambda^T grad f_i on B'. Averaging the one on B with it (`hypergradient_batch: both`) costs one number and halves the
part of the variance that comes from the minibatches; the part that comes from the draw of clients, the larger one under
`paper` at participation 0.5, is common to both. With B' = B (`product_batch_size: shared`) that pass yields g_i as
well, so a client makes one pass instead of two; each direction stays unbiased by itself, but the errors of g_i and h_i
are correlated and lambda^T grad f_i has its full variance.

Why the dual steps along the residual, where the iteration rests and how fast it gets there, damping and a rising Gamma:
`common.dual_step`.

Assumptions of Theorem 1: f_i strongly convex, Gamma = (D_lambda L2 + 2 L1)/mu (in the version with appendix: more than
(D_lambda L2 + L1)/mu), D_lambda >= max_x ||lambda*(x)||. Networks are not convex: Gamma, the ball and the limited steps
are then what keeps (w, lambda) stable. w moves by eta_w Gamma along the clients' gradients and by eta_w along the
server's own: a larger Gamma at equal eta_w Gamma is less pulled to the server's few samples.

How the defaults were chosen: docs/results.md, "The README's table".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from pipeline import projections
from pipeline.config.spec import Auto, PositiveInt, param
from pipeline.methods.base import Algorithm, Cost, State, Step
from pipeline.methods.client_weighting.common import dual_step, estimators, steps
from pipeline.methods.client_weighting.common.weighting_context import ETA_X, WEIGHTING, ServerOptions, WeightingContext


@dataclass(frozen=True)
class PrimalDual(ServerOptions):
    """The lead method."""

    dual: Literal["residual", "printed"] = param(
        "residual",
        "residual = the dual steps along its own residual grad f_0 + H lambda; printed = along the weighted gradient,"
        " as the paper prints it: the same stationary points, but it carries the path of training and ranks clients"
        " backward at first",
    )
    eta_w: float = param(0.4, "step size of the model", gt=0, symbol="eta_w")
    eta_lambda: float = param(0.1, "step size of the dual variable", gt=0, symbol="eta_lambda")
    eta_x: float = param(0.07, ETA_X, gt=0, symbol="eta_x")
    gamma: float = param(
        4.0, "augmentation: how strongly w also descends the weighted training loss", gt=0, symbol="Gamma"
    )
    gamma_schedule: Literal["rising", "constant"] = param(
        "constant",
        "rising = Gamma / s, s the schedule's factor, at the same step along the weighted training loss, for a model"
        " nearer that loss's minimum; constant = the paper",
    )
    dual_radius: float = param(
        5.0,
        "the dual is kept in this ball; too small biases the weights, too large may swing",
        gt=0,
        symbol="D_lambda",
    )
    dual_damping: float = param(
        0.0,
        "adds gamma times this to every curvature of the dual's system, which bounds it where the loss is flat;"
        " 0 = the paper",
        ge=0,
        symbol="rho",
    )
    dual_init: Literal["zero", "gradient"] = param(
        "zero", "initial dual: zero, or -grad f_0(w_1) cut to the ball (one step of the linear solve)"
    )
    inner_steps: int = param(1, "updates of (w, lambda) per update of the weights", ge=1, symbol="K")
    product_batch_size: PositiveInt | Auto | Literal["shared"] = param(
        "auto",
        "minibatch of the Hessian-vector product; auto = federation.batch_size; shared = the gradient's own minibatch,"
        " one pass for both, against the theory's independence",
        symbol="B'",
    )
    hypergradient_iterate: Literal["last", "random"] = param(
        "last",
        "inner step whose lambda and gradients move the weights: last as in the listing, random as in the theory",
    )
    hypergradient_batch: Literal["both", "gradient", "product"] = param(
        "both",
        "minibatch of lambda^T grad f_i: gradient = the gradient's, as in the listing; product = the product's, also"
        " unbiased; both = the mean of the two, half the minibatches' variance for one more number sent;"
        " memory always uses its stored gradients, and with product_batch_size: shared there is but one",
    )


def init(context: WeightingContext) -> State:
    """w = the model's initialisation, lambda = 0 (or one gradient step), x = 1/N; memory of answers if in use."""
    problem, hyper = context.problem, context.hyper
    w, x = steps.start(context)
    lam = torch.zeros_like(w)
    if hyper.dual_init == "gradient":
        lam = projections.ball(-context.oracle.validation_gradient(w, context.validation()), hyper.dual_radius)
    memory = {"hypergradient": torch.zeros_like(x)}
    if estimators.active_estimator(context, w, vectors=2) == "memory":
        memory["G"] = w.new_zeros(problem.clients, problem.dimension)
        memory["H"] = torch.zeros_like(memory["G"])
    return State(
        {"w": w, "lambda": lam, "x": x},
        steps.remembered(context, memory, w, x),
    )


def step(state: State, context: WeightingContext) -> Step:
    """Inner step k: directions for w and lambda, and for x when k = K."""
    hyper, oracle, problem = context.hyper, context.oracle, context.problem
    w, lam, x = (state.variables[name] for name in ("w", "lambda", "x"))
    active = context.active().to(w.device)
    n, d = len(active), problem.dimension

    shared = hyper.product_batch_size == "shared"
    B = context.batch("gradient", active, context.federation.batch_size)
    B_product = B if shared else context.batch("product", active, context.batch_size(hyper.product_batch_size))
    wants_x = context.inner == _hypergradient_step(context)

    estimator = estimators.active_estimator(context, w, vectors=2)
    if estimator == "memory":
        G, H = state.memory["G"], state.memory["H"]
        if shared:
            G[active], H[active] = oracle.gradients_and_products(w, lam, B)
        else:
            G[active], H[active] = oracle.gradients(w, B), oracle.products(w, lam, B_product)
        sum_g, sum_h = oracle.total(x @ G), oracle.total(x @ H)
        g_x = oracle.total(G @ lam) if wants_x else None
    else:
        c = estimators.coefficients(estimator, x, active, hyper.active_weight_floor)
        if shared:
            sum_g, sum_h, inner = oracle.gradient_and_product(w, lam, B, c)
        else:
            sum_h, inner = oracle.weighted_product(w, lam, B_product, c)
            if wants_x and hyper.hypergradient_batch != "product":
                sum_g, inner_g = oracle.gradient_with_inner(w, lam, B, c)
                inner = inner_g if hyper.hypergradient_batch == "gradient" else (inner + inner_g) / 2
            else:
                sum_g = oracle.weighted_gradient(w, B, c)
        g_x = estimators.scatter(inner, active, problem.clients) if wants_x else None

    g_0 = oracle.validation_gradient(w, context.validation())
    s = context.schedule if hyper.gamma_schedule == "rising" else 1.0
    r = s * (g_0 + sum_h)
    g_w = projections.clip(r + hyper.gamma * sum_g, hyper.clip_norm)
    g_lambda = dual_step.direction(context, lam, sum_g, sum_h, r, s)
    directions = {"w": steps.within_curvature(context, state.memory, w, g_w, hyper.gamma), "lambda": g_lambda}
    if g_x is not None:
        state.memory["hypergradient"].copy_(g_x)
    report = None
    if context.inner == hyper.inner_steps:
        report = steps.settling(context, state.memory)
        directions["x"] = steps.weight_direction(context, state.memory, state.memory["hypergradient"], active)

    # Per active client: down w and lambda, up g_i and h_i; a product-batch inner product is one more number.
    from_product = hyper.hypergradient_batch != "gradient" and estimator != "memory" and not shared
    scalars = n if wants_x and from_product else 0
    cost = Cost(1, floats_up=2 * d * n + scalars, floats_down=2 * d * n, gradients=n, hvps=n)
    return Step(directions, cost, report)


def _hypergradient_step(context: WeightingContext) -> int:
    """k-hat: K as in the listing, or uniform on 1..K as in the theory."""
    K = context.hyper.inner_steps
    if context.hyper.hypergradient_iterate == "last":
        return K
    return 1 + context.at(0).integer("hypergradient iterate", K)  # one draw for all K inner steps


PRIMAL_DUAL = Algorithm(
    name="primal_dual",
    summary="the lead method: primal-dual client weighting",
    family=WEIGHTING,
    options=PrimalDual,
    init=init,
    step=step,
    inner_steps=lambda hyper: hyper.inner_steps,
    step_sizes=lambda hyper: {"w": hyper.eta_w, "lambda": hyper.eta_lambda, "x": hyper.eta_x},
    projections={
        "lambda": lambda value, hyper: projections.ball(value, hyper.dual_radius),
        "x": lambda value, hyper: projections.simplex(value),
    },
    measures=steps.MEASURES,
    client_rows=frozenset({"G", "H"}),
    reports={"dual_norm": lambda variables: torch.linalg.vector_norm(variables["lambda"])},
)
