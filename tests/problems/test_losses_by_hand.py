"""What the bilevel problems on images minimise, at a generic point, against their formulas written out for softmax
regression with torch's own cross-entropy. (Finite differences of a loss accept any loss.)"""

import pytest
import torch
import torch.nn.functional as F

from pipeline.problems.client_weighting import ClientWeighting
from pipeline.problems.data_cleaning import DataCleaning
from pipeline.problems.fair import Fair
from pipeline.problems.general_weighting import GeneralImageWeighting
from pipeline.problems.loss_tuning import LossTuning
from tests.problems.small import CLASSES, CLIENTS, P, data, network, start

L2 = 0.3


@pytest.fixture(scope="module")
def held():
    return data()


def points(problem, seed=0):
    """x and a row of y for every client, none like another."""
    x, y = start(problem, seed)
    Y = torch.stack([start(problem, seed + 1 + i)[1] for i in range(CLIENTS)])
    return x, x.expand(CLIENTS, -1), Y - 0.5 * y


def scores(y, X):
    """Of softmax regression: y holds the 3 x 16 matrix, then the 3 shifts."""
    return X.flatten(1) @ y[:48].view(CLASSES, 16).T + y[48:]


def by_hand(batch, Y, loss):
    """loss(client, its scores, its labels) for every client."""
    return torch.stack([loss(i, scores(Y[i], batch[0][i]), batch[1][i]) for i in range(CLIENTS)])


def close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


ALL_CLIENTS = torch.arange(CLIENTS)


def test_loss_tuning(held):
    v = torch.tensor([1.0, 0.2, 3.0], dtype=torch.float64)
    problem = LossTuning(network(), held, P, l2=L2, class_weights=v)
    x, X, Y = points(problem)
    d, shift = x[:3], x[3:]
    lower, upper = problem.draw_lower(1, ALL_CLIENTS, 5), problem.draw_upper(2, ALL_CLIENTS, 5)
    close(
        problem.lower_losses(X, Y, lower),
        by_hand(lower, Y, lambda i, s, y: F.cross_entropy(s / (1 + (-d).exp()) + shift, y) + L2 / 2 * Y[i] @ Y[i]),
    )
    close(problem.upper_losses(X, Y, upper), by_hand(upper, Y, lambda i, s, y: F.cross_entropy(s, y, weight=v)))


@pytest.mark.parametrize("q", [0.0, 1.5])
def test_fair(held, q):
    problem = Fair(network(), held, P, l2=L2, q=q)
    x, X, Y = points(problem)
    pi = x.exp() / x.exp().sum()
    lower, upper = problem.draw_lower(1, ALL_CLIENTS, 5), problem.draw_upper(2, ALL_CLIENTS, 5)
    close(
        problem.lower_losses(X, Y, lower),
        by_hand(lower, Y, lambda i, s, y: 4 * pi[i] * F.cross_entropy(s, y) + L2 / 2 * Y[i] @ Y[i]),
    )
    expected = by_hand(upper, Y, lambda i, s, y: F.cross_entropy(s, y) ** (q + 1) / (q + 1))
    close(problem.upper_losses(X, Y, upper), expected)
    close(problem.client_weights({"x": x}), pi)


def test_data_cleaning(held):
    """The weight belongs to the sample that was drawn, wherever its client's part begins."""
    problem = DataCleaning(network(), held, P, l2=L2, scale=2.0)
    x, X, Y = points(problem)
    X_l, y_l, places = lower = problem.draw_lower(1, ALL_CLIENTS, 5)
    close(X_l, held.scaled(held.images[held.indices[places.flatten()]]).view(X_l.shape))
    assert torch.equal(y_l, held.labels[places])

    def loss(i, s, y):
        weights = 1 / (1 + (-2 * x[places[i]]).exp())
        return (weights * F.cross_entropy(s, y, reduction="none")).sum() / 5 + L2 / 2 * Y[i] @ Y[i]

    close(problem.lower_losses(X, Y, lower), by_hand(lower, Y, loss))
    upper = problem.draw_upper(2, ALL_CLIENTS, 5)
    close(problem.upper_losses(X, Y, upper), by_hand(upper, Y, lambda i, s, y: F.cross_entropy(s, y)))


def test_client_weighting_as_a_general_problem(held):
    """sum_i p_i g_i with p_i = 1/N and g_i = N x_i f_i is the weighted loss."""
    problem = GeneralImageWeighting(ClientWeighting(network(), held, l2=L2))
    x, X, Y = points(problem)
    batch = problem.draw_lower(1, ALL_CLIENTS, 5)
    close(
        problem.lower_losses(X, Y, batch),
        by_hand(batch[1:], Y, lambda i, s, y: 4 * x[i] * (F.cross_entropy(s, y) + L2 / 2 * Y[i] @ Y[i])),
    )
