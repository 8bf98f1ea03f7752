"""What scores of samples can give without sampling: data cleaning with softmax regression, by full batches.

    python -m experiments.fedbio.full_batch

The bilevel problem of the part `data_cleaning` (panel noise 0.8, seed 0) without what a method adds: no minibatches,
no local steps, y*(x) and the adjoint by Newton's method and conjugate gradients, gradient descent on the scores from x
= 0. FedBiO specification, section 4.1; all clients have as many samples, so means over clients are means over samples.

    y*(x) = argmin_y (1/S) sum_s sigmoid(x_s) CE_s(y) + l2/2 ||y||^2          [D, C], bias included
    (H + damping I) v = grad f(y*(x))                                          H: the lower Hessian at y*(x)
    x <- x - step h,   h_s = -sigmoid'(x_s) <grad CE_s(y*), v>                 S times the hypergradient's component

Up to tolerances: Newton's steps (at most 10) end at a lower gradient of norm 0.001, conjugate gradients (at most 50
steps) at an adjoint's relative residual of 0.05. damping 0 is the hypergradient; a larger one is Tikhonov's, which
keeps the adjoint small where the lower loss is flat, as adjoints by few steps are. A path's step is such that the
scores' first change is 1 in root mean square, so it differs between dampings. The paths go to full_batch.csv beside
this file.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from experiments import former
from experiments.cells import fetch
from experiments.study import load_study
from pipeline.command import answering
from pipeline.data.datasets import load
from pipeline.data.partition import make_partition
from pipeline.params.resolve import resolve
from pipeline.problems.data_cleaning import DataCleaning
from pipeline.training.setup import build_problem, device_for

DAMPINGS = (0.0, 0.05, 1.0)
FIRST_CHANGE = 1.0
STEPS = 20


@dataclass(frozen=True)
class Softmax:
    """Weighted softmax regression. X: [S, D] with a column of ones. labels: [S]. classes: C."""

    X: Tensor
    labels: Tensor
    classes: int
    l2: float

    def residuals(self, Y: Tensor) -> Tensor:
        """Softmax minus one-hot label, [S, C]: sample s has the gradient X_s residual_s^T."""
        return torch.softmax(self.X @ Y, 1) - F.one_hot(self.labels, self.classes).to(Y)

    def gradient(self, Y: Tensor, weights: Tensor) -> Tensor:
        return self.X.T @ (self.residuals(Y) * weights[:, None]) / len(self.X) + self.l2 * Y

    def hessian(self, Y: Tensor, weights: Tensor, damping: float = 0.0) -> Callable[[Tensor], Tensor]:
        """V -> (H + damping I) V."""
        P = torch.softmax(self.X @ Y, 1)

        def product(V: Tensor) -> Tensor:
            Z = P * (self.X @ V)
            curved = Z - P * Z.sum(1, keepdim=True)
            return self.X.T @ (curved * weights[:, None]) / len(self.X) + (self.l2 + damping) * V

        return product

    def minimise(self, weights: Tensor, Y: Tensor, tolerance: float, iterations: int = 10) -> Tensor:
        """At most that many of Newton's steps from Y, until the gradient's norm is below the tolerance."""
        for _ in range(iterations):
            g = self.gradient(Y, weights)
            if g.norm() < tolerance:
                break
            Y = Y - solve(self.hessian(Y, weights), g, torch.zeros_like(Y), 0.1)
        return Y


def solve(product: Callable[[Tensor], Tensor], b: Tensor, x: Tensor, tolerance: float, iterations: int = 50) -> Tensor:
    """At most that many conjugate gradient steps from x, until the residual is that part of b."""
    r = b - product(x)
    p, square = r, r.square().sum()
    for _ in range(iterations):
        if square.sqrt() <= tolerance * b.norm():
            break
        Ap = product(p)
        alpha = square / (p * Ap).sum()
        x, r = x + alpha * p, r - alpha * Ap
        p, square = r + r.square().sum() / square * p, r.square().sum()
    return x


@dataclass(frozen=True)
class Iterate:
    """x [S], y*(x), the adjoint v (warm start of the next), and h [S]."""

    x: Tensor
    Y: Tensor
    V: Tensor
    h: Tensor


def path(
    train: Softmax, clean: Softmax, damping: float, tolerance: tuple[float, float] = (1e-3, 0.05)
) -> Iterator[Iterate]:
    """Gradient descent on the scores, without end. tolerance: the lower gradient's norm; the adjoint's relative
    residual."""
    Y = train.X.new_zeros(train.X.shape[1], train.classes)
    x, V, step = train.X.new_zeros(len(train.X)), torch.zeros_like(Y), 0.0
    while True:
        weights = torch.sigmoid(x)
        Y = train.minimise(weights, Y, tolerance[0])
        V = solve(
            train.hessian(Y, weights, damping), clean.gradient(Y, clean.X.new_ones(len(clean.X))), V, tolerance[1]
        )
        h = -weights * (1 - weights) * (train.residuals(Y) * (train.X @ V)).sum(1)
        yield Iterate(x, Y, V, h)
        step = step or FIRST_CHANGE / float(h.square().mean().sqrt())
        x = x - step * h


def run() -> None:
    """Every damping's path, to the table."""
    study = load_study("fedbio", "full")
    slots = study.table("data_cleaning")
    cell = next(s.cell for s in slots if (s.panel, s.row, s.cell.seed) == ("noise 0.8", "FedBiO", 0))
    params = resolve(former.parameters(cell.settings))
    fetch(params.data.name, study.folder / "data")
    raw = load(study.folder / "data" / params.data.name)
    partition = make_partition(raw.train_labels, raw.name, raw.classes, params.partition, params.seed)
    problem = build_problem(params, raw, partition, device_for(params.train.accelerator))
    assert isinstance(problem, DataCleaning)
    train, clean = regressions(problem)
    data, target = problem.data, study.folder / "full_batch.csv"
    rows: list[dict[str, float]] = []
    for damping in DAMPINGS:
        for step, point in zip(range(STEPS + 1), path(train, clean, damping), strict=False):
            row = {
                "damping": damping,
                "step": step,
                "test_accuracy": _accuracy(point.Y, data.test_images, data.test_labels),
                "validation_loss": float(F.cross_entropy(clean.X @ point.Y, clean.labels)),
                **problem.measure({"x": point.x / problem.scale}),
            }
            rows.append({name: round(value, 5) for name, value in row.items()})
            print(", ".join(f"{name} {value:.4g}" for name, value in row.items()), flush=True)
        with target.open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0].keys(), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    print(f"wrote {target.relative_to(study.folder.parents[1])}")


def regressions(problem: DataCleaning) -> tuple[Softmax, Softmax]:
    """The problem's lower loss, and its upper one on the clients' own validation samples."""
    data, own = problem.data, problem.data.own_validation
    train = Softmax(_inputs(data.images[data.indices]), data.labels, data.classes, problem.l2)
    return train, Softmax(_inputs(data.images[own.rows]), own.labels, data.classes, 0.0)


def _inputs(images: Tensor) -> Tensor:
    """Pixels in [0, 1] and a one, [m, D]."""
    flat = images.flatten(1).float() / 255
    return torch.cat([flat, flat.new_ones(len(flat), 1)], 1)


def _accuracy(Y: Tensor, images: Tensor, labels: Tensor) -> float:
    return float(((_inputs(images) @ Y).argmax(1) == labels).double().mean())


if __name__ == "__main__":
    answering(run)
