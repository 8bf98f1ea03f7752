"""Steps that need no tuning: of the weights in units of their signal, of model and dual within the curvature.

Shared by the methods of this family (`algorithms.<name>.weight_step`, `algorithms.<name>.curvature_limit`).

| symbol | here | shape |
|---|---|---|
| g_x, the hypergradient | `g_x` | [N] |
| known clients: those with an answer to go by | memory `known` | [N], 0 or 1 |
| v_t | memory `spread` | scalar |
| c | `hyper.curvature_limit` | scalar |

**Weights** (`weight_step: scaled`). A hypergradient has the units of a loss, and its size depends on the features, the
network, the method and the stage of training; only differences between clients move x, since the projection onto the
simplex ignores a common shift. With the deviation  D_i = g_x,i - mean of g_x over the known clients  (0 for others)

    v_t = v_(t-1) + (1/N) sum_i D_i^2 ,        x <- Proj_X( x - eta_x D / (N sqrt(v_t)) ) ,     v_0 = 0

which is AdaGrad with one scalar for all coordinates (Streeter and McMahan, 2010; Ward, Wu and Bottou, 2019), in units
of a fair share 1/N. It does not change when g_x is multiplied by a constant; N enters through the fair share alone. At
a constant step a client whose D_i stays at k times the root mean square moves by 2 k eta_x sqrt(T) fair shares in T
rounds, and pure noise moves it by about eta_x sqrt(ln T): where clients do not differ, weights stay where they are.
Equal clients differ by rounding errors alone, which must not become the unit: then D = 0. The factor of D is positive
and common to all clients, so the stationary points are those of the plain step.

**Model.** A step along the unit vector u is shortened wherever the curvature there would make it unstable:

    step size <= c / ||Hess f_0(w) u||

Hess f_0 u is one product on the server's own samples: no client computes or sends anything for it. f_0 stands in for
the weighted training loss, which has the same network and, where the weights are right, the same distribution.

**Dual.** Its residual holds H lambda, so  ||H lambda|| / ||lambda||  is a curvature that costs nothing:
step size <= c ||lambda|| / ||H lambda||.

Steps with eta_w Gamma h <= c and eta_lambda h <= c at every curvature h keep the primal-dual iteration stable
(`pipeline.algorithms.client_weighting.primal_dual`, "Stability"). A shortened direction vanishes where the direction
does, so no stationary point moves. With `optimizer: adam`, whose steps do not depend on a direction's length, the
model's limit has no effect.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pipeline.algorithms.client_weighting.turn import WeightingTurn

Memory = dict[str, Tensor]
DUAL_LIMIT = 0.5
"""Of a step of the dual times the curvature along it."""
ROUNDING = 100.0
"""Deviations of at most so many units in the last place of the largest g_x are rounding errors and count as 0."""


def remembered(turn: WeightingTurn, memory: Memory, like: Tensor) -> Memory:
    """A method's initial memory with what the scaled step of the weights needs. memory: the rest of it; where it holds
    the clients' last answers, a client is unknown until it has given one. like: whose dtype and device."""
    if turn.hyper.weight_step != "scaled":
        return memory
    known = like.new_full((turn.problem.clients,), 0.0 if "G" in memory else 1.0)
    return memory | {"spread": like.new_zeros(()), "known": known}


def weight_direction(memory: Memory, g_x: Tensor, active: Tensor) -> Tensor:
    """The direction of x, [N]: g_x itself, or its deviations in units of their spread. active: who answered, [n]."""
    if "spread" not in memory:
        return g_x
    known, N = memory["known"], len(g_x)
    known[active] = 1.0
    deviation = known * (g_x - (known @ g_x) / known.sum())
    limits = torch.finfo(g_x.dtype)
    differ = deviation.abs().amax() > ROUNDING * limits.eps * g_x.abs().amax()
    deviation = torch.where(differ, deviation, torch.zeros_like(deviation))
    memory["spread"] += deviation.square().mean()
    return deviation / (N * memory["spread"].clamp_min(limits.tiny).sqrt())


def within_curvature(turn: WeightingTurn, w: Tensor, direction: Tensor, factor: float | Tensor = 1.0) -> Tensor:
    """The model's direction, shortened to the limit. factor: see `shortening`."""
    return direction * shortening(turn, w, direction, factor) if turn.hyper.curvature_limit else direction


def shortening(turn: WeightingTurn, w: Tensor, direction: Tensor, factor: float | Tensor = 1.0) -> Tensor:
    """What brings the model's step along the direction to the limit, a scalar in (0, 1]. factor: how much longer a step
    along the weighted loss is than eta_w (Gamma)."""
    if not turn.hyper.curvature_limit:
        return w.new_ones(())
    product = turn.oracle.validation_product(w, direction, turn.validation())
    step = factor * turn.step_sizes["w"] * direction.dot(product).abs()
    return _at_most(turn.hyper.curvature_limit * direction.dot(direction), step)


def dual_direction(turn: WeightingTurn, lam: Tensor, sum_h: Tensor, residual: Tensor) -> Tensor:
    """The dual's direction: its residual on a positive curvature, shortened likewise. sum_h: H lambda."""
    if not turn.hyper.curvature_limit:
        return residual
    length, product = torch.linalg.vector_norm(lam), torch.linalg.vector_norm(sum_h)
    along = lam.dot(sum_h)  # times length^2 the Rayleigh quotient
    lift = torch.where(along < 0, length * product - along, torch.zeros_like(along))
    direction = residual + lift / length.square().clamp_min(torch.finfo(lam.dtype).tiny) * lam
    return direction * _at_most(DUAL_LIMIT * length, turn.step_sizes["lambda"] * product)


def _at_most(allowed: Tensor, step: Tensor) -> Tensor:
    """The factor that brings a step to what is allowed; 1 where it is within, also at lambda = 0."""
    return torch.where((step > allowed) & (allowed > 0), allowed / step, torch.ones_like(step))
