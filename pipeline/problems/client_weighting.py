"""Client weighting on images: mean cross-entropy of one network, on the server's and on each client's samples.

    min_x f_0(w*(x))   s.t.  w*(x) = argmin_w sum_i x_i f_i(w),  x on the simplex

| symbol | here | shape |
|---|---|---|
| f_0 | `validation_loss` | scalar |
| f_i | `losses`, one entry per client, plus l2/2 ||w||^2 | [n] |
| N, d | `clients`, `dimension` | |
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from pipeline import randomness
from pipeline.data.federated import FederatedData
from pipeline.models import FlatModel
from pipeline.problems.base import Variables

ImageBatch = tuple[Tensor, Tensor]
"""Images [n, B, C, H, W] in [0, 1] and labels [n, B]; the server's batch has no leading client dimension."""


@dataclass(frozen=True)
class ClientWeighting:
    """The problem on federated image data. validation_batch: size of B_0, None = the whole validation set."""

    model: FlatModel
    data: FederatedData
    l2: float = 0.0
    validation_batch: int | None = None

    @property
    def clients(self) -> int:
        return self.data.clients

    @property
    def dimension(self) -> int:
        return self.model.d

    @property
    def measures(self) -> tuple[str, ...]:
        return ()

    def measure(self, variables: Variables) -> dict[str, float]:
        return {}

    def network(self, variables: Variables) -> Tensor:
        return variables["w"]

    def client_weights(self, variables: Variables) -> Tensor | None:
        return variables.get("x")

    @property
    def samples(self) -> Tensor:
        return self.data.sizes

    @property
    def oracle_weights(self) -> Tensor:
        return self.data.oracle_weights

    def initial(self, seed: int) -> Tensor:
        return self.model.initial(seed).to(device=self.data.device, dtype=self.data.dtype)

    def draw(self, stream: int, clients: Tensor, size: int) -> ImageBatch:
        clients = clients.to(self.data.device)
        positions = randomness.positions(stream, clients, self.data.sizes[clients], size)
        return self.data.batch(clients, positions)

    def draw_validation(self, stream: int) -> ImageBatch:
        return self.data.server_minibatch(stream, self.validation_batch)

    def losses(self, w: Tensor, batch: ImageBatch) -> Tensor:
        X, y = batch
        logits = self.model.apply(w, X.flatten(0, 1))
        per_sample = F.cross_entropy(logits, y.flatten(), reduction="none")
        losses = per_sample.view(y.shape).mean(dim=1)
        return losses + 0.5 * self.l2 * w.dot(w) if self.l2 else losses

    def validation_loss(self, w: Tensor, batch: ImageBatch) -> Tensor:
        X, y = batch
        return F.cross_entropy(self.model.apply(w, X), y)

    def losses_each(self, W: Tensor, batch: ImageBatch) -> Tensor:
        """f_i(W_i; B_i), [n]; W [n, d]."""
        losses = self.validation_losses_each(W, batch)
        return losses + 0.5 * self.l2 * W.square().sum(dim=1) if self.l2 else losses

    def validation_losses_each(self, W: Tensor, batch: ImageBatch) -> Tensor:
        """f_0(W_i; B_0), [n], on a batch with a leading client dimension."""
        X, y = batch
        logits = self.model.apply_each(W, X).flatten(0, 1)
        return F.cross_entropy(logits, y.flatten(), reduction="none").view(y.shape).mean(dim=1)

    def draw_validation_each(self, stream: int, n: int) -> ImageBatch:
        """The server's minibatch n times over, [n, B_0, ...] without copies."""
        X, y = self.draw_validation(stream)
        return X.expand(n, *X.shape), y.expand(n, *y.shape)

    def select(self, batch: ImageBatch, i: int) -> ImageBatch:
        X, y = batch
        return X[i : i + 1], y[i : i + 1]
