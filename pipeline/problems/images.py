"""What problems on federated samples share: one network, its mean loss on each client's samples."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from pipeline import randomness
from pipeline.data.federated import FederatedData
from pipeline.data.losses import Loss
from pipeline.models import FlatModel
from pipeline.problems.base import ImageProblem, NewTasks, Variables

CHUNK = 1000
"""Images per forward pass, so that memory stays bounded."""
ImageBatch = tuple[Tensor, ...]
"""Images [n, B, C, H, W], scaled, and labels [n, B]; if some clients have fewer than B samples here, also which of the
samples count, bool [n, B], or how often. The server's batch has no leading client dimension."""


@dataclass(frozen=True)
class Images:
    """model: the network. data: all clients' samples. l2: adds l2/2 ||w||^2 to every client's loss."""

    model: FlatModel
    data: FederatedData
    l2: float = 0.0

    @property
    def clients(self) -> int:
        return self.data.clients

    @property
    def dimension(self) -> int:
        return self.model.d

    @property
    def samples(self) -> Tensor:
        return self.data.sizes

    @property
    def measures(self) -> tuple[str, ...]:
        return ()

    def measure(self, variables: Variables) -> dict[str, float]:
        return {}

    def client_weights(self, variables: Variables) -> Tensor | None:
        return variables.get("x")

    def network(self, variables: Variables) -> Tensor:
        return variables["w"]

    def initial(self, seed: int) -> Tensor:
        return self.model.initial(seed).to(device=self.data.device, dtype=self.data.dtype)

    def draw(self, stream: int, clients: Tensor, size: int) -> ImageBatch:
        clients = clients.to(self.data.device)
        return self.take(stream, clients, randomness.positions(stream, clients, self.data.sizes[clients], size))

    def take(self, stream: int, clients: Tensor, positions: Tensor, present: Tensor | None = None) -> ImageBatch:
        X, y = self.data.batch(clients, positions if present is None else positions * present)
        return (X, y) if present is None else (X, y, present)

    def losses(self, w: Tensor, batch: ImageBatch) -> Tensor:
        X, y, *present = batch
        losses = mean_losses(self.data.loss, self.model.apply(w, X.flatten(0, 1)), y, present)
        return losses + 0.5 * self.l2 * w.dot(w) if self.l2 else losses

    def losses_each(self, W: Tensor, batch: ImageBatch) -> Tensor:
        X, y, *present = batch
        if len(W) == 1:  # nothing to batch over
            logits = self.model.apply(W.view(-1), X.flatten(0, 1))
        else:
            logits = self.model.apply_each(W, X).flatten(0, 1)
        losses = mean_losses(self.data.loss, logits, y, present)
        return losses + 0.5 * self.l2 * W.square().sum(1) if self.l2 else losses

    def select(self, batch: ImageBatch, i: int) -> ImageBatch:
        return self.part(batch, slice(i, i + 1))

    def part(self, batch: ImageBatch, rows: slice) -> ImageBatch:
        return tuple(tensor[rows] for tensor in batch)

    @property
    def one_by_one(self) -> bool:
        return self.model.convolutional and self.data.device.type == "cpu"


def mean_losses(loss: Loss, scores: Tensor, y: Tensor, present: list[Tensor] | None = None) -> Tensor:
    """Mean loss of each client, [n], over the samples as often as they count. scores: [n B, outputs]; y: [n, B]."""
    each = loss.each(scores, y.flatten()).view(y.shape)
    if not present:
        return each.mean(dim=1)
    (counts,) = present
    return (each * counts).sum(dim=1) / counts.sum(dim=1)


def logits(model: FlatModel, data: FederatedData, w: Tensor, images: Tensor, *, scaled: bool = False) -> Tensor:
    """[M, classes], without derivatives and never in mixed precision; images [M, ...] as stored, or scaled already."""
    model = model.exact
    with torch.no_grad():
        parts = (part if scaled else data.scaled(part) for part in images.split(CHUNK))
        return torch.cat([model.apply(w, part) for part in parts])


def served_network(problem: ImageProblem, variables: Variables) -> nn.Module:
    """The network that is saved for use: images to logits; of a problem that learns a body, images to features."""
    if isinstance(problem, NewTasks):
        return problem.model.body_with(variables["x"])
    return problem.model.module_with(problem.network(variables))
