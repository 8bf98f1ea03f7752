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
