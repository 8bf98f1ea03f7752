"""Few-shot learning: the body of a network above, below it a last layer for each of a client's tasks.

Section 4.2 of the FedBiO specification. Client m has T tasks of `ways` classes; task t has a support set S_t (`shots`
of each class) in the client's training part and a query set Q_t in its validation part.

    min_x sum_m p_m f_m(x, y^m(x)),    y^m(x) = argmin_y g_m(x, y),    y^m = (y_1, ..., y_T)

    f_m = (1/T) sum_t mean cross-entropy of (x, y_t) on Q_t
    g_m = (1/T) sum_t ( mean cross-entropy of (x, y_t) on S_t + rho/2 ||y_t||^2 )

| symbol | here | shape |
|---|---|---|
| x | the body: every layer but the last | [d_x] |
| y^m | the client's last layers, weight and bias, task after task | [T d_h], d_h = ways (features + 1) |
| rho, T | `mu`, `tasks` | |

No two tasks share a last layer, so the Hessian of g_m in y is block diagonal, each block 1/T of its task's own.

What is tested is the body alone, on tasks of classes that no client trains on: each gets a last layer fitted to its
support set (`fit`), and answers its query set. The body is also what is saved to be served.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pipeline.config.spec import Section, param
from pipeline.data.federated import FederatedData, Parts
from pipeline.errors import UserError, not_allowed
from pipeline.models import FlatModel
from pipeline.problems.base import Variables
from pipeline.problems.bilevel_images import BodyAbove, Minibatch
from pipeline.problems.forms import Form, Formulation, Given
from pipeline.problems.hyper_representation import require_head
from pipeline.problems.images import CHUNK
from pipeline.seeds import numpy_generator

NEWTON_STEPS, HALVINGS = 20, 12
"""For a new task's last layer."""
HESSIAN_NUMBERS = 2**24
"""Entries of Hessians computed at a time; memory grows with them."""


@dataclass(frozen=True)
class FewShotSettings(Section):
    """The body of the network above, a last layer for each of a client's tasks below."""

    mu: float = param(0.01, "mu/2 ||y||^2 is added to every task's training loss", gt=0, symbol="rho")
    test_tasks: int = param(
        100, "tasks of new classes in the test, each with a last layer fitted to it", ge=1, le=100_000
    )


@dataclass(frozen=True)
class FewShot(BodyAbove):
    """model: has `ways` outputs. The clients' parts lie as the scheme `few_shot` deals them out
    (`pipeline.data.few_shot`). tasks: of each client, T. test_tasks: how many tasks of new classes are tested."""

    ways: int
    shots: int
    queries: int
    tasks: int
    mu: float = 0.01
    test_tasks: int = 100

    @property
    def local_lower(self) -> bool:
        return True

    @property
    def lower_dimension(self) -> int:
        return self.tasks * self.model.head

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
        return self.losses_of(scores, ways).mean(dim=1)

    def lower_losses(self, X: Tensor, Y: Tensor, batch: Minibatch) -> Tensor:
        return self.upper_losses(X, Y, batch) + 0.5 * self.mu / self.tasks * Y.square().sum(dim=1)

    def _scores(self, features: Tensor, Y: Tensor, tasks: Tensor) -> Tensor:
        """Logits [n, B, ways] of features [n, B, F], each under the last layer of its task, of those of its client."""
        n, width, T = len(Y), features.shape[2], self.tasks
        weight, bias = Y.view(n, T, self.model.head).split([self.ways * width, self.ways], dim=2)
        # Under every task's layer, of which one is taken: a single product.
        scores = torch.baddbmm(bias.reshape(n, 1, -1), features, weight.reshape(n, T * self.ways, width).mT)
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
            few = max(1, HESSIAN_NUMBERS // (self.ways * support.shape[1]) ** 2)
            layers = zip(*(fit(part, self.ways, self.mu) for part in support.split(few)), strict=True)
            weight, bias = (torch.cat(parts) for parts in layers)
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
            f"at most {len(classes)}, the test classes with at least {each} images (shots and queries)",
            "lower ways, shots or queries, or raise subset.test",
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
    [E, S, F], class after class: the minimiser of mean cross-entropy + mu/2 ||weight, bias||^2.

    Newton's method with step halving, in double precision, where the minimiser lies: in the span of the S inputs.
    """
    E, S, _ = support.shape
    inputs = torch.cat([support, support.new_ones(E, S, 1)], dim=2).double()
    basis, coordinates = torch.linalg.qr(inputs.mT)  # [E, F + 1, r], [E, r, S]
    U, r = coordinates.mT, coordinates.shape[1]
    classes = torch.arange(ways, device=support.device).repeat_interleave(S // ways)
    targets = F.one_hot(classes, ways).double()
    ridge = mu * torch.eye(ways * r, dtype=U.dtype, device=U.device)

    def value(theta: Tensor) -> Tensor:
        losses = F.cross_entropy((U @ theta.mT).flatten(0, 1), classes.repeat(E), reduction="none")
        return losses.view(E, S).mean(dim=1) + 0.5 * mu * theta.square().sum(dim=(1, 2))

    theta = U.new_zeros(E, ways, r)
    for _ in range(NEWTON_STEPS):
        P = (U @ theta.mT).softmax(dim=2)
        gradient = (P - targets).mT @ U / S + mu * theta
        curvature = torch.diag_embed(P) - P[..., :, None] * P[..., None, :]
        H = torch.einsum("esab,esi,esj->eaibj", curvature, U, U).reshape(E, ways * r, ways * r) / S + ridge
        factor, _ = torch.linalg.cholesky_ex(H)
        move = torch.cholesky_solve(gradient.view(E, ways * r, 1), factor).view_as(theta)
        length, before = U.new_ones(E, 1, 1), value(theta)
        for _ in range(HALVINGS):
            length[value(theta - length * move) > before] /= 2
        theta = theta - length * move
    layer = (theta @ basis.mT).to(support)
    return layer[:, :, :-1], layer[:, :, -1]


def require_features(model: FlatModel, data: FederatedData, name: str) -> None:
    """UserError unless the network's logits are its features under the last layer. name: what params.yaml calls it."""
    w, images = model.initial(0).to(device=data.device, dtype=data.dtype), data.scaled(data.images[:2])
    x, y = w.split([model.d - model.head, model.head])
    try:
        with torch.no_grad():
            scores, features = model.exact.apply(w, images), model.exact.features(x, images)
            weight, bias = y.split([model.head - scores.shape[1], scores.shape[1]])
            same = torch.allclose(features @ weight.view(len(bias), -1).T + bias, scores, rtol=1e-3, atol=1e-4)
    except (AttributeError, RuntimeError):
        same = False
    if not same:
        raise UserError(
            f"problem: few_shot: the last linear layer of model.name: {name} cannot be taken off. Fix: call it once, as"
            " a module, on features [batch, features], and end forward with it."
        )


def build(settings: FewShotSettings, given: Given) -> FewShot:
    """Tasks as `partition.few_shot` dealt them."""
    model, data, name = given.model, given.data, given.params.model.name
    dealt = given.params.partition.few_shot
    require_head(model, data, name, "few_shot")
    require_features(model, data, name)
    ways, shots, queries = dealt.ways, dealt.shots, dealt.queries
    new_tasks(data.test_labels.cpu().numpy(), ways, shots + queries, 1)  # UserError if the test has too few classes
    tasks = int(data.sizes[0]) // (ways * shots)
    return FewShot(model, data, given.probabilities, ways, shots, queries, tasks, settings.mu, settings.test_tasks)


FEW_SHOT = Formulation(
    name="few_shot",
    summary="body above, a last layer for each task below",
    settings=FewShotSettings,
    offers=(Form.LOCAL_LOWER,),
    build=build,
    upper_on_clients=lambda settings, clean_parts: True,
    own_data=True,
    numbers=False,
    body=True,
)
