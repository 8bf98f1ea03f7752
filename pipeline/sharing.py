"""Who simulates which clients when a run is spread over several processes, and how their answers come together.

Every process (rank) holds the server's whole state and computes the same server step; client i is simulated by rank
i mod R alone, in every round, so that what a client keeps (dual, control variate, model of its own) lies in one place
and never travels between rounds. What travels per exchange is what the server would receive in sum: a few d-vectors and
a few numbers, never a client's model. (A robust rule is the exception: it needs each client's change.) A run of one
process is the case R = 1, in which nothing travels.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True)
class Share:
    """This process among all that simulate the run."""

    rank: int = 0
    ranks: int = 1

    def own(self, clients: Tensor) -> Tensor:
        """Positions in `clients` [n] of those simulated here."""
        if self.ranks == 1:
            return torch.arange(len(clients), device=clients.device)
        return (clients % self.ranks == self.rank).nonzero()[:, 0]

    @property
    def rows(self) -> slice:
        """Of a tensor [N, ...] with a row per client, the rows of those simulated here."""
        return slice(self.rank, None, self.ranks)

    def keep_own(self, values: Tensor) -> Tensor:
        """A tensor [N, ...] with a row per client, the rows of clients simulated elsewhere set to 0, in place; `total`
        puts the processes' rows together."""
        if self.ranks > 1:
            own = values[self.rows].clone()
            values.zero_()[self.rows] = own
        return values

    def total(self, *parts: Tensor) -> list[Tensor]:
        """The sums over all processes of tensors that each holds a part of; one message for all of them."""
        if self.ranks == 1:
            return list(parts)
        message = torch.cat([part.flatten() for part in parts])
        dist.all_reduce(message)
        sums = message.split([part.numel() for part in parts])
        return [values.view_as(part) for values, part in zip(sums, parts, strict=True)]

    def counts(self, *numbers: int) -> list[int]:
        """The sums over all processes of whole numbers, on the host."""
        if self.ranks == 1:
            return list(numbers)
        device = "cuda" if dist.get_backend() == "nccl" else "cpu"
        return [int(number) for number in self.total(torch.tensor(numbers, dtype=torch.int64, device=device))[0]]

    def first(self, number: int) -> int:
        """The first process's number everywhere."""
        return self.counts(0 if self.rank else number)[0]

    def same(self, value: Tensor) -> Tensor:
        """The first process's value everywhere: what all compute alike must stay alike to the last bit."""
        if self.ranks > 1:
            dist.broadcast(value, 0)
        return value
