"""Data cleaning with softmax regression by full batches, against finite differences and the library's problem."""

from itertools import islice

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from experiments.fedbio.full_batch import FIRST_CHANGE, Softmax, path, regressions, solve
from pipeline.config.spec import override
from pipeline.data.federated import Parts
from pipeline.data.partition import make_partition
from pipeline.data.sets.digits import read
from pipeline.params import Params
from pipeline.params.resolve import resolve
from pipeline.problems.data_cleaning import DataCleaning
from pipeline.training.setup import build_problem

S, D, C, L2 = 14, 4, 3, 0.05
EXACT = (1e-12, 1e-12)


@pytest.fixture
def train() -> Softmax:
    g = torch.Generator().manual_seed(1)
    X = torch.randn(S, D, generator=g, dtype=torch.float64)
    return Softmax(X, torch.randint(C, (S,), generator=g), C, L2)


@pytest.fixture
def clean() -> Softmax:
    g = torch.Generator().manual_seed(2)
    X = torch.randn(6, D, generator=g, dtype=torch.float64)
    return Softmax(X, torch.randint(C, (6,), generator=g), C, 0.0)


def lower_loss(train: Softmax, Y: Tensor, weights: Tensor) -> Tensor:
    losses = F.cross_entropy(train.X @ Y, train.labels, reduction="none")
    return (weights * losses).mean() + 0.5 * L2 * Y.square().sum()


def upper_loss(train: Softmax, clean: Softmax, x: Tensor) -> Tensor:
    """f(y*(x))."""
    Y = train.minimise(torch.sigmoid(x), train.X.new_zeros(D, C), 1e-13, 200)
    return F.cross_entropy(clean.X @ Y, clean.labels)


def test_derivatives_of_the_lower_loss_are_autograds(train: Softmax) -> None:
    Y, V = torch.randn(2, D, C, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    weights = torch.linspace(0.1, 0.9, S, dtype=torch.float64)
    gradient = torch.func.grad(lambda Y: lower_loss(train, Y, weights))
    product = torch.func.jvp(gradient, (Y,), (V,))[1]
    torch.testing.assert_close(train.gradient(Y, weights), gradient(Y))
    torch.testing.assert_close(train.hessian(Y, weights, 0.3)(V), product + 0.3 * V)


def test_conjugate_gradients_solve() -> None:
    A = torch.tensor([[3.0, 1.0], [1.0, 2.0]], dtype=torch.float64)
    x = solve(
        lambda v: A @ v, torch.tensor([5.0, 5.0], dtype=torch.float64), torch.zeros(2, dtype=torch.float64), 1e-14
    )
    torch.testing.assert_close(x, torch.tensor([1.0, 2.0], dtype=torch.float64))


def test_the_hypergradient_is_that_of_the_exact_upper_loss(train: Softmax, clean: Softmax) -> None:
    """At a point away from the start; h is S times the derivative."""
    point = next(islice(path(train, clean, 0.0, EXACT), 3, None))
    for s in range(S):
        e = torch.zeros(S, dtype=torch.float64)
        e[s] = 1e-5
        difference = (upper_loss(train, clean, point.x + e) - upper_loss(train, clean, point.x - e)) / 2e-5
        torch.testing.assert_close(point.h[s] / S, difference, rtol=1e-5, atol=1e-9)


def test_much_damping_is_the_validation_gradient(train: Softmax, clean: Softmax) -> None:
    point = next(path(train, clean, 1e9, EXACT))
    torch.testing.assert_close(1e9 * point.V, clean.gradient(point.Y, torch.ones(6, dtype=torch.float64)))


def test_the_first_change_of_the_scores_is_as_large_as_told_and_helps(train: Softmax, clean: Softmax) -> None:
    first, second = islice(path(train, clean, 0.0, EXACT), 2)
    assert float(second.x.square().mean().sqrt()) == pytest.approx(FIRST_CHANGE)
    assert upper_loss(train, clean, second.x) < upper_loss(train, clean, first.x)


def test_the_regressions_are_the_librarys_problem() -> None:
    """Losses at random scores and a random network, all samples of every client in one batch."""
    settings = {"data.name": "digits", "model.name": "linear", "problem": "data_cleaning", "algorithm": "fedbio"}
    params = resolve(override(Params(), settings | {"partition.scheme": "cleaning"}))
    raw = read({}, None)
    partition = make_partition(raw.train_labels, raw.name, raw.classes, params.partition, 0)
    problem = build_problem(params, raw, partition, torch.device("cpu"))
    assert isinstance(problem, DataCleaning)
    train, clean = regressions(problem)
    data, clients = problem.data, torch.arange(problem.clients)
    g = torch.Generator().manual_seed(4)
    x = torch.randn(len(data.labels), generator=g) / problem.scale
    y = torch.randn(problem.lower_dimension, generator=g)
    Y = torch.cat([y[: -data.classes].view(data.classes, -1).T, y[-data.classes :][None]])  # weight, then bias

    def everything(parts: Parts) -> tuple[Tensor, Tensor, Tensor]:
        positions = torch.arange(int(parts.sizes[0])).expand(len(clients), -1)
        return *data.batch(clients, positions, parts), parts.starts[:, None] + positions

    each = y.expand(len(clients), -1)
    lower = problem.lower_losses(x.expand(len(clients), -1), each, everything(data.training)).mean()
    weights = torch.sigmoid(problem.scale * x)
    losses = F.cross_entropy(train.X @ Y, train.labels, reduction="none")
    torch.testing.assert_close((weights * losses).mean() + 0.5 * train.l2 * Y.square().sum(), lower)
    upper = problem.upper_losses(x.expand(len(clients), -1), each, everything(data.own_validation)[:2]).mean()
    torch.testing.assert_close(F.cross_entropy(clean.X @ Y, clean.labels), upper)
