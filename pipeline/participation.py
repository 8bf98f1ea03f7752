"""Which clients take part in a step: a pure function of (seed, round, inner step), so a resumed run and every method
see the same clients. Drawn on the host, since the number of active clients decides tensor shapes."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pipeline import randomness
from pipeline.errors import not_allowed


def active_clients(
    clients: int, sampling: str, participation: float, seed: int, round_: int, inner: int = 0, *more: int
) -> Tensor:
    """Sorted int64 ids of the active clients, at least one.

    sampling "bernoulli": each client independently with probability `participation`, given that not all stay away
    (drawn again while empty). "fixed": round(participation * clients) distinct clients, uniformly.
    more: tells apart several independent draws within one inner step.
    """
    if participation >= 1.0:
        return torch.arange(clients)
    ids = torch.arange(clients)
    if sampling == "fixed":
        count = fixed_count(clients, participation)
        u = randomness.uniform(randomness.key(seed, "participation", round_, inner, *more), ids, 1)[:, 0]
        return u.topk(count, largest=False).indices.sort().values
    attempt = 0
    while True:
        u = randomness.uniform(randomness.key(seed, "participation", round_, inner, *more, attempt), ids, 1)[:, 0]
        active = (u < participation).nonzero()[:, 0]
        if len(active):
            return active
        attempt += 1


def fixed_count(clients: int, participation: float) -> int:
    """Number of active clients under fixed sampling, halves rounded up; UserError if that is 0."""
    count = math.floor(participation * clients + 0.5)
    if count < 1:
        raise not_allowed(
            "federation.participation",
            participation,
            f"at least {0.5 / clients:g} for {clients} clients under sampling: fixed, so that at least one takes part",
            f"set federation.participation to {1 / clients:g} or more",
        )
    return count
