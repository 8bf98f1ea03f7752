"""How many local steps each client takes, and with which coefficients.

| paper (SimFBO, section 1.3 of the specification) | here | shape |
|---|---|---|
| tau_i | `steps(context)` | [N], on the host |
| a_i^(t,k), k = 0..tau_i - 1 | `coefficients(hyper, tau, k)` | [n] |
| norm1(a_i) | `norms(hyper, tau)` | [n] |

Local optimisers are coefficients of the same accumulated gradient: plain descent a = 1; heavy ball with momentum theta
a^(k) = (1 - theta^(tau - k)) / (1 - theta); a proximal term a^(k) = (1 - theta)^(tau - 1 - k), theta = its strength
times the local step. Only the total update is that optimiser's, not each intermediate iterate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from pipeline import randomness
from pipeline.config.spec import PositiveInt, param
from pipeline.errors import not_allowed
from pipeline.methods.bilevel.common.bilevel_context import BilevelContext, BilevelOptions

StepCount = PositiveInt | list[int] | Literal["random"]


@dataclass(frozen=True)
class HeterogeneousSteps(BilevelOptions):
    """Methods whose clients may take different numbers of local steps."""

    local_steps: StepCount = param(
        1,
        "local steps of a client: a number, a list with one each, or random = uniform on 1..local_steps_max",
        symbol="tau_i",
    )
    local_steps_max: int = param(10, "of `local_steps: random`; unused otherwise", ge=1)
    local_steps_drawn: Literal["once", "every_round"] = param("once", "of `local_steps: random`; unused otherwise")


def steps(context: BilevelContext, key: str = "local_steps") -> Tensor:
    """tau_i of all N clients in this round. key: the option it is read from: a number for all, a list with one each, or
    "random": uniform on 1..local_steps_max, drawn once per run or for every round."""
    option, N = getattr(context.hyper, key), context.problem.clients
    if isinstance(option, int):
        return torch.full((N,), option)
    if isinstance(option, list):
        if len(option) != N or min(option) < 1:
            raise not_allowed(
                key, option, f"a list of {N} whole numbers >= 1, one per client", "one number for all, or that list"
            )
        return torch.tensor(option)
    when = context.round if context.hyper.local_steps_drawn == "every_round" else 0
    stream = randomness.key(context.seed, key, when)
    return 1 + randomness.positions(stream, torch.arange(N), torch.full((N,), context.hyper.local_steps_max), 1)[:, 0]


def longest(context: BilevelContext) -> Tensor:
    """The largest tau_i that each of the N clients may take in any round."""
    tau = steps(context)
    return torch.full_like(tau, context.hyper.local_steps_max) if context.hyper.local_steps == "random" else tau


def most(tau: Tensor) -> int:
    """max_i tau_i; 0 without clients."""
    return max(tau.tolist(), default=0)


def moving(tau: Tensor, k: int) -> Tensor:
    """Positions of the clients that still take step k, from 0."""
    return (tau > k).nonzero()[:, 0]


def coefficients(hyper: object, tau: Tensor, k: int) -> Tensor:
    """a_i^(k), [n] float64, of clients that take tau_i > k steps."""
    kind, theta = hyper.local_coefficients, hyper.local_coefficient  # type: ignore[attr-defined]
    left = (tau - k).double()
    if kind == "momentum":
        return (1 - theta**left) / (1 - theta)
    if kind == "proximal":
        return (1 - theta) ** (left - 1)
    if isinstance(kind, list):
        if k >= len(kind) or kind[k] <= 0:
            raise not_allowed(
                "local_coefficients",
                kind,
                f"a list of {int(tau.max())} numbers > 0, one per local step (local_steps_max of random ones)",
                "a longer list, fewer local steps, or constant",
            )
        return torch.full_like(left, kind[k])
    return torch.ones_like(left)


def norms(hyper: object, tau: Tensor) -> Tensor:
    """sum_k a_i^(k), [n] float64."""
    total = torch.zeros(len(tau), dtype=torch.float64)
    for k in range(most(tau)):
        movers = moving(tau, k)
        total[movers] += coefficients(hyper, tau[movers], k)
    return total
