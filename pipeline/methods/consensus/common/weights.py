"""Client weights for methods with local steps: noisy clients are unlearned in the many-local-steps regime too.

    min_x f_0(w*(x))   s.t.  w*(x) = argmin_w sum_i x_i f_i(w),  x on the simplex

The lead method (`pipeline.methods.client_weighting.primal_dual`) takes steps on the Lagrangian of the lower level's
optimality condition, sum_i x_i grad f_i(w) = 0. Many local steps lead elsewhere: weighted federated averaging rests
where the clients' changes cancel, and that is its lower level,

    G(w, x) = sum_i x_i (w - theta_i) / (eta_t K) = 0

    L_x(w, lambda) = f_0(w) + lambda^T G(w, x) + augmentation

| symbol | here | shape |
|---|---|---|
| w, x | variables `w`, `x` | [d], [N] |
| lambda | variable `lambda` | [d] |
| theta_i | `trained.models`, K_i local steps of client i from w | [n, d] |
| K | mean of K_i over the active clients; all are equal unless clients train by epochs | scalar |
| G_i = (w - theta_i) / (eta_t K_i) | pseudo-gradient of client i | [d] |
| g_i, h_i = Hess f_i lambda | at w, on a minibatch of their own; only lambda^T g_i and sum_i x_i h_i are formed | |
| eta_w, eta_lambda, eta_x, rho | `hyper.weights.eta_w`, ..., `hyper.weights.dual_damping` | scalars |

The augmentation's descent is the averaging itself, w + eta_g sum_i x_i (theta_i - w) = w - eta_g eta_t K G. The
derivatives of G, sum_i x_i Hess f_i along w and grad f_i along x_i, are taken at the round's start, where they are
right to first order in eta_t K. A round is

    r        = grad f_0(w) + sum_i x_i h_i
    w       <- w - eta_w ( r + Gamma G ) ,                                     Gamma = eta_g eta_t K / eta_w
    lambda  <- Proj( lambda - eta_lambda ( r + Gamma rho lambda ) )            `dual: residual`, the default
    lambda  <- Proj( lambda + eta_lambda ( sum_i x_i G_i - rho lambda ) )      `dual: printed`, as Algorithm 2 has it
    x       <- Proj_X( x - eta_x g_x ) ,   g_x,i = lambda^T g_i

with x's step in the units of `pipeline.methods.client_weighting.common.steps` (`weight_step: scaled`) or as it stands
(`plain`), and r in the dual's step on a positive curvature and shortened to its limit, as there. With K = 1, equal
minibatches and neither weight decay nor clipping, every direction is the lead method's, w's before its limit (but w's
and the printed dual's with FedCM and FedSAM, whose G_i are of other gradients). Weight decay is in G_i and not in g_i
and h_i.

Why the dual steps along the residual. The printed dual collects the pseudo-gradients that move w. At a constant eta,
with equal K_i, undamped and inside the ball, with kappa = eta_lambda / (eta_w Gamma),

    mu_t = lambda_t + kappa (w_t - w_1)   obeys   mu_(t+1) - mu_t = - (eta_lambda / Gamma) r

so lambda = mu - kappa (w_t - w_1): a solver of H lambda = - grad f_0, H = sum_j x_j Hess f_j, minus the path of
training. A round adds eta_lambda G to the path and eta_lambda r / Gamma to the solver, and Gamma grows with K: the more
local steps, the longer the path's share rules. While the model trains, the path ranks clients backward: clients that
agree with the others lose weight. The residual dual is a function of the present (w, lambda, x) alone. No theta_i
enters it, so it has no memory of the path whatever a client does locally (momentum, proximal term, sharp steps), and it
is built from what the clients send anyway.

Stationary points. r + Gamma G = 0 and r + Gamma rho lambda = 0 give

    G = rho lambda ,     lambda = -(H + Gamma rho I)^(-1) grad f_0(w) ;    undamped  G = 0 ,  H lambda = - grad f_0(w).

With equal K_i the printed dual has the same ones, since G is then its sum_i x_i G_i. With different K_i it has not: w
rests where r = - Gamma G, the printed dual where sum_i x_i G_i = rho lambda, and at rho = 0 neither G nor r is 0. The
residual dual still rests where averaging does. K stands in G and in Gamma; another K rescales rho and nothing else, and
undamped it stands nowhere. To first order in eta averaging then counts client i K_i / K times; H and g_x count it once.

Stability, as in the lead method's `dual_step`: at a common curvature h of the clients' losses and a of the Lagrangian's
other terms, with p = eta_g (1 - (1 - eta_t h)^K) for eta_w Gamma h, and q = eta_lambda h in (0, 2), a round contracts
if and only if (2 - p)(2 - q) > 2 eta_w a, for a >= 0. Local steps with eta_t h <= 1 keep p <= 1 at any K and the dual's
limit keeps q <= 1/2, so eta_w a < 3/4 is enough: w needs no limit of its own.

Two other choices were tried with the printed dual and plain steps of x on digits (mlp, 7 noise clients of 10, 20 local
steps, 60 rounds, one seed; plain mean 38 %, oracle weights 91 %, the printed rule 93 %). sum_i x_i g_i in lambda's step
is not 0 where averaging rests, so lambda is drawn to a multiple of the clients' drift: 88 %, and the weight runs to one
client. lambda^T G_i in x's step, which local training has shortened, learns slowly: 65 %, noise clients still hold half
of the weight.

Absent clients: sums take x_i / max(sum of active x, min(floor, n/N)) and an inner product counts N/n-fold, as the
estimator `normalised` of the client-weighting family. Fixed weights have no floor: plain ones are federated averaging
at any participation, and a round whose active clients weigh nothing does not move the model.

Fixed weights may have the server's part too (`server_steps`), as a reference that has seen as much: the same step
with lambda = 0, since weights that do not move need no dual.

Per active client, beside local training, with learned weights: down lambda (d), up h_i (d) and lambda^T g_i (one
number); one product, whose pass yields the inner product too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from pipeline.config.spec import Section, param
from pipeline.methods.base import Cost, State
from pipeline.methods.client_weighting.common import estimators, steps
from pipeline.methods.client_weighting.common.weighting_context import ETA_X
from pipeline.methods.consensus.common.local_context import LocalContext
from pipeline.methods.consensus.common.local_training import Trained


@dataclass(frozen=True)
class LearnedWeights(Section):
    """Client weights x of a method with local steps."""

    mode: Literal["learned", "plain", "oracle"] = param(
        "learned",
        "learned = by the primal-dual rule from the server's validation set; plain = fixed, as federation.aggregation"
        " says; oracle = fixed, chosen knowing which clients are clean",
    )
    dual: Literal["residual", "printed"] = param(
        "residual",
        "residual = the dual steps along its own residual grad f_0 + H lambda; printed = along the weighted"
        " pseudo-gradient: the same stationary points, but it carries the path of training and ranks clients backward"
        " at first",
    )
    weight_step: Literal["scaled", "plain"] = param(
        "scaled",
        "step of the learned weights: scaled = eta_x is in units of a fair share 1/N and of the hypergradient's own"
        " spread, so it fits any data; plain = eta_x times the hypergradient",
    )
    eta_w: float = param(
        0.1, "step size of what the validation set and the dual add to the model", gt=0, symbol="eta_w"
    )
    eta_lambda: float = param(0.1, "step size of the dual variable", gt=0, symbol="eta_lambda")
    eta_x: float = param(0.1, ETA_X, gt=0, symbol="eta_x")
    dual_radius: float = param(5.0, "the dual is kept in this ball", gt=0, symbol="D_lambda")
    dual_damping: float = param(
        0.0,
        "adds eta_g eta K / eta_w times this to every curvature of the dual's system, which bounds it where the loss is"
        " flat; under `dual: printed` it forgets at the rate eta_lambda times this",
        ge=0,
        symbol="rho",
    )
    active_weight_floor: float = param(
        0.3,
        "under partial participation the sum of active clients' learned weights is never taken below this, or n/N if"
        " that is less",
        gt=0,
        le=1,
    )
    server_steps: bool = param(
        False,
        "with fixed weights the server takes its steps on the validation set too, as it always does with learned ones",
    )

    @property
    def is_reference(self) -> bool:
        """Whether the settings ask for weights that are not learned."""
        return self.mode != "learned" or self.server_steps


def learned(context: LocalContext) -> bool:
    """Whether weights move."""
    return context.weighting and context.hyper.weights.mode == "learned"


def server_steps(context: LocalContext) -> bool:
    """Whether the server takes steps on its validation set."""
    return learned(context) or (context.weighting and context.hyper.weights.server_steps)


def start(context: LocalContext, w: Tensor) -> dict[str, Tensor]:
    """The variables beside w: x = 1/N (plain: as federation.aggregation says; oracle: the oracle's), and lambda = 0 if
    x is learned."""
    mode, everyone = context.hyper.weights.mode, torch.arange(context.problem.clients, device=w.device)
    if mode == "learned":
        x = torch.full((len(everyone),), 1.0 / len(everyone), dtype=w.dtype, device=w.device)
        return {"lambda": torch.zeros_like(w), "x": x}
    return {"x": context.oracle.problem.oracle_weights.to(w) if mode == "oracle" else context.shares(everyone, w)}


def memory(context: LocalContext, x: Tensor) -> dict[str, Tensor]:
    """What the scaled step of learned weights remembers. x: the initial weights, [N]."""
    return steps.with_spread(context.hyper.weights.weight_step, {}, x) if learned(context) else {}


def step_sizes(hyper: Any) -> dict[str, float]:
    """Of the server's variables; lambda and x are there only if weights are learned."""
    sizes = {"w": hyper.eta_g}
    if hasattr(hyper, "weights") and hyper.weights.mode == "learned":
        sizes |= {"lambda": hyper.weights.eta_lambda, "x": hyper.weights.eta_x}
    return sizes


def shares(state: State, context: LocalContext) -> Tensor:
    """c over all active clients, [n]: their weights, which sum to 1 once more if that is not too few."""
    x, active = state.variables["x"], context.participants
    floor = context.hyper.weights.active_weight_floor if learned(context) else torch.finfo(x.dtype).tiny
    return estimators.coefficients("normalised", x, active, floor)


def step(state: State, context: LocalContext, active: Tensor, trained: Trained) -> tuple[dict[str, Tensor], Cost]:
    """What the direction of w gains, the directions of lambda and x if they move; and the cost beside training."""
    hyper, problem, w = context.hyper.weights, context.oracle.problem, state.variables["w"]
    # The server's optimizer multiplies by eta_g, which is the clients' part of the step, not this one's.
    eta_w = hyper.eta_w / context.hyper.eta_g
    g_0 = context.oracle.validation_gradient(w, problem.draw_validation(context.stream("validation")))
    if not learned(context):
        return {"w": eta_w * g_0}, Cost(0)
    lam, c = state.variables["lambda"], shares(state, context)
    B = context.oracle.draw(context.stream("product"), context.participants, context.federation.batch_size)
    sum_h, inner = context.oracle.weighted_product(w, lam, B, c)
    r = g_0 + sum_h
    if hyper.dual == "residual":
        gamma = context.hyper.eta_g * context.eta * context.mean(trained.steps) / hyper.eta_w
        g_lambda = steps.dual_direction(lam, sum_h, r + gamma * hyper.dual_damping * lam, hyper.eta_lambda)
    else:
        per_step = c[context.here] / (context.eta * trained.steps)
        g_lambda = hyper.dual_damping * lam - context.total(per_step @ (w - trained.models))
    g_x = estimators.scatter(inner, context.participants, problem.clients)
    directions = {
        "w": eta_w * r,
        "lambda": g_lambda,
        "x": steps.weight_direction(context, state.memory, g_x, context.participants),
    }
    n, d = len(active), problem.dimension
    return directions, Cost(0, floats_up=d * n + n, floats_down=d * n, hvps=n)
