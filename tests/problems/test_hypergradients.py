"""Every problem's hypergradient, assembled from the oracle's pieces with y*(x) and v solved densely, against central
differences of the upper value; and what the specifications say of its parts."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch.func import hessian, jacrev

from pipeline import randomness
from pipeline.methods import ALGORITHMS
from pipeline.methods.bilevel.aggitd import AggItd
from pipeline.methods.bilevel.fedbio import FedBio
from pipeline.methods.bilevel.fedbioacc import FedBioAcc
from pipeline.methods.bilevel.fednest_general import FedNestGeneral
from pipeline.methods.bilevel.lfednest import LFedNest
from pipeline.methods.bilevel.simfbo import SimFbo
from pipeline.oracles.bilevel import BilevelOracle, LoopBilevelOracle
from tests.core.bilevel.helpers import make_context, one_round
from tests.problems.small import CLIENTS, OWN, TRAIN, P, problems, start

PROBLEMS = problems()
# The unsquared norm alone is not strongly convex, so y*(x) need not exist: only its derivatives are tested.
SOLVABLE = [name for name in PROBLEMS if name != "hyper_representation, norm"]
ALL_CLIENTS = torch.arange(CLIENTS)
every_problem = pytest.mark.parametrize("name", PROBLEMS)
every_solvable = pytest.mark.parametrize("name", SOLVABLE)


@pytest.fixture
def whole(monkeypatch):
    """Minibatches are the clients' whole parts, in order."""
    monkeypatch.setattr(randomness, "positions", lambda _, clients, sizes, n: torch.arange(n).expand(len(clients), n))


def batches(problem):
    return problem.draw_upper(0, ALL_CLIENTS, OWN), problem.draw_lower(0, ALL_CLIENTS, TRAIN)


def lower_solution(problem, x, y, batch, weights):
    """argmin_y sum_i weights_i g_i(x, y), by Newton's method with step halving."""

    def value(u):
        return weights @ problem.lower_losses(x.expand(CLIENTS, -1), u.expand(CLIENTS, -1), batch)

    for _ in range(60):
        gradient = jacrev(value)(y)
        if gradient.norm() < 1e-10:
            return y
        move, length = torch.linalg.solve(hessian(value)(y), gradient), 1.0
        while value(y - length * move) > value(y) and length > 1e-6:
            length /= 2
        y = y - length * move
    assert gradient.norm() < 1e-9
    return y


def solved(problem, x, y):
    """Each client's lower solution, [N, d_y]: the common one, or its own."""
    batch = batches(problem)[1]
    if not problem.local_lower:
        return lower_solution(problem, x, y, batch, problem.client_probabilities).expand(CLIENTS, -1)
    return torch.stack([lower_solution(problem, x, y, batch, torch.eye(CLIENTS).double()[i]) for i in ALL_CLIENTS])


def upper_value(problem, x, y):
    X = x.expand(CLIENTS, -1)
    return problem.client_probabilities @ problem.upper_losses(X, solved(problem, x, y), batches(problem)[0])


def hypergradient(problem, x, Y):
    """sum_i p_i (grad_x f_i - D2xy g_i v) with v = (sum_i p_i D2yy g_i)^-1 sum_i p_i grad_y f_i, or each client's own;
    its direct part sum_i p_i grad_x f_i; and v for every client."""
    oracle, p, X = BilevelOracle(problem), problem.client_probabilities, x.expand(CLIENTS, -1)
    f_batch, g_batch = batches(problem)
    f_x, f_y = oracle.upper_gradients(X, Y, f_batch)
    unit = torch.eye(Y.shape[1], dtype=Y.dtype)
    H = torch.stack([oracle.hessian_products(X, Y, e.expand(CLIENTS, -1), g_batch) for e in unit], dim=2)
    if problem.local_lower:
        V = torch.linalg.solve(H, f_y)
    else:
        V = torch.linalg.solve(torch.einsum("i,ikl->kl", p, H), p @ f_y).expand(CLIENTS, -1)
    return p @ (f_x - oracle.cross_products(X, Y, V, g_batch)), p @ f_x, V


@every_solvable
def test_the_hypergradient_is_the_derivative_of_the_upper_value(whole, name):
    """Central differences along the hypergradient itself and along a random direction."""
    problem = PROBLEMS[name]
    x, y = start(problem)
    Y = solved(problem, x, y)
    total, direct, _ = hypergradient(problem, x, Y)
    generator = torch.Generator().manual_seed(1)
    directions = [total / total.norm()]
    directions.append(torch.randn(len(x), generator=generator, dtype=x.dtype))
    step = 1e-4
    for u in directions:
        slope = (upper_value(problem, x + step * u, Y[0]) - upper_value(problem, x - step * u, Y[0])) / (2 * step)
        assert float(total @ u) == pytest.approx(float(slope), rel=1e-5, abs=1e-8)
    assert (total - direct).norm() > 1e-3 * total.norm()  # the indirect part is there
    if name not in ("hyper_representation", "local heads", "few_shot"):
        assert direct.norm() == 0  # only a network's body is above


@every_problem
def test_the_loop_gives_the_same_derivatives(name):
    """Three clients out of order, each at its own point, one batch for all."""
    problem, clients = PROBLEMS[name], torch.tensor([2, 0, 3])
    x, y = start(problem)
    generator = torch.Generator().manual_seed(2)
    X, Y = (u + 0.1 * torch.randn(3, len(u), generator=generator, dtype=u.dtype) for u in (x, y))
    V = torch.randn(3, len(y), generator=generator, dtype=y.dtype)
    f_batch, g_batch = problem.draw_upper(5, clients, 6), problem.draw_lower(6, clients, 6)
    answers = []
    for kind in (BilevelOracle, LoopBilevelOracle):
        oracle = kind(problem)
        found = [oracle.lower_gradients(X, Y, g_batch), *oracle.upper_gradients(X, Y, f_batch)]
        found += [*oracle.lower_products(X, Y, V, g_batch), oracle.hessian_products(X, Y, V, g_batch)]
        answers.append([*found, oracle.cross_products(X, Y, V, g_batch)])
    for fused, loop in zip(*answers, strict=True):
        torch.testing.assert_close(loop, fused, rtol=1e-9, atol=1e-11)
    assert all((answer.abs().sum(dim=1) > 0).all() for answer in (answers[0][0], *answers[0][2:]))


@every_problem
def test_products_are_derivatives_of_gradients(name):
    """D2yy g V and D2xy g V are the central differences of grad_y g and grad_x g along y in direction V."""
    problem = PROBLEMS[name]
    x, y = start(problem)
    batch, step = problem.draw_lower(3, ALL_CLIENTS, 5), 1e-6
    X, V = x.expand(CLIENTS, -1), torch.linspace(-1, 1, len(y), dtype=y.dtype).expand(CLIENTS, -1)

    def gradients(Y):
        at = [u.clone().requires_grad_() for u in (X, Y)]
        return torch.autograd.grad(problem.lower_losses(*at, batch).sum(), at)

    ahead, behind = gradients(y + step * V), gradients(y - step * V)
    along_x, along_y = ((a - b) / (2 * step) for a, b in zip(ahead, behind, strict=True))
    yy, xy = BilevelOracle(problem).lower_products(X, y.expand(CLIENTS, -1), V, batch)
    torch.testing.assert_close(yy, along_y, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(xy, along_x, rtol=1e-6, atol=1e-7)


def test_the_components_of_data_cleaning(whole):
    """Sample s of client m has -(p_m / n_m) c sigmoid'(c x_s) <grad CE_s(y), v>."""
    problem = PROBLEMS["data_cleaning"]
    x, y = start(problem)
    Y = solved(problem, x, y)
    total, _, V = hypergradient(problem, x, Y)
    data, weight = problem.data, torch.sigmoid(2 * x)
    X, labels = data.samples(torch.arange(len(x)), data.training, data.training.owners)

    def losses(w):
        return torch.nn.functional.cross_entropy(problem.model.apply(w, X), labels, reduction="none")

    inner = jacrev(losses)(Y[0]) @ V[0]
    expected = -P[data.training.owners] / TRAIN * 2 * weight * (1 - weight) * inner
    torch.testing.assert_close(total, expected, rtol=1e-8, atol=1e-12)


def test_averaged_scores_are_sharded_scores_with_a_smaller_step(whole):
    """One local step, p = 1/M: the mean of the clients' scores is each one's own block after a step of eta / M; and no
    client moves another's block."""
    problem, eta = PROBLEMS["data_cleaning"], 50.0
    x, y = start(problem)
    X, Y = x.expand(CLIENTS, -1), y.expand(CLIENTS, -1)
    V = torch.linspace(-1, 1, len(y), dtype=y.dtype).expand(CLIENTS, -1)
    for batch in (problem.draw_lower(1, ALL_CLIENTS, TRAIN), problem.draw_lower(9, ALL_CLIENTS, 5)):
        directions = -BilevelOracle(problem).cross_products(X, Y, V, batch)
        averaged = (X - eta * directions).mean(dim=0)
        owners = problem.data.training.owners
        blocks = owners == ALL_CLIENTS[:, None]
        assert (directions[~blocks] == 0).all()
        assert (directions[blocks].abs() > 0).any()
        other = torch.where(blocks, X, X.flip(1) + 1.0)  # nor needs another's block
        assert torch.equal(problem.lower_losses(other, Y, batch), problem.lower_losses(X, Y, batch))
        sharded = x - eta / CLIENTS * directions[owners, torch.arange(len(x))]
        torch.testing.assert_close(averaged, sharded, rtol=0, atol=1e-13)


def rounds_of_scores(name, hyper, rounds):
    """Two of four clients in a round: (round, the context, scores before and after, which of them belong to clients
    that are away, the method's memory before)."""
    problem = PROBLEMS["data_cleaning"]
    context, algorithm = make_context(hyper, problem, 0.5), ALGORITHMS[name]
    state = algorithm.init(context)
    state.variables["x"], state.variables["y"] = start(problem)
    for t in range(1, rounds + 1):
        now = dataclasses.replace(context, round=t)
        last = now.at(algorithm.inner_steps(hyper))
        away = ~torch.isin(problem.data.training.owners, last.cohort().clients)
        x, memory = state.variables["x"].clone(), {key: value.clone() for key, value in state.memory.items()}
        one_round(algorithm, state, now)
        yield now, x, state.variables["x"], away, memory


@pytest.mark.parametrize(
    ("name", "hyper"),
    [
        ("fedbio", FedBio(local_steps=3)),
        ("simfbo", SimFbo(local_steps=3)),
        ("lfednest", LFedNest(local_steps=2, upper_local_steps=3)),
        ("fednest_general", FedNestGeneral(upper_local_steps=3, client_sets="one")),
        ("aggitd", AggItd(upper_local_steps=3, series_terms=2)),
    ],
)
def test_the_scores_of_a_client_stand_still_while_it_is_away(name, hyper):
    for _, before, after, away, _ in rounds_of_scores(name, hyper, 3):
        assert torch.equal(after[away], before[away])
        assert (after != before)[~away].any()


def test_fedbioacc_moves_the_scores_of_clients_that_are_away_along_the_averaged_momentum():
    """Every active client takes its I = 2 steps x <- x - eta alpha_t nu and nu <- (1 - c alpha_t^2) nu there, since its
    gradients are 0; s is the sum of the active (N/n) p_i. A round takes s eta (alpha_1 + alpha_2 (1 - c alpha_1^2)) nu
    from x and s (1 - (1 - c alpha_1^2)(1 - c alpha_2^2)) nu from nu: a client's block is not its own affair."""
    eta, c, moved = 0.5, 0.8, []
    hyper = FedBioAcc(eta_x=eta, storm_x=c, local_steps=2, alpha_scale=0.9, alpha_offset=2.0)
    expected = None
    for now, before, after, away, memory in rounds_of_scores("fedbioacc", hyper, 5):
        nu, s = memory["nu"], float(now.cohort().p.sum())
        if expected is not None:  # what the round before has left of the momentum
            torch.testing.assert_close(nu[expected[0]], expected[1], rtol=1e-12, atol=1e-15)
        first, second = (0.9 / (2 + 2 * (now.round - 1) + i) ** (1 / 3) for i in (1, 2))
        kept = 1 - c * first**2
        step = s * eta * (first + second * kept) * nu[away]
        torch.testing.assert_close(after[away], before[away] - step, rtol=1e-12, atol=1e-15)
        expected = (away, nu[away] * (1 - s * (1 - kept * (1 - c * second**2))))
        moved.append(float(step.abs().max()))
    assert max(moved) > 1e-3


def test_fair_hypergradients_sum_to_zero(whole):
    """softmax does not change when all scores do."""
    problem = PROBLEMS["fair"]
    x, y = start(problem)
    total, _, _ = hypergradient(problem, x, solved(problem, x, y))
    assert abs(float(total.sum())) < 1e-12 < 1e-4 < float(total.norm())


def test_client_weighting_s_hypergradient_is_that_of_the_weighting_problem(whole):
    """On the toy, whose own closed form is one linear solve: component i is lambda^T grad f_i(w*(x))."""
    problem = PROBLEMS["toy"]
    x, y = start(problem)
    exact = problem.problem.solve(x)
    Y = solved(problem, x, y)
    torch.testing.assert_close(Y[0], exact.w, rtol=0, atol=1e-9)
    total, _, V = hypergradient(problem, x, Y)
    torch.testing.assert_close(total, exact.hypergradient, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(V[0], -exact.dual, rtol=1e-8, atol=1e-10)


def test_local_hypergradients_do_not_average_to_the_global_one(whole):
    """With one lower variable for all, the mean of client-wise hypergradients, each with its own inverse, is another
    vector."""
    problem = PROBLEMS["hyper_representation"]
    x, y = start(problem)
    Y = solved(problem, x, y)
    total, _, _ = hypergradient(problem, x, Y)
    local, _, _ = hypergradient(PROBLEMS["local heads"], x, Y)
    assert (total - local).norm() > 1e-3 * total.norm()
