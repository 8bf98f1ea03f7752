"""Few-shot learning: the body of a network above, below it a last layer for each of a client's tasks.

Section 4.2 of the FedBiO specification. Client m has T tasks of `ways` classes; task t has a support set S_t (`shots`
of each class) in the client's training part and a query set Q_t in its validation part.

    min_x sum_m p_m f_m(x, y^m(x)),    y^m(x) = argmin_y g_m(x, y),    y^m = (y_1, ..., y_T)

    f_m = (1/T) sum_t mean cross-entropy of (x, y_t) on Q_t
    g_m =       sum_t mean cross-entropy of (x, y_t) on S_t + rho/2 ||y_t||^2

| symbol | here | shape |
|---|---|---|
| x | the body: every layer but the last | [d_x] |
| y^m | the client's last layers, weight and bias, task after task | [T d_h], d_h = ways (features + 1) |
| rho | `mu` | |

The specification has the mean over tasks in g_m too. No two tasks share a last layer, so y^m(x) and the hypergradient
are the same for the sum, whose last layers move at a pace that does not depend on T.

What is tested is the body alone, on tasks of classes that nobody trains on: each gets a last layer fitted to its
support set (`fit`), and answers its query set. The network that is served has that body and a last layer of zeros.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pipeline.data.federated import Parts
from pipeline.errors import not_allowed
from pipeline.problems.base import Variables
from pipeline.problems.bilevel_images import ImageBilevel, Minibatch, cross_entropies
from pipeline.problems.served import CHUNK
from pipeline.seeds import numpy_generator

FIT_STEPS = 1000
"""Of accelerated descent, for a new task's last layer."""


@dataclass(frozen=True)
class FewShot(ImageBilevel):
    """model: has `ways` outputs. The clients' parts lie as the scheme `few_shot` deals them out
    (`pipeline.data.few_shot`); all clients have equally many tasks. test_tasks: of how many the test consists."""

    ways: int = 5
    shots: int = 1
    queries: int = 15
    mu: float = 0.01
    test_tasks: int = 100

    @property
    def local_lower(self) -> bool:
        return True

    @property
    def tasks(self) -> int:
        """T."""
        return int(self.data.sizes[0]) // (self.ways * self.shots)

    @property
    def upper_dimension(self) -> int:
        return self.model.d - self.model.head

    @property
    def lower_dimension(self) -> int:
        return self.tasks * self.model.head

    def initial_upper(self, seed: int) -> Tensor:
        return self.initial_network(seed)[: self.upper_dimension]

    def initial_lower(self, seed: int) -> Tensor:
        """Zeros: a new task knows nothing."""
        return self.initial_upper(seed).new_zeros(self.lower_dimension)

    # ------------------------------------------------------------------------------- minibatches

    def draw_upper(self, stream: int, clients: Tensor, size: int) -> Minibatch:
        return self._named(self.draw(self.data.own_validation, stream, clients, size), self.queries)

    def draw_lower(self, stream: int, clients: Tensor, size: int) -> Minibatch:
        return self._named(self.draw(self.data.training, stream, clients, size), self.shots)

    def _named(self, drawn: tuple[Tensor, Minibatch], each: int) -> Minibatch:
        """Images [n, B, C, H, W], each one's class within its task [n, B], and the task [n, B]."""
        positions, (images, _) = drawn
        return images, *self._places(positions, each)

    def _places(self, positions: Tensor, each: int) -> tuple[Tensor, Tensor]:
        """(class within the task, task) of samples at these places in their client's part, with `each` per class."""
        return positions // each % self.ways, positions // (each * self.ways)

    # ------------------------------------------------------------------------------------ losses

    def upper_losses(self, X: Tensor, Y: Tensor, batch: Minibatch) -> Tensor:
        images, ways, tasks = batch
        scores = self._scores(self.model.features_each(X, images), Y, tasks)
        return cross_entropies(scores, ways).mean(dim=1)

    def lower_losses(self, X: Tensor, Y: Tensor, batch: Minibatch) -> Tensor:
        return self.tasks * self.upper_losses(X, Y, batch) + 0.5 * self.mu * Y.square().sum(dim=1)

    def _scores(self, features: Tensor, Y: Tensor, tasks: Tensor) -> Tensor:
        """Logits [n, B, ways] of features [n, B, F], each under the last layer of its task, of those of its client."""
        F, T = features.shape[2], self.tasks
        weight, bias = Y.view(len(Y), T, self.model.head).split([self.ways * F, self.ways], dim=2)
        # Under every task's layer, of which one is taken: a single product.
        scores = torch.baddbmm(bias.reshape(len(Y), 1, -1), features, weight.reshape(len(Y), T * self.ways, F).mT)
        scores = scores.view(*tasks.shape, T, self.ways)
        return scores.gather(2, tasks[:, :, None, None].expand(-1, -1, 1, self.ways))[:, :, 0]

    # ------------------------------------------------------------------------- values and measures

    def network(self, variables: Variables) -> Tensor:
        return torch.cat([variables["x"], variables["x"].new_zeros(self.model.head)])

    @property
    def measures(self) -> tuple[str, ...]:
        return ("train_accuracy",)

    def measure(self, variables: Variables) -> dict[str, float]:
        """On all query samples of the clients' own tasks."""
        right = [scores.argmax(1) == y for scores, y, _ in self.scored(variables, self.data.own_validation)]
        return {"train_accuracy": float(torch.cat(right).double().mean())}

    def scored(
        self, variables: Variables, parts: Parts, at: Tensor | None = None
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Logits [b, ways] under their tasks' layers, classes within the task [b] and owners [b] of query samples."""
        if parts is not self.data.own_validation:
            raise ValueError("query samples alone are scored")
        owners, at = parts.owners, torch.arange(len(parts.rows), device=parts.rows.device) if at is None else at
        for chunk in at.split(CHUNK):
            whose = owners[chunk]
            ways, tasks = self._places(chunk - parts.starts[whose], self.queries)
            X, _ = self.data.samples(chunk, parts, whose)
            with torch.no_grad():
                features = self.model.exact.features(variables["x"], X)
                yield self._scores(features[:, None], variables["Y"][whose], tasks[:, None])[:, 0], ways, whose

    # ----------------------------------------------------------------------------------- new tasks

    def answers_on_new_tasks(self, variables: Variables, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Query samples of tasks made of these images [M, ...] as stored and their labels [M], with a last layer fitted
        to each task's support set: logits [m, ways] and classes within the task [m]. The tasks are always the same."""
        rows = new_tasks(labels.cpu().numpy(), self.ways, self.shots + self.queries, self.test_tasks)
        used, places = np.unique(rows, return_inverse=True)
        with torch.no_grad():
            chosen = images[torch.from_numpy(used).to(images.device)]
            chunks = (self.data.scaled(chunk) for chunk in chosen.split(CHUNK))
            features = torch.cat([self.model.exact.features(variables["x"], chunk) for chunk in chunks])
            held = features[torch.from_numpy(places.reshape(rows.shape)).to(features.device)]
            support, query = (part.flatten(1, 2) for part in held.split([self.shots, self.queries], dim=2))
            weight, bias = fit(support, self.ways, self.mu)
            scores = torch.baddbmm(bias[:, None], query, weight.mT)
        ways = torch.arange(self.ways, device=scores.device).repeat_interleave(self.queries).repeat(len(rows))
        return scores.flatten(0, 1), ways


def new_tasks(labels: np.ndarray, ways: int, each: int, count: int) -> np.ndarray:
    """[count, ways, each]: for each task `each` images of `ways` classes at random, rows of `labels` [M]. Classes with
    fewer images are left out. The same for equal arguments. UserError if less than `ways` classes remain."""
    classes = np.flatnonzero(np.bincount(labels) >= each)
    if len(classes) < ways:
        raise not_allowed(
            "partition.few_shot.ways",
            ways,
            f"at most {len(classes)}, the test classes with {each} images (shots and queries)",
            "lower it, or shots or queries",
        )
    order = np.argsort(labels, kind="stable")
    first = np.searchsorted(labels[order], np.arange(labels.max() + 2))
    tasks = np.empty((count, ways, each), dtype=np.int64)
    for task in range(count):
        random = numpy_generator(0, "new tasks", task)
        for way, c in enumerate(random.permutation(classes)[:ways]):
            tasks[task, way] = order[first[c] + random.permutation(first[c + 1] - first[c])[:each]]
    return tasks


def fit(support: Tensor, ways: int, mu: float) -> tuple[Tensor, Tensor]:
    """The last layer of each new task, weight [E, ways, F] and bias [E, ways], from the features of its support set
    [E, ways shots, F], class after class: the minimiser of mean cross-entropy + mu/2 ||weight, bias||^2.

    Nesterov's descent for strong convexity mu from zeros, its step 1/L; L = mu + half the largest eigenvalue of the
    features' second moment, since softmax's Hessian is at most 1/2.
    """
    E, S, _ = support.shape
    inputs = torch.cat([support, support.new_ones(E, S, 1)], dim=2)
    targets = torch.eye(ways, dtype=support.dtype, device=support.device).repeat_interleave(S // ways, dim=0)
    largest = torch.linalg.eigvalsh(inputs @ inputs.mT / S)[:, -1]
    L = (mu + 0.5 * largest)[:, None, None]
    momentum = (1 - (mu / L).sqrt()) / (1 + (mu / L).sqrt())
    at = ahead = support.new_zeros(E, ways, inputs.shape[2])
    for _ in range(FIT_STEPS):
        errors = (inputs @ ahead.mT).softmax(dim=2) - targets
        before, at = at, ahead - (errors.mT @ inputs / S + mu * ahead) / L
        ahead = at + momentum * (at - before)
    return at[:, :, :-1], at[:, :, -1]
