"""Steps that need no tuning: of the weights in units of their signal, of model and dual within the curvature.

Shared by the methods of this family (`algorithms.<name>.weight_step`, `algorithms.<name>.curvature_limit`); the steps
of weights and dual also by the methods with local steps (`pipeline.methods.consensus.common.weights`).

| symbol | here | shape |
|---|---|---|
| g_x, the hypergradient | `g_x` | [N] |
| known clients: those with an answer to go by | memory `known` | [N], 0 or 1 |
| v_t | memory `spread` | scalar |
| m_t | memory `pull` | [N] |
| c | `hyper.curvature_limit` | scalar |
| kappa_t, pi_t | memory `curvature`, `overshoot` | scalars |
| d_t, the model's direction before it is shortened | memory `last direction`, with `last w` | [d] |
| p, the participation | `federation.participation` | scalar |

**Weights** (`weight_step: scaled`). A hypergradient has the units of a loss, and its size depends on the features, the
network, the method and the stage of training; only differences between clients move x, since the projection onto the
simplex ignores a common shift. With the deviation  D_i = g_x,i - mean of g_x over the known clients  (0 for others)

    v_t = v_(t-1) + min(1, 2/t) ( (1/N) sum_i D_i^2 - v_(t-1) )
    x  <- Proj_X( x - eta_x D / (N sqrt(t v_t)) )

With 1/t for 2/t, v_t is the mean over all rounds and this is AdaGrad with one scalar for all coordinates (Streeter and
McMahan, 2010; Ward, Wu and Bottou, 2019); 2/t looks back over about half of the rounds, so that the large
hypergradients of the first ones, or while a network leaves a plateau, do not shorten all later steps. The step does not
change when g_x is multiplied by a constant, and N enters through the fair share 1/N alone. At a constant schedule a
client whose D_i stays at k times the root mean square moves by 2 k eta_x sqrt(T) fair shares in T rounds, and pure
noise moves it by about eta_x sqrt(ln T): where clients do not differ, weights stay where they are. The factor of D is
positive and common to all clients, so the stationary points are those of the plain step. Equal clients differ by
rounding errors alone, which must not become the unit: then D = 0.

**Whether the weights have settled.** m_t averages the pull P_t = D / sqrt(v_t), the deviations in units of their
root mean square, over about the last quarter of the rounds: m_t = m_(t-1) + min(1, 4/t) (P_t - m_(t-1)).
If training went on at the full step for h = max(t, 100) rounds and the pull stayed, x would go to

    x' = Proj_X( x - eta_x (2/N) (sqrt(t + h) - sqrt(t)) m_t ) ,     moving the weight  (1/2) ||x' - x||_1 .

The weights have settled if that is at most a fifth of all weight. What is held at 0, or in balance, does not count; nor
does the schedule, which brings any run to rest. Pure noise in m_t moves about a tenth.

**Model.** A step along the unit vector u is shortened where the curvature there would make it overshoot:

    kappa_t = max( |u^T Hess f_0(w) u| , 0.7 kappa_(t-1) ) ,        step size before the schedule <= c / kappa_t

With c = 2 no step along the gradient of a quadratic raises it. Hess f_0 u is one product on the server's own samples:
no client computes or sends anything for it. f_0 stands in for the weighted training loss, which has the same network
and, where the weights are right, the same distribution (MNIST, LeNet-5, rounds 195 to 244: the two curvatures differ by
12 % on average, by 31 % at most). The curvature along a single direction may pass through 0: between steps of curvature
25 such a direction would be followed without a limit, and has ended trainings. So the largest curvature is forgotten by
degrees, and the step grows to 1/0.7 of itself at most from one to the next, as step sizes that adapt to local curvature
do elsewhere (by up to the root of 2: Malitsky and Mishchenko, 2020). The schedule shortens what the limit leaves, and
brings limited runs to rest too.

The clients' curvature may exceed the server's many times: one client's features are on another scale, or the loss is
squared, so that its curvature does not fall as the model fits. What the last move has met is seen in how the direction
changed along it, over all clients and with the dual's part, and costs no product (eta_w with the schedule here):

    pi_t = max( eta_w <w_t - w_(t-1), d_t - d_(t-1)> / ||w_t - w_(t-1)||^2 , 0.7^q pi_(t-1) )
    the step is shortened by  c q / pi_t  where that is below 1

q = 1. After a step of sgd shortened by f, the quotient is (1 - <d_t, d_(t-1)> / ||d_(t-1)||^2) / f: with c = 2 a full
step is shortened next time only where the direction turned around and kept its length. Directions that are mere noise
give 1/f, and the step doubles until it is whole. A limit of 3/2 would leave more room for the dual ("Stability" in
`dual_step`), but the noise of minibatches then keeps steps short: digits, LeNet-5, ended at 90.8 % instead of 96.7.
With c of 1 and 1/2 in both limits the federations of the search (`experiments/trust`) end at 93.1 and 86.7 % on their
selection sets, where 2 has 94.5.

With remembered answers q = sqrt(p): gradients that are tau rounds old are stable for steps of h up to
2 sin( pi / (2 (2 tau + 1)) ), with tau = (1 - p)/p on average, and a client's curvature shows only when it answers.
Among q = p^a in the limit and p^b in what is forgotten, with a, b of 0, 1/2 and 1, one half for both was the one that
kept all runs finite and cost no accuracy elsewhere (one regression and one classification, one client's features times
10 or -3, participation .5 and .1; the federations of the search at .1; then with c = 3/2, and finite with 2 as well).

**Dual.** Its residual holds H lambda, so the curvature along lambda costs nothing: step size <= ||lambda|| / (2 ||H
lambda||). Where lambda^T H lambda < 0, as networks have it while they leave a plateau, the dual would grow
exponentially along lambda; there the residual is lifted by (||H lambda|| / ||lambda|| - lambda^T H lambda /
||lambda||^2) lambda, which makes the quotient positive and of the same size.

The limits keep each step by itself from overshooting. Together they do not prove that the primal-dual iteration is
stable; its condition is in `pipeline.methods.client_weighting.common.dual_step`, "Stability". A shortened direction
vanishes where the direction does, and a positive definite H lifts nothing, so no stationary point of the convex problem
moves. With `optimizer: adam`, whose steps do not depend on a direction's length, the model's limit has no effect.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from pipeline import projections
from pipeline.methods.base import StepContext
from pipeline.methods.client_weighting.common.weighting_context import WeightingContext

Memory = dict[str, Tensor]
KEPT = 0.7
"""What is kept of the largest curvature from one step of the model to the next."""
DUAL_LIMIT = 0.5
"""The longest step of the dual times the curvature along it."""
SHORTEST = 100
"""Rounds within which any run's weights could still move."""
SETTLED = 0.2
"""The most weight that may still move."""
ROUNDING = 100.0
"""Deviations of at most this many units in the last place of the largest g_x are rounding errors and count as 0."""


def start(context: WeightingContext) -> tuple[Tensor, Tensor]:
    """Where every method that learns weights starts: w = the model's initialisation, x = 1/N."""
    w, N = context.problem.initial(context.seed), context.problem.clients
    return w, torch.full((N,), 1.0 / N, dtype=w.dtype, device=w.device)


def remembered(context: WeightingContext, memory: Memory, w: Tensor, x: Tensor) -> Memory:
    """A method's initial memory with what the steps of weights and model need. memory: the rest of it. w: [d], x: [N],
    the initial ones."""
    return with_spread(context.hyper.weight_step, memory, x) | curvature(context, w)


def with_spread(weight_step: str, memory: Memory, x: Tensor) -> Memory:
    """The memory with what the scaled step of the weights needs; where it holds the clients' last answers, a client is
    unknown until it has given one. x: the initial weights, [N]."""
    if weight_step != "scaled":
        return memory
    known = torch.full_like(x, 0.0 if "G" in memory else 1.0)
    return memory | {"spread": x.new_zeros(()), "known": known, "pull": torch.zeros_like(known)}


def weight_direction(context: StepContext, memory: Memory, g_x: Tensor, active: Tensor) -> Tensor:
    """The direction of x, [N]: g_x itself, or its deviations in units of their spread. active: who answered, [n]."""
    if "spread" not in memory:
        return context.neutral(g_x)
    g_x = context.neutral(g_x)
    known, N, t = memory["known"], len(g_x), context.round
    known[active] = 1.0
    deviation = known * (g_x - (known @ g_x) / known.sum())
    limits = torch.finfo(g_x.dtype)
    differ = deviation.abs().amax() > ROUNDING * limits.eps * g_x.abs().amax()
    deviation = torch.where(differ, deviation, torch.zeros_like(deviation))
    memory["spread"] += min(1.0, 2 / t) * (deviation.square().mean() - memory["spread"])
    pull = deviation / memory["spread"].clamp_min(limits.tiny).sqrt()
    memory["pull"] += min(1.0, 4 / t) * (pull - memory["pull"])
    return pull / (N * math.sqrt(t))


MEASURES = ("weight_to_move", "settled")
"""What `settling` reports: the weight that as many rounds again would move, and whether that is little (1 or 0)."""


def settling(
    context: WeightingContext, memory: Memory
) -> Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]] | None:
    """The report of a step that has moved x; None where the step of the weights is not scaled."""
    if "pull" not in memory:
        return None
    t = context.round
    reach = 2 * (math.sqrt(t + max(t, SHORTEST)) - math.sqrt(t)) / context.problem.clients

    def report(variables: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        x = variables["x"]
        moved = (projections.simplex(x - context.hyper.eta_x * reach * memory["pull"]) - x).abs().sum() / 2
        return dict(zip(MEASURES, (moved, (moved <= SETTLED).to(moved)), strict=True))

    return report


def curvature(context: WeightingContext, w: Tensor) -> Memory:
    """What the model's limits add to a method's initial memory."""
    if not context.hyper.curvature_limit:
        return {}
    scalars = {name: w.new_zeros(()) for name in ("curvature", "overshoot")}
    return scalars | {"last w": w.clone(), "last direction": torch.zeros_like(w)}


def within_curvature(
    context: WeightingContext, memory: Memory, w: Tensor, direction: Tensor, factor: float | Tensor = 1.0
) -> Tensor:
    """The model's direction, shortened to the limit. factor: see `shortening`."""
    return direction * shortening(context, memory, w, direction, factor) if context.hyper.curvature_limit else direction


def shortening(
    context: WeightingContext, memory: Memory, w: Tensor, direction: Tensor, factor: float | Tensor = 1.0
) -> Tensor:
    """What brings the model's step along the direction to both limits, a scalar in (0, 1]. factor: how much longer a
    step along the weighted loss is than eta_w (Gamma)."""
    if not context.hyper.curvature_limit:
        return w.new_ones(())
    product = context.oracle.validation_product(w, direction, context.validation())
    squared = direction.dot(direction).clamp_min(torch.finfo(w.dtype).tiny)
    largest = memory["curvature"]
    largest.copy_(torch.maximum(direction.dot(product).abs() / squared, KEPT * largest))
    step = factor * (context.step_sizes["w"] / context.schedule) * largest
    limit = torch.as_tensor(context.hyper.curvature_limit, dtype=step.dtype, device=step.device)
    fresh = math.sqrt(context.federation.participation) if "G" in memory else 1.0
    met = _curvature_met(context, memory, w, direction, KEPT**fresh)
    return torch.minimum(_at_most(limit, step), _at_most(fresh * limit, met))


def _curvature_met(context: WeightingContext, memory: Memory, w: Tensor, direction: Tensor, kept: float) -> Tensor:
    """pi_t, a scalar: the step size in force times the change of the direction along the last move."""
    moved, changed = w - memory["last w"], direction - memory["last direction"]
    memory["last w"].copy_(w)
    memory["last direction"].copy_(direction)
    quotient = moved.dot(changed) / moved.dot(moved).clamp_min(torch.finfo(w.dtype).tiny)
    met = memory["overshoot"]
    return met.copy_(torch.maximum(context.step_sizes["w"] * quotient, kept * met))


def dual_direction(lam: Tensor, sum_h: Tensor, residual: Tensor, eta_lambda: float) -> Tensor:
    """The dual's direction: its residual on a positive curvature, shortened likewise. sum_h: H lambda. eta_lambda: the
    step size in force."""
    length, product = torch.linalg.vector_norm(lam), torch.linalg.vector_norm(sum_h)
    along = lam.dot(sum_h)  # times length^2 the Rayleigh quotient
    lift = torch.where(along < 0, length * product - along, torch.zeros_like(along))
    direction = residual + lift / length.square().clamp_min(torch.finfo(lam.dtype).tiny) * lam
    return direction * _at_most(DUAL_LIMIT * length, eta_lambda * product)


def _at_most(allowed: Tensor, step: Tensor) -> Tensor:
    """The factor that brings a step to what is allowed; 1 where it is within, also at lambda = 0."""
    return torch.where((step > allowed) & (allowed > 0), allowed / step, torch.ones_like(step))
