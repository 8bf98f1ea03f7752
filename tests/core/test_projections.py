"""Projections against their defining optimality conditions, an active-set reference and extreme inputs."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline import projections

vectors = st.lists(st.floats(-10, 10), min_size=1, max_size=6).map(lambda v: torch.tensor(v, dtype=torch.float64))


def simplex_by_enumeration(v: torch.Tensor) -> torch.Tensor:
    """The quadratic program solved by trying every support: on a support S the solution is v_S - (sum v_S - 1)/|S|."""
    best, best_distance = None, float("inf")
    for k in range(1, len(v) + 1):
        for support in itertools.combinations(range(len(v)), k):
            s = list(support)
            x = torch.zeros_like(v)
            x[s] = v[s] - (v[s].sum() - 1) / k
            if (x >= -1e-12).all() and (distance := float((x - v).square().sum())) < best_distance - 1e-15:
                best, best_distance = x, distance
    assert best is not None
    return best


@settings(deadline=None, max_examples=60)
@given(vectors)
def test_simplex_solves_the_quadratic_program(v):
    torch.testing.assert_close(projections.simplex(v), simplex_by_enumeration(v), atol=1e-9, rtol=0)


@settings(deadline=None, max_examples=60)
@given(vectors)
def test_simplex_is_idempotent_keeps_order_and_ignores_shifts(v):
    x = projections.simplex(v)
    torch.testing.assert_close(projections.simplex(x), x, atol=1e-12, rtol=0)
    torch.testing.assert_close(projections.simplex(v + 3.0), x, atol=1e-9, rtol=0)
    order = v.argsort()
    assert (x[order].diff() >= -1e-12).all()


@pytest.mark.parametrize(
    ("v", "expected"),
    [
        ([0.2, 0.3, 0.5], [0.2, 0.3, 0.5]),
        ([1e9, 0.0, -1e9], [1.0, 0.0, 0.0]),
        ([1e9, 1e9, -1e30], [0.5, 0.5, 0.0]),
        ([0.0, 0.0, 0.0, 0.0], [0.25] * 4),
        ([7.0], [1.0]),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_simplex_values(v, expected, dtype):
    x = projections.simplex(torch.tensor(v, dtype=dtype))
    torch.testing.assert_close(x, torch.tensor(expected, dtype=dtype))


def test_simplex_works_on_every_row():
    v = torch.randn(4, 5, dtype=torch.float64)
    rows = torch.stack([projections.simplex(row) for row in v])
    torch.testing.assert_close(projections.simplex(v), rows, atol=0, rtol=0)


def test_simplex_of_ten_thousand_clients_sums_to_one_in_single_precision():
    x = projections.simplex(torch.full((10_000,), 1e-4) + 1e-3 * torch.randn(10_000))
    assert (x >= 0).all()
    assert float(x.double().sum()) == pytest.approx(1.0, abs=1e-4)


def test_ball():
    v = torch.tensor([3.0, 4.0])
    torch.testing.assert_close(projections.ball(v, 1.0), torch.tensor([0.6, 0.8]))
    torch.testing.assert_close(projections.ball(v, 5.0), v)
    torch.testing.assert_close(projections.ball(torch.zeros(2), 1.0), torch.zeros(2))
    assert projections.ball(torch.full((2,), 1e25), 1.0).isnan().all()  # its norm is no number in float32


@pytest.mark.parametrize("kind", [float, torch.tensor])
def test_clipping_by_hand(kind):
    """(3, 4) has norm 5. A norm of 0 means none, also as a tensor, where nothing may branch."""
    v = torch.tensor([[3.0, 4.0], [0.3, 0.4]], dtype=torch.float64)
    for norm, first in ((2.5, [1.5, 2.0]), (5.0, [3.0, 4.0]), (10.0, [3.0, 4.0]), (0.0, [3.0, 4.0])):
        clipped = projections.clip(v, kind(norm))
        torch.testing.assert_close(clipped, torch.tensor([first, [0.3, 0.4]], dtype=torch.float64))
