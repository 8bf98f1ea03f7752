"""All randomness comes from (seed, purpose, round, client): no global state, no order of calls.

Draws inside a run are counter-based: number j of client i in round t is a hash of (seed, purpose, t, i, j), the
SplitMix64 finaliser (Steele, Lea and Flood, 2014) applied to each key in turn. So

* equal seeds give equal draws on every device, also after a resume, with no generator state to save;
* another client, metric or evaluation changes no other stream;
* one call draws for all clients at once, on the device, without a round trip to the host.

Work done once (initial model, partition) takes an ordinary generator seeded the same way.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pipeline.seeds import key

__all__ = ["bits", "key", "normal", "permutations", "positions", "torch_generator", "uniform"]

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def _signed(value: int) -> int:
    """The int64 with the same 64 bits."""
    value &= _MASK
    return value - (1 << 64) if value >> 63 else value


_M1, _M2, _STEP = _signed(0xBF58476D1CE4E5B9), _signed(0x94D049BB133111EB), _signed(_GOLDEN)


def _shift_right(z: Tensor, s: int) -> Tensor:
    """Logical (not sign-extending) right shift of int64."""
    return (z >> s) & ((1 << (64 - s)) - 1)


def _mix(z: Tensor) -> Tensor:
    """SplitMix64's finaliser, elementwise on int64; products wrap modulo 2^64."""
    z = (z ^ _shift_right(z, 30)) * _M1
    z = (z ^ _shift_right(z, 27)) * _M2
    return z ^ _shift_right(z, 31)


def bits(stream: int, clients: Tensor, count: int) -> Tensor:
    """[n, count] int64 of 64 random bits each: row i belongs to client ``clients[i]`` alone.

    stream: a ``key``. clients: [n] int64 client ids, on the device that shall hold the result.
    """
    counter = torch.arange(1, count + 1, device=clients.device)
    of_client = _mix((clients + 1) * _STEP ^ stream)
    return _mix(of_client[:, None] + counter * _STEP)


def uniform(stream: int, clients: Tensor, count: int) -> Tensor:
    """[n, count] float64, uniform on [0, 1)."""
    return _shift_right(bits(stream, clients, count), 11).double() * 2.0**-53


def normal(stream: int, clients: Tensor, count: int) -> Tensor:
    """[n, count] float64, standard normal (Box-Muller)."""
    u = uniform(stream, clients, 2 * count)
    radius = torch.sqrt(-2.0 * torch.log1p(-u[:, :count]))
    return radius * torch.cos(2.0 * math.pi * u[:, count:])


def positions(stream: int, clients: Tensor, sizes: Tensor, count: int) -> Tensor:
    """[n, count] int64: uniform with replacement from 0..sizes[i]-1, the minibatch of each client.

    sizes: [n] int64 below 2^31 (the bias of multiply-and-shift is then below size / 2^31).
    """
    return (_shift_right(bits(stream, clients, count), 33) * sizes[:, None]) >> 31


def permutations(stream: int, clients: Tensor, sizes: Tensor) -> Tensor:
    """[n, max(sizes)] int64: row i starts with 0..sizes[i]-1 in uniformly random order; what follows is padding
    (positions from sizes[i] on). The order of a client does not depend on the other clients drawn for.

    sizes: [n] int64, at least 1.
    """
    longest = int(sizes.max())
    rank = _shift_right(bits(stream, clients, longest), 1)
    padding = torch.arange(longest, device=clients.device) >= sizes[:, None]
    return rank.masked_fill(padding, _MASK >> 1).argsort(dim=1, stable=True)


def torch_generator(seed: int, purpose: str, *indices: int) -> torch.Generator:
    """For work done once on the host: initial models."""
    return torch.Generator().manual_seed(key(seed, purpose, *indices))
