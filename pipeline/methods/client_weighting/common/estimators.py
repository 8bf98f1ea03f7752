"""How absent clients are accounted for (lead specification, section 3, "Estimators").

With n of N clients active, a sum over all clients  sum_i x_i v_i  is estimated by  sum_{i active} c_i v_i :

| estimator | c_i | bias |
|---|---|---|
| paper | (N/n) x_i | none (E[(N/n) 1{i active}] = 1, also given non-empty); noisy |
| normalised | x_i / max(sum of active x, min(floor, n/N)) | some for p < 1; steady |
| memory | x_i, over ALL clients: an absent client's last answer stands in | that of stale answers; steadiest |

n/N is what equal weights would sum to: with few of many clients active, the specification's floor of 0.3 alone would
shorten every step.

A product Hess f_i v with a direction v that is another one in every exchange (Neumann factors, backward passes) has no
last answer worth keeping: under `memory` those sums take `normalised` coefficients, while gradients g_i and inner
products v^T g_i of absent clients come from the remembered g_i. The primal-dual method, whose direction lambda moves
slowly, remembers its products as well.
"""

from __future__ import annotations

from torch import Tensor

from pipeline.methods.client_weighting.common.weighting_context import ServerOptions, WeightingContext
from pipeline.problems.base import Batch

Memory = dict[str, Tensor]
"""A method's memory; "G" [N, d], every client's last gradient, is in it if and only if the estimator is
`memory`. Where clients are spread over processes, each holds the rows of its own and zeros for the others."""


def choose(
    options: ServerOptions, clients: int, dimension: int, bytes_per_float: int, participation: float, vectors: int = 2
) -> str:
    """The active estimator. With all clients active all three agree, and `paper` takes the fused pass. `auto` is
    settled here, as it depends on the model's size.

    vectors: how many the server would remember of each client.
    """
    if participation >= 1.0:
        return "paper"
    if options.estimator != "auto":
        return options.estimator
    needed = vectors * clients * dimension * bytes_per_float
    return "memory" if needed <= options.memory_limit_mb * 2**20 else "normalised"


def active_estimator(context: WeightingContext, w: Tensor, vectors: int = 1) -> str:
    """`choose` for this run."""
    problem, participation = context.problem, context.federation.participation
    return choose(context.hyper, problem.clients, problem.dimension, w.element_size(), participation, vectors)


def coefficients(estimator: str, x: Tensor, active: Tensor, floor: float | Tensor) -> Tensor:
    """c over the active clients, [n]; for `paper`, and for the others where only fresh answers count. floor: a tensor
    for runs computed together."""
    if estimator == "paper":
        return x[active] * (len(x) / len(active))
    equal = len(active) / len(x)
    least = floor.clamp_max(equal) if isinstance(floor, Tensor) else min(floor, equal)
    return x[active] / x[active].sum().clamp_min(least)


def scatter(values: Tensor, active: Tensor, clients: int) -> Tensor:
    """The active clients' answers [n, ...] as all clients': (N/n) values, and 0 for the absent, [N, ...]."""
    result = values.new_zeros(clients, *values.shape[1:])
    result[active] = values * (clients / len(active))
    return result


# ------------------------------------------------------------------------------ for methods that remember g_i alone

ROWS = frozenset({"G"})
"""Which memory holds a row per client."""


def remembered(context: WeightingContext, w: Tensor) -> Memory:
    """What the active estimator adds to a method's initial memory."""
    if active_estimator(context, w) != "memory":
        return {}
    return {"G": w.new_zeros(context.problem.clients, context.problem.dimension)}


def weighted_gradient(
    context: WeightingContext, memory: Memory, w: Tensor, x: Tensor, active: Tensor, batch: Batch
) -> Tensor:
    """sum_i x_i g_i, [d]; remembers the answers if that is the estimator."""
    if "G" in memory:
        memory["G"][active] = context.oracle.gradients(w, batch)
        return context.oracle.total(x @ memory["G"])
    return context.oracle.weighted_gradient(w, batch, _coefficients(context, w, x, active))


def gradient_with_inner(
    context: WeightingContext, memory: Memory, w: Tensor, v: Tensor, x: Tensor, active: Tensor, batch: Batch
) -> tuple[Tensor, Tensor]:
    """(sum_i x_i g_i [d], v^T g_i of all clients [N]), on one minibatch; remembers the gradients likewise."""
    if "G" in memory:
        memory["G"][active] = context.oracle.gradients(w, batch)
        return context.oracle.total(x @ memory["G"]), context.oracle.total(memory["G"] @ v)
    sum_g, fresh = context.oracle.gradient_with_inner(w, v, batch, _coefficients(context, w, x, active))
    return sum_g, scatter(fresh, active, context.problem.clients)


def weighted_product(
    context: WeightingContext, w: Tensor, v: Tensor, x: Tensor, active: Tensor, batch: Batch
) -> tuple[Tensor, Tensor]:
    """(sum_i x_i Hess f_i v [d], the active clients' v^T g_i [n])."""
    return context.oracle.weighted_product(w, v, batch, _coefficients(context, w, x, active))


def inner_products(context: WeightingContext, memory: Memory, v: Tensor, active: Tensor, fresh: Tensor) -> Tensor:
    """v^T g_i of all clients, [N]. fresh: the active clients' own, [n]."""
    if "G" not in memory:
        return scatter(fresh, active, context.problem.clients)
    result = context.oracle.total(memory["G"] @ v)
    result[active] = fresh
    return result


def all_gradients(
    context: WeightingContext, memory: Memory, w: Tensor, x: Tensor, active: Tensor, batch: Batch
) -> tuple[Tensor, Tensor]:
    """(sum_i x_i g_i [d], g_i of all clients [N, d]), client by client; remembers the answers likewise."""
    gradients = context.oracle.gradients(w, batch)
    if "G" in memory:
        memory["G"][active] = gradients
        everyone = context.oracle.total(memory["G"])
        return x @ everyone, everyone
    gradients = context.oracle.total(gradients)
    return _coefficients(context, w, x, active) @ gradients, scatter(gradients, active, context.problem.clients)


def _coefficients(context: WeightingContext, w: Tensor, x: Tensor, active: Tensor) -> Tensor:
    return coefficients(active_estimator(context, w), x, active, context.hyper.active_weight_floor)
