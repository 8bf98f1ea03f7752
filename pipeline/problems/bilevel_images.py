"""What the bilevel problems on federated images have in common: one network, clients with a training part (g) and a
validation part (f), mean losses at per-client parameters.

| symbol | here | shape |
|---|---|---|
| N, d | `clients`, `model.d` | |
| p | `client_probabilities` | [N] |
| x, y | the upper and the lower variable; X, Y when every client has its own | [d_x], [d_y]; [n, d_x], [n, d_y] |
| f_i, g_i | `upper_losses`, `lower_losses`, one entry per client | [n] |

Unless a problem says otherwise, the lower variable is the whole network, the f-data are the clients' own validation
parts and f_i is their mean loss.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from pipeline import randomness
from pipeline.data.federated import FederatedData, Parts
from pipeline.models import FlatModel
from pipeline.problems.base import Variables
from pipeline.problems.images import CHUNK, logits

Minibatch = tuple[Tensor, ...]
"""Images [n, B, C, H, W] in [0, 1] and labels [n, B]; some problems add a third tensor with leading dimension n."""


@dataclass(frozen=True)
class ImageBilevel:
    """The common part; not a problem by itself: `upper_dimension`, `initial_upper` and `lower_losses` are missing."""

    model: FlatModel
    data: FederatedData
    client_probabilities: Tensor = field(repr=False)

    @property
    def local_lower(self) -> bool:
        return False

    @property
    def server_upper(self) -> bool:
        return False

    @property
    def clients(self) -> int:
        return self.data.clients

    @property
    def lower_dimension(self) -> int:
        return self.model.d

    def client_weights(self, variables: Variables) -> Tensor | None:
        return None

    def network(self, variables: Variables) -> Tensor:
        return variables["y"]

    @property
    def measures(self) -> tuple[str, ...]:
        return ()

    def measure(self, variables: Variables) -> dict[str, float]:
        return {}

    # ----------------------------------------------------------------------------- what methods ask

    def initial_lower(self, seed: int) -> Tensor:
        return self.initial_network(seed)

    def project_upper(self, x: Tensor) -> Tensor:
        return x

    def draw_upper(self, stream: int, clients: Tensor, size: int) -> Minibatch:
        return self.draw(self.data.own_validation, stream, clients, size)[1]

    def draw_lower(self, stream: int, clients: Tensor, size: int) -> Minibatch:
        return self.draw(self.data.training, stream, clients, size)[1]

    def upper_losses(self, X: Tensor, Y: Tensor, batch: Minibatch) -> Tensor:
        return self.sample_losses(Y, batch).mean(dim=1)

    def select(self, batch: Minibatch, i: int) -> Minibatch:
        return tuple(part[i : i + 1] for part in batch)

    # ------------------------------------------------------------------------------- what they share

    def initial_network(self, seed: int) -> Tensor:
        """The network's own initialisation, [d]."""
        return self.model.initial(seed).to(device=self.data.device, dtype=self.data.dtype)

    def draw(self, parts: Parts, stream: int, clients: Tensor, size: int) -> tuple[Tensor, Minibatch]:
        """Uniformly with replacement from each client's part: positions [n, B] within it, and the samples."""
        clients = clients.to(self.data.device)
        positions = randomness.positions(stream, clients, parts.sizes[clients], size)
        return positions, self.data.batch(clients, positions, parts)

    def sample_losses(self, W: Tensor, batch: Minibatch) -> Tensor:
        """Of every sample under its client's network W_i, [n, B]; W [n, d]."""
        return self.losses_of(self.model.apply_each(W, batch[0]), batch[1])

    def losses_of(self, scores: Tensor, y: Tensor) -> Tensor:
        """scores [n, B, outputs], y [n, B] -> [n, B]."""
        return self.data.loss.each(scores.flatten(0, 1), y.flatten()).view(y.shape)

    def upper_value(self, variables: Variables) -> float:
        """F = sum_i p_i f_i on the whole f-data, of the clients whose f_i is a number, if there are any."""
        return weighted_mean(self.client_losses(variables), self.client_probabilities)

    def client_losses(self, variables: Variables) -> Tensor:
        """Every f_i on its whole data, [N]."""
        losses = [self.data.loss.each(scores, y) for scores, y, _ in self.scored(variables, self.data.own_validation)]
        return client_means(torch.cat(losses), self.data.own_validation.owners, self.clients)

    def scored(
        self, variables: Variables, parts: Parts, at: Tensor | None = None
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Logits [b, classes], labels [b] and owners [b] of the samples `at` of the parts (all of them), in their
        order, a chunk at a time, each under the network of its client."""
        owners, at = parts.owners, torch.arange(len(parts.rows), device=parts.rows.device) if at is None else at
        for chunk in at.split(CHUNK):
            X, y = self.data.samples(chunk, parts, owners[chunk])
            with torch.no_grad():
                yield self.scores_of(variables, X, owners[chunk]), y, owners[chunk]

    def draw_server(self, stream: int, clients: Tensor, size: int | None) -> Minibatch:
        """`size` of the server's validation samples (None: all of them), the same for every client: [n, B_0, ...]
        without copies."""
        X, y = self.data.server_minibatch(stream, size)
        return X.expand(len(clients), *X.shape), y.expand(len(clients), *y.shape)

    def server_losses(self, variables: Variables) -> Tensor:
        """f_0 on the server's whole validation set, once for every client, [N]."""
        scores = logits(self.model, self.data, self.network(variables), self.data.validation_images, scaled=True)
        return self.data.loss.mean(scores, self.data.validation_labels).expand(self.clients)

    def scores_of(self, variables: Variables, X: Tensor, owners: Tensor) -> Tensor:
        """Logits [b, classes] of the images X [b, ...], which belong to the clients `owners` [b]; never in mixed
        precision."""
        return self.model.exact.apply(self.network(variables), X)


@dataclass(frozen=True)
class BodyAbove(ImageBilevel):
    """The upper variable is the network's body, every layer but the last."""

    @property
    def upper_dimension(self) -> int:
        return self.model.d - self.model.head

    def initial_upper(self, seed: int) -> Tensor:
        return self.initial_network(seed)[: self.upper_dimension]


def weighted_mean(values: Tensor, p: Tensor) -> float:
    """p @ values, or the mean of those that are numbers, if there are any; values, p: [N]."""
    finite = values.isfinite()
    if finite.all() or not finite.any():
        return float(p @ values)
    return float(p[finite] @ values[finite] / p[finite].sum())


def client_means(values: Tensor, owners: Tensor, clients: int) -> Tensor:
    """Mean of each client's values, [N]; values, owners: [S]. Not a number for a client without any."""
    sums = values.new_zeros(clients).index_add_(0, owners, values)
    return sums / owners.bincount(minlength=clients).to(values)
