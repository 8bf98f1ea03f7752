"""Which clients take part in a step: a pure function of (seed, round, inner step), so a resumed run and every method
see the same clients. Drawn on the host, since the number of active clients decides tensor shapes.

Bernoulli sampling is conditioned on at least one active client. A draw for every client, repeated while all stay away,
is quick for few clients and where about one or more is expected; recorded runs were drawn so. Elsewhere (`MANY`,
`FEW`) only the active clients are drawn, by the gaps between them (Fan, Muller and Rezucha, 1962), in expected constant
time for each of them. The law is the same: with q = 1 - p, U uniform on [0, 1) and clients counted from 0,

    the first active client   floor( log(1 - U (1 - q^N)) / log q )      P(j) = p q^j / (1 - q^N),  0 <= j < N
    clients skipped after it  floor( log(1 - U) / log q )                P(k) = p q^k,  until N is passed
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pipeline import randomness
from pipeline.errors import not_allowed

MANY = 10_000
"""Of more clients only the active ones are drawn."""
FEW = 0.5
"""Likewise where fewer active clients than this are expected, and a draw for every client would mostly be empty."""
SPREAD = 4.0
"""Standard deviations above the expected number of active clients for which numbers are drawn at once."""


def active_clients(
    clients: int, sampling: str, participation: float, seed: int, round_: int, inner: int = 0, *more: int
) -> Tensor:
    """Sorted int64 ids of the active clients, at least one.

    sampling "bernoulli": each client independently with probability `participation`, given that not all stay away.
    "fixed": round(participation * clients) distinct clients, uniformly.
    more: tells apart several independent draws within one inner step.
    """
    if participation >= 1.0:
        return torch.arange(clients)
    when = (round_, inner, *more)
    if sampling == "fixed":
        count = fixed_count(clients, participation)
        return distinct(clients, count, seed, *when) if clients > MANY else _smallest(clients, count, seed, *when)
    if clients > MANY or participation * clients < FEW:
        return by_gaps(clients, participation, seed, *when)
    return _by_client(clients, participation, seed, *when)


def _by_client(clients: int, participation: float, seed: int, *when: int) -> Tensor:
    """A draw for every client, again while all stay away."""
    ids, attempt = torch.arange(clients), 0
    while True:
        u = randomness.uniform(randomness.key(seed, "participation", *when, attempt), ids, 1)[:, 0]
        active = (u < participation).nonzero()[:, 0]
        if len(active):
            return active
        attempt += 1


def by_gaps(clients: int, participation: float, seed: int, *when: int) -> Tensor:
    """The same law by the gaps between active clients."""
    log_q, expected = math.log1p(-participation), participation * clients
    stream, block = (
        randomness.key(seed, "participation by gaps", *when),
        8 + int(expected + SPREAD * math.sqrt(expected)),
    )
    u = randomness.uniform(stream, torch.zeros(1, dtype=torch.int64), block)[0]
    u[0] *= -math.expm1(clients * log_q)  # given that there is a first one
    places = _places(u, log_q, -1.0)
    places[0].clamp_(max=clients - 1)  # rounding
    while places[-1] < clients:  # the block was too short
        u = randomness.uniform(stream, torch.tensor([len(places)]), block)[0]
        places = torch.cat([places, _places(u, log_q, float(places[-1]))])
    return places[places < clients].long()


def _places(u: Tensor, log_q: float, last: float) -> Tensor:
    """The active clients that follow `last`, one for each uniform number; float64, exact below 2^53."""
    return last + (torch.log1p(-u).div(log_q).floor() + 1.0).cumsum(0)


def _smallest(clients: int, count: int, seed: int, *when: int) -> Tensor:
    """The clients with the smallest of a draw for each."""
    u = randomness.uniform(randomness.key(seed, "participation", *when), torch.arange(clients), 1)[:, 0]
    return u.topk(count, largest=False).indices.sort().values


def distinct(clients: int, count: int, seed: int, *when: int) -> Tensor:
    """`count` distinct clients, uniformly: the first ones that independent draws name. Of more than half of all
    clients, those that stay away are drawn."""
    if 2 * count > clients:
        absent = distinct(clients, clients - count, seed, *when)
        present = torch.ones(clients, dtype=torch.bool)
        present[absent] = False
        return present.nonzero()[:, 0]
    stream, size = randomness.key(seed, "distinct participation", *when), torch.tensor([clients])
    drawn = values = place = torch.zeros(0, dtype=torch.int64)
    while len(values) < count:
        more = randomness.positions(stream, torch.tensor([len(drawn)]), size, 2 * count + 8)[0]
        drawn = torch.cat([drawn, more])
        values, place = drawn.unique(return_inverse=True)
    first = torch.full_like(values, len(drawn)).scatter_reduce(0, place, torch.arange(len(drawn)), "amin")
    return values[first.argsort()[:count]].sort().values


def usual_count(clients: int, sampling: str, participation: float) -> int:
    """About how many clients a round has; UserError as in `fixed_count`."""
    return fixed_count(clients, participation) if sampling == "fixed" else round(participation * clients)


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
