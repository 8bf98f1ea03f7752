"""Learned client weights with many local steps: where the rule rests, in closed form (float64)."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from pipeline import projections
from pipeline.algorithms import ALGORITHMS
from pipeline.oracles import FusedLocal, LoopLocal
from pipeline.params.methods import LearnedWeights
from tests.core.consensus.quadratics import Closed, Quadratics, close, options, run, theta, turn_for


@dataclass(frozen=True)
class WeightedQuadratics(Quadratics):
    """With a server: f_0(w) = ||w - target||^2 / 2."""

    target: Tensor | None = None

    @property
    def oracle_weights(self) -> Tensor:
        return torch.full((self.clients,), 1 / self.clients, dtype=torch.float64)

    def draw_validation(self, stream):
        return ()

    def validation_loss(self, w, batch):
        return 0.5 * (w - self.target).square().sum()


class ByHand(Closed):
    """Products and the server's gradient by hand, for long runs."""

    def weighted_product(self, w, lam, batch, c):
        clients, e = batch
        A = self.local.A[clients]
        return torch.einsum("i,ikl,l->k", c, A, lam), (
            torch.einsum("ikl,l->ik", A, w) - self.local.b[clients] + e
        ) @ lam

    def validation_gradient(self, w, batch):
        return w - self.local.target


@pytest.fixture(scope="module")
def problem():
    """Four clients; the server wants what lies between the first two clients' optima."""
    base = Quadratics.generate(4, 3, seed=2)
    optima = torch.linalg.solve(base.A, base.b)
    return WeightedQuadratics(base.A, base.b, target=0.6 * optima[0] + 0.4 * optima[1])


def settings(K):
    sizes = {1: (0.2, 0.3, 0.1), 4: (0.3, 0.5, 0.5)}[K]
    weights = LearnedWeights("learned", *sizes, dual_radius=1e9, dual_damping=0.0)
    return {"eta": 0.3, "local_steps": K, "weights": weights}


@pytest.mark.parametrize("K", [1, 4])
def test_where_it_rests(problem, K):
    """The clients' changes cancel, H lambda = -grad f_0(w), and x wants to move no more; better than equal weights."""
    rounds = 600
    state = run("fedavg", problem, rounds, oracle=ByHand, **settings(K))
    w, lam, x = (state.variables[name] for name in ("w", "lambda", "x"))
    q = torch.linalg.matrix_power(torch.eye(3, dtype=torch.float64) - 0.3 * problem.A, K)
    optima = torch.linalg.solve(problem.A, problem.b)
    models = optima + torch.einsum("ikl,il->ik", q, w - optima)  # K steps on a quadratic
    close(x @ (models - w), torch.zeros(3, dtype=torch.float64))
    H = torch.einsum("i,ikl->kl", x, problem.A)
    close(H @ lam, problem.target - w)
    slope = problem.gradients(w) @ lam
    assert (x - projections.simplex(x - slope)).norm() < 1e-10
    assert (x - 0.25).abs().max() > 0.05
    equal = run("fedavg", problem, rounds, eta=0.3, local_steps=K, weights=LearnedWeights(mode="plain"))
    assert problem.validation_loss(w, ()) < 0.5 * problem.validation_loss(theta(equal), ())


def test_fused_loop_and_hand_agree(problem):
    a, b, c = (run("fedavg", problem, 6, oracle=o, **settings(4)) for o in (FusedLocal, LoopLocal, ByHand))
    for other in (b, c):
        for name, value in a.variables.items():
            close(other.variables[name], value, 1e-11)


def test_the_references_have_fixed_weights(problem):
    for mode in ("plain", "oracle"):
        hyper = options("fedavg", weights=LearnedWeights(mode=mode))
        turn = turn_for(problem, hyper, oracle=FusedLocal)
        state = ALGORITHMS["fedavg"].init(turn)
        step = ALGORITHMS["fedavg"].step(state, turn)
        assert set(step.directions) == {"w"}
        assert set(ALGORITHMS["fedavg"].step_sizes(hyper)) == {"w"}
        assert step.cost.hvps == 0
