"""Client weighting on samples: the mean loss of one network, on the server's and on each client's.

    min_x f_0(w*(x))   s.t.  w*(x) = argmin_w sum_i x_i f_i(w),  x on the simplex

| symbol | here | shape |
|---|---|---|
| f_0 | `validation_loss` | scalar |
| f_i | `losses`, one entry per client, plus l2/2 ||w||^2 | [n] |
| N, d | `clients`, `dimension` | |
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from pipeline import randomness
from pipeline.problems.images import ImageBatch, Images, mean_losses


@dataclass(frozen=True)
class ClientWeighting(Images):
    """The problem on federated image data. validation_batch: size of B_0, None = the whole validation set."""

    validation_batch: int | None = None

    @property
    def oracle_weights(self) -> Tensor:
        return self.data.oracle_weights

    @cached_property
    def _largest(self) -> int:
        """Samples of the largest client."""
        return int(self.data.sizes.max())

    def draw(self, stream: int, clients: Tensor, size: int) -> ImageBatch:
        """Where more samples are drawn than any client has, each of its samples once, with how often it was drawn: the
        same mean of the same draws by fewer passes. Not of runs that go together, each with a stream of its own."""
        if isinstance(stream, Tensor) or size <= self._largest:
            return super().draw(stream, clients, size)
        clients = clients.to(self.data.device)
        sizes = self.data.sizes[clients]
        drawn = randomness.positions(stream, clients, sizes, size)
        counts = drawn.new_zeros(len(clients), self._largest).scatter_add_(1, drawn, torch.ones_like(drawn))
        every = torch.arange(self._largest, device=clients.device).minimum(sizes[:, None] - 1)
        return (*self.data.batch(clients, every), counts.to(self.data.dtype))

    def draw_validation(self, stream: int) -> ImageBatch:
        return self.data.server_minibatch(stream, self.validation_batch)

    def validation_loss(self, w: Tensor, batch: ImageBatch) -> Tensor:
        X, y = batch
        return self.data.loss.mean(self.model.apply(w, X), y)

    def validation_losses_each(self, W: Tensor, batch: ImageBatch) -> Tensor:
        """f_0(W_i; B_0), [n], on a batch with a leading client dimension."""
        return mean_losses(self.data.loss, self.model.apply_each(W, batch[0]).flatten(0, 1), batch[1])

    def draw_validation_each(self, stream: int, n: int) -> ImageBatch:
        """The server's minibatch n times over, [n, B_0, ...] without copies."""
        X, y = self.draw_validation(stream)
        return X.expand(n, *X.shape), y.expand(n, *y.shape)
