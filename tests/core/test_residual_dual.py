"""The dual that steps along its own residual: fixed points, stability, and no path of training in it (float64)."""

import dataclasses
import itertools

import pytest
import torch

from pipeline.methods import ALGORITHMS
from pipeline.methods.client_weighting.primal_dual import PrimalDual
from pipeline.oracles import FusedOracle
from pipeline.problems.toy import Toy
from pipeline.training.loop import Loop
from tests.core.helpers import LARGE, make_context, run, stationarity

HYPER = PrimalDual(
    dual="residual",
    weight_step="plain",
    curvature_limit=0.0,
    eta_w=0.03,
    eta_lambda=0.05,
    eta_x=0.01,
    gamma=2.0,
    dual_radius=LARGE,
    schedule="constant",
)
UNIFORM = torch.full((5,), 0.2, dtype=torch.float64)


@pytest.fixture(scope="module")
def toy():
    return Toy.generate(clients=5, seed=0)


def scalar(h_0, target_0, curvatures, targets) -> Toy:
    """f_i(w) = h_i/2 (w - c_i)^2 in one dimension; the server's first."""
    h = torch.tensor([h_0, *curvatures], dtype=torch.float64)
    c = torch.tensor([target_0, *targets], dtype=torch.float64)
    root = h.sqrt()
    return Toy(root.view(-1, 1, 1), (root * c).view(-1, 1), torch.zeros(len(h), 1, dtype=torch.float64), 0 * h)


def stepped(state, context):
    """Directions of one step at (w, lambda, x)."""
    return ALGORITHMS["primal_dual"].step(state, context).directions


@pytest.mark.parametrize("inner_steps", [1, 3])
@pytest.mark.parametrize("dual", ["residual", "printed"])
@pytest.mark.slow
def test_at_fixed_weights_both_duals_find_the_lower_solution_and_the_hypergradient(toy, dual, inner_steps):
    hyper = dataclasses.replace(HYPER, dual=dual, inner_steps=inner_steps)
    state = run("primal_dual", make_context(hyper, toy), 1500, frozen=("x",))
    exact = toy.solve(UNIFORM)
    torch.testing.assert_close(state.variables["w"], exact.w, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(state.variables["lambda"], exact.dual, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(state.memory["hypergradient"], exact.hypergradient, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
@pytest.mark.slow
def test_the_optimizer_of_the_model_leaves_the_fixed_point_where_it_is(toy, optimizer):
    hyper = dataclasses.replace(HYPER, optimizer=optimizer, momentum=0.5, eta_x=1e-300)
    if optimizer == "adam":
        hyper = dataclasses.replace(hyper, eta_w=0.05, schedule="cosine")
    loop = Loop(ALGORITHMS["primal_dual"], make_context(hyper, toy), 1200)
    for _ in range(1200):
        loop.step()
    exact, close = toy.solve(UNIFORM), 1e-3 if optimizer == "adam" else 1e-8
    torch.testing.assert_close(loop.state.variables["w"], exact.w, rtol=0, atol=close)
    torch.testing.assert_close(loop.state.variables["lambda"], exact.dual, rtol=0, atol=10 * close)


@pytest.mark.parametrize(("gamma_schedule", "s"), [("rising", 0.25), ("constant", 1.0)])
def test_one_step_by_hand(toy, gamma_schedule, s):
    """r = s (g_0 + H lambda);  g_w = r + Gamma G;  g_lambda = r + s Gamma rho lambda;  g_x,i = lambda^T g_i."""
    hyper = dataclasses.replace(HYPER, dual_damping=0.3, gamma_schedule=gamma_schedule)
    context = dataclasses.replace(make_context(hyper, toy), schedule=0.25)
    state = ALGORITHMS["primal_dual"].init(context)
    w, lam = torch.randn(2, toy.dimension, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    x = torch.tensor([0.5, 0.1, 0.1, 0.1, 0.2], dtype=torch.float64)
    state.variables.update({"w": w, "lambda": lam, "x": x})
    got = stepped(state, context)
    g_0, G = toy.gradients(w)[0], toy.gradients(w)[1:]
    r = s * (g_0 + toy.hessian(w, x) @ lam)
    torch.testing.assert_close(got["w"], r + 2.0 * (x @ G))
    torch.testing.assert_close(got["lambda"], r + s * 2.0 * 0.3 * lam)
    torch.testing.assert_close(got["x"], G @ lam)


@pytest.mark.slow
def test_damped_both_duals_rest_at_the_same_point(toy):
    """G = rho lambda and lambda = -(H + Gamma rho I)^(-1) g_0."""
    rho = 0.05
    ends = []
    for dual in ("residual", "printed"):
        hyper = dataclasses.replace(HYPER, dual=dual, dual_damping=rho)
        ends.append(run("primal_dual", make_context(hyper, toy), 1500, frozen=("x",)).variables)
    for variables in ends:
        w, lam = variables["w"], variables["lambda"]
        gradients = toy.gradients(w)
        damped = toy.hessian(w, UNIFORM) + 2.0 * rho * torch.eye(toy.dimension, dtype=torch.float64)
        torch.testing.assert_close(UNIFORM @ gradients[1:], rho * lam, rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(lam, -torch.linalg.solve(damped, gradients[0]), rtol=1e-8, atol=1e-8)
    assert (ends[0]["lambda"] - toy.solve(UNIFORM).dual).norm() > 0.01  # another point than the undamped one


@pytest.mark.slow
def test_on_the_ball_the_dual_is_damped(toy):
    """-r = kappa lambda with kappa > 0 and Gamma G = -r, so G = (kappa / Gamma) lambda: damping by kappa / Gamma."""
    radius = 0.5 * float(toy.solve(UNIFORM).dual.norm())
    hyper = dataclasses.replace(HYPER, dual_radius=radius)
    variables = run("primal_dual", make_context(hyper, toy), 2000, frozen=("x",)).variables
    w, lam = variables["w"], variables["lambda"]
    gradients = toy.gradients(w)
    r = gradients[0] + toy.hessian(w, UNIFORM) @ lam
    kappa = float(-r.dot(lam) / lam.dot(lam))
    assert float(lam.norm()) == pytest.approx(radius, rel=1e-12)
    assert kappa > 0.01
    torch.testing.assert_close(-r, kappa * lam, rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(UNIFORM @ gradients[1:], kappa / 2.0 * lam, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("seed", range(40))
def test_it_contracts_exactly_where_the_closed_form_says(seed):
    """One dimension, f_0 with curvature a, the clients with h: the step is affine, I - M on the errors of (w, lambda),
    and its spectral radius is below 1 if and only if (2 - p)(2 - q) > 2 eta_w a, p = eta_w Gamma h, q = eta_lambda h.
    """
    eta_w, eta_lambda, gamma, h, a = (
        10 ** (3 * torch.rand(5, dtype=torch.float64, generator=_generator(seed)) - 1.8)
    ).tolist()
    scale = 1.9 / max(1.9, eta_w * gamma * h, eta_lambda * h)  # p, q < 2
    eta_w, eta_lambda = scale * eta_w, scale * eta_lambda
    problem = scalar(a, 1.0, [h, h], [0.0, 2.0])
    hyper = dataclasses.replace(HYPER, eta_w=eta_w, eta_lambda=eta_lambda, gamma=gamma)
    context = make_context(hyper, problem)

    def moved(w: float, lam: float) -> torch.Tensor:
        state = ALGORITHMS["primal_dual"].init(context)
        state.variables.update(
            {"w": torch.tensor([w], dtype=torch.float64), "lambda": torch.tensor([lam], dtype=torch.float64)}
        )
        got = stepped(state, context)
        return torch.cat([w - eta_w * got["w"], lam - eta_lambda * got["lambda"]])

    origin = moved(0.0, 0.0)
    linear = torch.stack([moved(1.0, 0.0) - origin, moved(0.0, 1.0) - origin], dim=1)
    radius = torch.linalg.eigvals(linear).abs().max()
    p, q = eta_w * gamma * h, eta_lambda * h
    assert bool(radius < 1) == ((2 - p) * (2 - q) > 2 * eta_w * a)


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_the_closed_form_is_seen_from_both_sides():
    """The draws above hold stable and unstable cases."""
    seen = set()
    for seed in range(40):
        draw = 10 ** (3 * torch.rand(5, dtype=torch.float64, generator=_generator(seed)) - 1.8)
        eta_w, eta_lambda, gamma, h, a = draw.tolist()
        scale = 1.9 / max(1.9, eta_w * gamma * h, eta_lambda * h)
        seen.add((2 - scale * eta_w * gamma * h) * (2 - scale * eta_lambda * h) > 2 * scale * eta_w * a)
    assert seen == {True, False}


@pytest.mark.parametrize(("dual", "rates"), [("residual", (1.0, 4.0)), ("printed", (2 - 3**0.5, 2 + 3**0.5))])
def test_rates_where_the_server_s_curvature_is_small(dual, rates):
    """a = 0, eta_w = eta_lambda = eta, Gamma = 4, h = 1: eta h {1, Gamma} against eta h (Gamma +- sqrt(Gamma^2 - 4))/2.
    The printed dual's slow rate is 0.27 of the residual's."""
    eta, problem = 1e-3, scalar(1e-12, 1.0, [1.0, 1.0], [0.0, 2.0])
    context = make_context(dataclasses.replace(HYPER, dual=dual, eta_w=eta, eta_lambda=eta, gamma=4.0), problem)
    columns = []
    for w, lam in ((0.0, 0.0), (1.0, 0.0), (0.0, 1.0)):
        state = ALGORITHMS["primal_dual"].init(context)
        state.variables.update(
            {"w": torch.tensor([w], dtype=torch.float64), "lambda": torch.tensor([lam], dtype=torch.float64)}
        )
        got = stepped(state, context)
        columns.append(torch.cat([got["w"], got["lambda"]]))
    M = torch.stack([columns[1] - columns[0], columns[2] - columns[0]], dim=1)
    found = torch.linalg.eigvals(M).real.sort().values
    torch.testing.assert_close(found, torch.tensor(rates, dtype=torch.float64), rtol=1e-6, atol=1e-9)


def test_the_printed_dual_is_a_solver_minus_the_path_of_training(toy):
    """mu_t = lambda_t + kappa (w_t - w_1), kappa = eta_lambda / (eta_w Gamma), moves by -(eta_lambda / Gamma) r_t."""
    hyper = dataclasses.replace(HYPER, dual="printed")
    context = make_context(hyper, toy)
    kappa, first, seen = 0.05 / (0.03 * 2.0), toy.initial(0), []

    def note(state):
        w, lam = state.variables["w"], state.variables["lambda"]
        r = toy.gradients(w)[0] + toy.hessian(w, UNIFORM) @ lam
        seen.append((lam + kappa * (w - first), r))

    run("primal_dual", context, 30, frozen=("x",), each=note)
    for (mu, r), (following, _) in itertools.pairwise(seen):
        torch.testing.assert_close(following - mu, -0.05 / 2.0 * r, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("dual", "first_moves"), [("residual", (-0.8, -0.4)), ("printed", (0.6, 0.3))])
def test_while_the_model_trains_the_printed_dual_ranks_backward_and_the_residual_does_not(dual, first_moves):
    """The server wants w = 1, as client 1 does; client 2 wants -1. From w = -3, lambda = 0, eta_lambda = .05:

    residual  lambda_2 = -.05 g_0 = .2;                  printed  lambda_2 = .05 (g_1 + g_2)/2 = -.15
    then, with w held at -3:  g_x = lambda_2 (-4, -2) = (-.8, -.4),  or (.6, .3): client 1's weight falls.
    """
    problem = scalar(1.0, 1.0, [1.0, 1.0], [1.0, -1.0])
    context = make_context(dataclasses.replace(HYPER, dual=dual), problem)
    state = ALGORITHMS["primal_dual"].init(context)
    state.variables["w"] = torch.tensor([-3.0], dtype=torch.float64)
    state.variables["lambda"] = -0.05 * stepped(state, context)["lambda"]
    torch.testing.assert_close(stepped(state, context)["x"], torch.tensor(first_moves, dtype=torch.float64))


def test_under_the_paper_s_estimator_the_dual_s_direction_is_unbiased(toy):
    """Over all active sets, by their probabilities given non-empty, its mean is that of full participation."""
    p, N = 0.4, toy.clients
    hyper = dataclasses.replace(HYPER, estimator="paper")
    w, lam = torch.randn(2, toy.dimension, generator=_generator(3), dtype=torch.float64)
    x = torch.tensor([0.5, 0.1, 0.1, 0.1, 0.2], dtype=torch.float64)

    class Chosen(type(make_context(hyper, toy))):  # type: ignore[misc]
        def active(self, *exchange):
            return chosen if chosen is not None else torch.arange(N)

    def direction() -> torch.Tensor:
        context = Chosen(FusedOracle(toy), hyper, make_context(hyper, toy, p).federation, 0)
        state = ALGORITHMS["primal_dual"].init(context)
        state.variables.update({"w": w, "lambda": lam, "x": x})
        return stepped(state, context)["lambda"]

    mean = torch.zeros_like(w)
    for mask in itertools.product([False, True], repeat=N):
        n = sum(mask)
        if n:
            chosen = torch.tensor(mask).nonzero()[:, 0]
            mean += p**n * (1 - p) ** (N - n) / (1 - (1 - p) ** N) * direction()
    r = toy.gradients(w)[0] + toy.hessian(w, x) @ lam
    torch.testing.assert_close(mean, r, rtol=1e-10, atol=1e-10)


def test_it_reaches_a_stationary_point_with_its_own_steps(toy):
    """With the scaled step of the weights, the limits on, and the schedule."""
    hyper = PrimalDual(dual_radius=LARGE, eta_w=0.03, eta_x=0.1, gamma=2.0)
    loop = Loop(ALGORITHMS["primal_dual"], make_context(hyper, toy), 600)
    for _ in range(600):
        loop.step()
    x = loop.state.variables["x"]
    assert stationarity(toy, x) < 0.001 < 0.1 < stationarity(toy, UNIFORM)
    assert loop.measured["settled"] == 1.0
