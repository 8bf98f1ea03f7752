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
| s_t (ours) | with `gamma_schedule: rising` the schedule's factor of all step sizes, `turn.schedule`; else 1 | scalar |
| rho (ours) | `hyper.dual_damping`; 0 = the paper | scalar |
| (ours) | `hyper.clip_norm`; 0 = the paper | scalar |
| eta_w, eta_lambda, eta_x | `hyper.eta_w`, ... | scalars |
| K | `hyper.inner_steps` | |

For t = 1..T, k = 1..K, with sums estimated over the active clients (`pipeline.algorithms.client_weighting.estimators`):

    g_w      = s_t ( grad f_0(w; B_0) + sum_i x_i h_i ) + Gamma sum_i x_i g_i
    g_lambda =                                                  sum_i x_i g_i - s_t rho lambda
    w <- w - eta_w g_w ;   lambda <- Proj( lambda + eta_lambda g_lambda )          simultaneously
    after k = K:   x <- Proj_X( x - eta_x g_x ),   g_x,i = lambda_K^T g_(K,i)      values BEFORE the K-th update

The text prints g_w's last term outside the sum; the Lagrangian puts it inside, with x_i (specification, section 2,
item 1). g_i and h_i come from independent minibatches B and B', which the analysis needs. The pass that yields h_i also
yields lambda^T grad f_i on B'; the mean with the one on B has half the variance for nothing (`hypergradient_batch:
both`), so that noise clients, which the projection holds at 0 from one side only, wander off half as far. With B' = B
(`product_batch_size: shared`) that pass yields g_i as well, so a client makes one pass instead of two; each direction
stays unbiased by itself, but the errors of g_i and h_i are correlated and lambda^T grad f_i has its full variance.

Damping (ours). Along directions in which H = sum_j x_j Hess f_j is flat nothing ever pulls lambda back: what the first,
crude rounds left there stays, and blurs lambda^T grad f_i between good and bad clients. Subtracting rho/2 ||lambda||^2
from L_x makes the stationary point

    sum_i x_i grad f_i(w) = rho lambda ,      lambda = -(H + Gamma rho I)^(-1) grad f_0(w)

so the dual is the Tikhonov-damped solve, Gamma rho added to every curvature; it forgets at the rate eta_lambda rho.
With lambda maximised out, w minimises f_0 + Gamma sum_i x_i f_i + ||sum_i x_i grad f_i||^2 / (2 rho): rho is the
inverse penalty on the lower level's residual, and rho -> 0 gives back the constraint. The price is a bias of
lambda^T grad f_i against the hypergradient, O(Gamma rho): the derivative of that minimum, less Gamma times that of
sum_i x_i f_i, also holds Gamma (f_i(w_rho) - f_i(w*)), which needs the undamped w*.

Assumptions of Theorem 1: f_i strongly convex, Gamma = (D_lambda L2 + 2 L1)/mu (in the version with appendix: more than
(D_lambda L2 + L1)/mu), D_lambda >= max_x ||lambda*(x)||.
Networks are not convex: Gamma and the ball are then what keeps (w, lambda) stable. w moves by eta_w Gamma along the
clients' gradients and by eta_w along the server's own: a larger Gamma at equal eta_w Gamma is less pulled to the
server's few samples, and the dual grows more slowly, since it is driven by sum_i x_i g_i, about 1/Gamma of the
server's gradient. Gamma rho is the damping in units of curvature. The defaults come from some twenty trials on
digits, MNIST and Fashion-MNIST, judged by accuracy, that on the test set too, and weights of the whole run.

Rising Gamma (ours). Damping also pulls w from w* by O(rho), towards the minimum of f_0. As a penalty method raises its
penalty, so here Gamma_t = Gamma / s_t and rho_t = s_t rho; w's scheduled step is taken times s_t once more, so that w
moves along the clients' gradients as before. These are the factors s_t above. The stationary point under s is

    sum_i x_i grad f_i(w) = s rho lambda ,    lambda = -(H + Gamma rho I)^(-1) grad f_0(w)

so w's distance to w* falls with s. The dual stays the same damped solve, with the bias O(Gamma rho) that this has by
itself, but follows at s times the speed of a constant Gamma. With adam, whose steps do not depend on a
direction's length, only Gamma_t matters.

Clipping (ours). Where a network leaves its first plateau, curvatures and with them h_i grow a hundredfold within a
few rounds; a step along them can leave it dead for good: one run of eight ended so on digits at participation 0.5.
The direction of w, factors s_t included, is therefore shortened to `clip_norm`, which changes no stationary point of
exact directions.
"""

from __future__ import annotations

import torch

from pipeline import projections
from pipeline.algorithms.base import Algorithm, Cost, State, Step
from pipeline.algorithms.client_weighting import estimators
from pipeline.algorithms.client_weighting.turn import WeightingTurn
from pipeline.params import PrimalDual


def init(turn: WeightingTurn) -> State:
    """w = the model's initialisation, lambda = 0 (or one gradient step), x = 1/N; memory of answers if in use."""
    problem, hyper = turn.problem, turn.hyper
    w = problem.initial(turn.seed)
    lam = torch.zeros_like(w)
    if hyper.dual_init == "gradient":
        lam = projections.ball(-turn.oracle.validation_gradient(w, turn.validation()), hyper.dual_radius)
    x = torch.full((problem.clients,), 1.0 / problem.clients, dtype=w.dtype, device=w.device)
    memory = {"hypergradient": torch.zeros_like(x)}
    if estimators.in_force(turn, w, vectors=2) == "memory":
        memory["G"] = w.new_zeros(problem.clients, problem.dimension)
        memory["H"] = torch.zeros_like(memory["G"])
    return State({"w": w, "lambda": lam, "x": x}, memory)


def step(state: State, turn: WeightingTurn) -> Step:
    """Inner step k: directions for w and lambda, and for x when k = K."""
    hyper, oracle, problem = turn.hyper, turn.oracle, turn.problem
    w, lam, x = (state.variables[name] for name in ("w", "lambda", "x"))
    active = turn.active().to(w.device)
    n, d = len(active), problem.dimension

    shared = hyper.product_batch_size == "shared"
    B = turn.batch("gradient", active, turn.federation.batch_size)
    B_product = B if shared else turn.batch("product", active, _product_batch_size(turn))
    wants_x = turn.inner == _hypergradient_step(turn)

    estimator = estimators.in_force(turn, w, vectors=2)
    if estimator == "memory":
        G, H = state.memory["G"], state.memory["H"]
        if shared:
            G[active], H[active] = oracle.gradients_and_products(w, lam, B)
        else:
            G[active] = oracle.gradients(w, B)
            H[active] = oracle.products(w, lam, B_product)
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

    g_0 = oracle.validation_gradient(w, turn.validation())
    # `auto` is up to the data set; where none has decided, it is the paper's: no clipping, a constant Gamma.
    clip_norm = 0.0 if hyper.clip_norm == "auto" else hyper.clip_norm
    s = turn.schedule if hyper.gamma_schedule == "rising" else 1.0
    g_w = projections.clip(s * (g_0 + sum_h) + hyper.gamma * sum_g, clip_norm)
    directions = {"w": g_w, "lambda": s * hyper.dual_damping * lam - sum_g}
    if g_x is not None:
        state.memory["hypergradient"].copy_(g_x)
    if turn.inner == hyper.inner_steps:
        directions["x"] = state.memory["hypergradient"]

    # Per active client: down w and lambda, up g_i and h_i; a product-batch inner product is one more number.
    from_product = hyper.hypergradient_batch != "gradient" and estimator != "memory" and not shared
    scalars = n if wants_x and from_product else 0
    cost = Cost(1, floats_up=2 * d * n + scalars, floats_down=2 * d * n, gradients=n, hvps=n)
    return Step(directions, cost)


def _product_batch_size(turn: WeightingTurn) -> int:
    size = turn.hyper.product_batch_size
    return turn.federation.batch_size if size == "auto" else size


def _hypergradient_step(turn: WeightingTurn) -> int:
    """k-hat: K as in the listing, or uniform on 1..K as in the theory."""
    K = turn.hyper.inner_steps
    if turn.hyper.hypergradient_iterate == "last":
        return K
    return 1 + turn.at(0).integer("hypergradient iterate", K)  # one draw for all K inner steps


PRIMAL_DUAL = Algorithm(
    turn=WeightingTurn,
    init=init,
    step=step,
    inner_steps=lambda hyper: hyper.inner_steps,
    step_sizes=lambda hyper: {"w": hyper.eta_w, "lambda": hyper.eta_lambda, "x": hyper.eta_x},
    projections={
        "lambda": lambda value, hyper: projections.ball(value, hyper.dual_radius),
        "x": lambda value, hyper: projections.simplex(value),
    },
    client_rows=frozenset({"G", "H"}),
    reports={"dual_norm": lambda variables: torch.linalg.vector_norm(variables["lambda"])},
)

__all__ = ["PRIMAL_DUAL", "PrimalDual"]
