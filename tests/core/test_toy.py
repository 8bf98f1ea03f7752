"""The toy problem's measures against plain finite differences and hand-made cases."""

import pytest
import torch

from pipeline.oracles import FusedOracle
from pipeline.problems.toy import Toy, stationarity


@pytest.fixture(scope="module")
def toy():
    return Toy.generate(clients=4, seed=3)


def test_measures_are_those_of_the_exact_solution(toy):
    x = torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64)
    w = torch.ones(toy.dimension, dtype=torch.float64)
    found = toy.measure({"w": w, "x": x})
    residual = toy.A[0] @ w - toy.B[0]
    assert found["validation_loss"] == pytest.approx(
        float(residual @ residual / 2 + torch.cos(toy.a[0] @ w - toy.b[0])), rel=1e-12
    )
    # f_0(w*(x)) by plain gradient descent instead of Newton's method
    v = torch.zeros_like(w)
    for _ in range(4000):
        v = v - 0.04 * (x @ toy.gradients(v)[1:])
    residual = toy.A[0] @ v - toy.B[0]
    assert found["upper_value"] == pytest.approx(
        float(residual @ residual / 2 + torch.cos(toy.a[0] @ v - toy.b[0])), rel=1e-9
    )


@pytest.mark.parametrize("vertex", [0, 1])
def test_the_stationarity_at_a_vertex_is_the_slope_inwards(vertex):
    """Two clients, all weight on one: its own gradient is 0 at w*, so the hypergradient is (0, h) with h the slope of
    f_0(w*(x)) towards the other, here below 0. A step of 0.001 goes to (1, 0.001 |h|), whose projection takes half of
    the excess from either: a move of 0.001 |h| / sqrt(2)."""
    two = Toy.generate(clients=2, seed=3)
    x, inwards = torch.eye(2, dtype=torch.float64)[vertex], torch.tensor([-1.0, 1.0], dtype=torch.float64)
    inwards = inwards if vertex == 0 else -inwards
    ends = [two.solve(x + move * inwards).value for move in (1e-5, -1e-5)]
    slope = float(ends[0] - ends[1]) / 2e-5
    assert slope < -30
    found = two.measure({"w": torch.ones(two.dimension, dtype=torch.float64), "x": x})
    assert found["stationarity"] == pytest.approx(0.001 * -slope / 2**0.5, rel=1e-5)


def test_the_functions_have_the_specification_s_variances():
    """1/sqrt(20), 1/sqrt(30), 1/sqrt(20) and 1 of A, B, a and b, given that lambda_min(A^T A - a a^T) >= 0.1, which
    favours short a: 600 clients against pairs (A, a) drawn here and sifted alike. Within 4.5 standard errors, which for
    a variance over n entries are sqrt(2 / n) of it."""
    many, generator = Toy.generate(clients=599, seed=5), torch.Generator().manual_seed(1)
    for found, exact in ((many.B, 30**-0.5), (many.b, 1.0)):
        assert float(found.var()) == pytest.approx(exact, rel=4.5 * (2 / found.numel()) ** 0.5)
    drawn = []
    for _ in range(6):
        A = 20**-0.25 * torch.randn(4000, 30, 20, generator=generator, dtype=torch.float64)
        a = 20**-0.25 * torch.randn(4000, 20, generator=generator, dtype=torch.float64)
        kept = torch.linalg.eigvalsh(A.mT @ A - a[:, :, None] * a[:, None, :])[:, 0] >= 0.1
        drawn.append(torch.stack([A[kept].square().sum((1, 2)), a[kept].square().sum(1)]))
    exact = torch.cat(drawn, 1)
    found = torch.stack([many.A.square().sum((1, 2)), many.a.square().sum(1)])
    error = (exact.var(1) / exact.shape[1] + found.var(1) / 600).sqrt()
    assert ((found.mean(1) - exact.mean(1)).abs() < 4.5 * error).all()


def test_without_weights_only_the_validation_loss_is_known(toy):
    w = torch.zeros(toy.dimension, dtype=torch.float64)
    assert set(toy.measure({"w": w})) == {"validation_loss"}
    assert set(toy.measure({"w": w, "x": torch.zeros(4, dtype=torch.float64)})) == {"validation_loss"}


def test_stationarity_by_hand():
    """Inside the simplex the projection takes the mean away: ||step (g - mean g)||; at a vertex that the gradient
    favours nothing moves."""
    x, g = torch.tensor([0.5, 0.5]), torch.tensor([3.0, 1.0])
    assert stationarity(x, g, step=0.1) == pytest.approx(0.1 * 2**0.5, rel=1e-6)
    assert stationarity(torch.tensor([0.0, 1.0]), g, step=0.1) == pytest.approx(0.0, abs=1e-7)


def test_the_hash_names_the_functions_and_the_noise(toy):
    assert toy.hash == Toy.generate(clients=4, seed=3).hash
    others = [Toy.generate(clients=4, seed=4), Toy.generate(clients=5, seed=3), Toy.generate(4, 3, noise=0.5)]
    assert len({toy.hash, *(other.hash for other in others)}) == 4


def test_the_servers_estimates_are_as_noisy_as_the_clients():
    """White noise of standard deviation 0.5 per entry of grad f_0: 400 draws, three standard errors of a standard
    deviation, 0.5 / sqrt(2 * 400 * d)."""
    noisy = Toy.generate(clients=2, seed=3, noise=0.5)
    w = torch.ones(noisy.dimension, dtype=torch.float64)
    oracle, exact = FusedOracle(noisy), noisy.gradients(w)[0]
    errors = torch.stack([oracle.validation_gradient(w, noisy.draw_validation(k)) - exact for k in range(400)])
    assert float(errors.std()) == pytest.approx(0.5, abs=3 * 0.5 / (2 * errors.numel()) ** 0.5)
    assert float(errors.mean()) == pytest.approx(0.0, abs=4 * 0.5 / errors.numel() ** 0.5)
