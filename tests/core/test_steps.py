"""Steps that need no tuning, by hand (float64)."""

import dataclasses
import math

import pytest
import torch

from pipeline.methods import ALGORITHMS, Participation
from pipeline.methods.client_weighting.common import steps
from pipeline.methods.client_weighting.primal_dual import PrimalDual
from pipeline.oracles import FusedOracle, LoopOracle
from pipeline.oracles.functional import FunctionalOracle
from pipeline.problems.toy import Toy
from pipeline.training.loop import Loop
from tests.core.helpers import make_context
from tests.core.test_residual_dual import scalar

TWO = scalar(3.0, 1.0, [1.0, 1.0], [0.0, 2.0])


def context_for(problem=TWO, round_=1, **options):
    sizes = {"w": 0.1, "lambda": 0.1, "x": 0.1}
    return dataclasses.replace(make_context(PrimalDual(**options), problem), round=round_, step_sizes=sizes)


def memory_of(clients: int) -> dict[str, torch.Tensor]:
    return {
        "spread": torch.zeros((), dtype=torch.float64),
        "known": torch.ones(clients, dtype=torch.float64),
        "pull": torch.zeros(clients, dtype=torch.float64),
    }


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_two_scaled_steps_by_hand():
    """g = (3, 1), t = 1: D = (1, -1), v = 1.  g = (0, 4), t = 3: D = (-2, 2), v = 1 + (2/3)(4 - 1) = 3.

    Directions D / (2 sqrt(t v)), the second one (-2, 2) / (2 sqrt(9)).
    """
    memory, everyone = memory_of(2), torch.arange(2)
    first = steps.weight_direction(context_for(round_=1), memory, tensor(3.0, 1.0), everyone)
    torch.testing.assert_close(first, tensor(0.5, -0.5))
    second = steps.weight_direction(context_for(round_=3), memory, tensor(0.0, 4.0), everyone)
    torch.testing.assert_close(second, tensor(-1.0, 1.0) / 3.0)


def test_the_plain_step_is_the_hypergradient():
    g_x = tensor(3.0, 1.0)
    assert steps.weight_direction(context_for(weight_step="plain"), {}, g_x, torch.arange(2)) is g_x
    assert steps.with_spread("plain", {}, g_x) == {}


@pytest.mark.parametrize("factor", [1e-6, 1e6])
def test_units_do_not_matter(factor):
    signals = torch.randn(20, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    one, other = memory_of(5), memory_of(5)
    problem = scalar(1.0, 0.0, [1.0] * 5, [0.0] * 5)
    for t, g_x in enumerate(signals, 1):
        a = steps.weight_direction(context_for(problem, t), one, g_x, torch.arange(5))
        b = steps.weight_direction(context_for(problem, t), other, factor * g_x + 7.0 * factor, torch.arange(5))
        torch.testing.assert_close(a, b)


def test_a_client_without_an_answer_stays_where_it_is():
    """Clients 0 and 2 of three have answered, g = (1, -, 3): mean 2, D = (-1, 0, 1), v = 2/3."""
    memory = memory_of(3)
    memory["known"].zero_()
    got = steps.weight_direction(context_for(), memory, tensor(1.0, 50.0, 3.0), torch.tensor([0, 2]))
    torch.testing.assert_close(got, tensor(-1.0, 0.0, 1.0) / (3 * math.sqrt(2 / 3)))


def test_a_steady_signal_carries_far_and_noise_does_not():
    """N sum_t D / (N sqrt(t v_t)) with v_t = 1: sum of 1/sqrt(t), about 2 sqrt(T), for a steady signal.

    For random signs a sum of variance sum of 1/t, about ln T.
    """
    T, problem = 500, scalar(1.0, 0.0, [1.0] * 2, [0.0] * 2)

    def travelled(signs: torch.Tensor) -> float:
        memory, total = memory_of(2), torch.zeros(2, dtype=torch.float64)
        for t, sign in enumerate(signs, 1):
            total += steps.weight_direction(context_for(problem, t), memory, sign * tensor(1.0, -1.0), torch.arange(2))
        return 2 * float(total[0])

    steady = 2 * math.sqrt(T) - 1.46035 + 1 / (2 * math.sqrt(T))  # zeta(1/2) = -1.46035; Euler and Maclaurin
    assert travelled(torch.ones(T)) == pytest.approx(steady, abs=1e-4)
    random = [travelled((torch.rand(T, generator=torch.Generator().manual_seed(s)) < 0.5) * 2 - 1) for s in range(10)]
    assert torch.tensor(random).square().mean().sqrt() < 1.5 * math.sqrt(math.log(T) + 0.58)


def test_no_signal_moves_nothing():
    got = steps.weight_direction(context_for(), memory_of(2), tensor(4.0, 4.0), torch.arange(2))
    torch.testing.assert_close(got, tensor(0.0, 0.0))


@pytest.mark.parametrize(
    ("round_", "pull", "x", "moved"),
    [
        # h = 400, reach 2 (sqrt(800) - sqrt(400)) / 2 = 8.2843, times eta_x .1 and the pull .3: each moves by .2485
        (400, (0.3, -0.3), (0.5, 0.5), 0.24853),
        (400, (0.05, -0.05), (0.5, 0.5), 0.04142),
        (400, (0.3, -0.3), (0.1, 0.9), 0.1),  # no further than 0
        (400, (0.3, -0.3), (0.0, 1.0), 0.0),
        (4, (0.3, -0.3), (0.5, 0.5), 0.24594),  # h = 100: 2 (sqrt(104) - 2) / 2 = 8.198
    ],
)
def test_the_weight_that_as_many_rounds_again_would_move(round_, pull, x, moved):
    memory = memory_of(2) | {"pull": tensor(*pull)}
    report = steps.settling(context_for(round_=round_, eta_x=0.1), memory)
    found = report({"x": tensor(*x)})
    assert float(found["weight_to_move"]) == pytest.approx(moved, abs=2e-5)
    assert float(found["settled"]) == (moved <= 0.2)
    assert steps.settling(context_for(round_=round_), {}) is None


def test_the_pull_is_the_mean_of_the_last_quarter():
    """m_t = m_(t-1) + min(1, 4/t)(P_t - m_(t-1)), P_t = D / sqrt(v_t). With signals +-1, v_t = 1 and P_t is the sign.

    Four rounds of +1: m = 1. Then -1 in rounds 5, 6: 1 - (4/5) 2 = -.6;  -.6 - (4/6) .4 = -.866667.
    """
    memory = memory_of(2)
    for t, sign in enumerate((1, 1, 1, 1, -1, -1), 1):
        steps.weight_direction(context_for(round_=t), memory, sign * tensor(1.0, -1.0), torch.arange(2))
    torch.testing.assert_close(memory["pull"], tensor(-0.8666666667, 0.8666666667))


@pytest.mark.parametrize(("direction", "factor", "expected"), [(5.0, 1.0, 1.0), (5.0, 4.0, 1.0), (5.0, 10.0, 2 / 3)])
def test_the_model_s_step_is_within_the_curvature(direction, factor, expected):
    """f_0 has the curvature 3, eta_w = .1: where .3 factor exceeds 2, the direction is shortened by 2 / (.3 factor)."""
    context = context_for(curvature_limit=2.0)
    got = steps.within_curvature(context, steps.curvature(context, tensor(0.0)), tensor(0.0), tensor(direction), factor)
    torch.testing.assert_close(got, tensor(direction * expected))


def test_the_largest_curvature_is_forgotten_by_degrees():
    """f_0 curves by 25 along the first axis and not along the second. eta_w = 1, c = 2: the first step is shortened to
    2/25; the next two go along the flat axis, by 2/17.5 and 2/12.25, where they would take the full step."""
    A = torch.diag(tensor(5.0, 0.0)).expand(3, 2, 2)
    none = torch.zeros(3, 2, dtype=A.dtype)
    toy = Toy(A, none, none, none[:, 0])
    context = dataclasses.replace(make_context(PrimalDual(), toy), step_sizes={"w": 1.0})
    memory, w = steps.curvature(context, tensor(1.0, 1.0)), tensor(1.0, 1.0)
    for direction, expected in (((3.0, 0.0), 25.0), ((0.0, 3.0), 17.5), ((0.0, 3.0), 12.25)):
        got = steps.shortening(context, memory, w, tensor(*direction))
        torch.testing.assert_close(got, tensor(2.0 / expected)[0])


def test_the_schedule_shortens_what_the_limit_leaves():
    """Curvature 3, eta_w = 10 and half of it in force: shortened to 2/30, so that the step is half of 2/3."""
    context = dataclasses.replace(context_for(), step_sizes={"w": 5.0}, schedule=0.5)
    memory = steps.curvature(context, tensor(0.0))
    torch.testing.assert_close(5.0 * steps.shortening(context, memory, tensor(0.0), tensor(1.0)), tensor(1 / 3)[0])


@pytest.mark.parametrize(
    ("memory", "participation", "expected"),
    [({}, 0.25, (1.0, 2 / 4, 2 / 2.8)), ({"G": None}, 0.25, (1.0, 1 / 4, 1 / (4 * 0.7**0.5)))],
)
def test_the_step_is_within_the_curvature_that_the_last_move_has_met(memory, participation, expected):
    """f_0 has the curvature 0. w moves from 1 to .5 and the direction from 5 to -15: the quotient is 40, with
    eta_w = .1 pi = 4, allowed are 2. Then the direction stays: pi = .7 x 4. With remembered answers sqrt(.25) of that
    is allowed, and sqrt(.7) kept."""
    context = context_for(scalar(0.0, 1.0, [1.0, 1.0], [0.0, 2.0]))
    context = dataclasses.replace(context, federation=Participation("fixed", participation, batch_size=1))
    memory = memory | steps.curvature(context, tensor(1.0))
    for (w, direction), shortened in zip(((1.0, 5.0), (0.5, -15.0), (0.0, -15.0)), expected, strict=True):
        got = steps.shortening(context, memory, tensor(w), tensor(direction))
        torch.testing.assert_close(got, tensor(shortened)[0])


@pytest.mark.parametrize("participation", [1.0, 0.5])
@pytest.mark.parametrize("name", ["primal_dual", "rfho", "fednest", "sustain", "average"])
@pytest.mark.slow
def test_a_client_of_another_scale_does_not_let_a_regression_diverge(name, participation):
    """Least squares, two clients and the server at curvature 1, a third client at 100: a full step of the defaults is
    over 10 times too long, and the server's curvature does not say so."""
    toy = scalar(1.0, 0.0, [1.0, 1.0, 100.0], [0.1, -0.1, 0.5])
    algorithm = ALGORITHMS[name]
    context = make_context(algorithm.options(), toy, participation=participation)
    loop = Loop(algorithm, context, 300)
    start = float(loop.state.variables["w"].abs())
    for _ in range(300):
        loop.step()
        assert float(loop.state.variables["w"].abs()) < 100 * (1 + start)
    assert float(loop.state.variables["w"].abs()) < 1.0


def test_without_a_limit_directions_are_as_they_are():
    context, v = context_for(curvature_limit=0.0), tensor(5.0)
    assert steps.within_curvature(context, {}, tensor(0.0), v, 1e9) is v
    assert steps.curvature(context, v) == {}


def test_a_limited_step_along_its_gradient_raises_no_quadratic():
    toy = Toy.generate(clients=2, seed=0)
    flat = dataclasses.replace(toy, a=torch.zeros_like(toy.a))  # without the cosine: quadratics
    for eta in (0.01, 1.0, 100.0):
        context = dataclasses.replace(make_context(PrimalDual(), flat), step_sizes={"w": eta})
        for seed in range(5):
            w = torch.randn(flat.dimension, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
            gradient = flat.gradients(w)[0]
            moved = w - eta * steps.within_curvature(context, steps.curvature(context, w), w, gradient)
            before, after = (flat.validation_loss(at, flat.draw_validation(0)) for at in (w, moved))
            assert after <= before * (1 + 1e-12)


@pytest.mark.parametrize(
    ("lam", "product", "residual", "expected"),
    [
        # curvature 2, eta_lambda .1: .1 x 2 <= .5, as it is
        ((1.0, 0.0), (2.0, 0.0), (1.0, 1.0), (1.0, 1.0)),
        # curvature 10: .1 x 10 = 1, so half
        ((1.0, 0.0), (10.0, 0.0), (1.0, 1.0), (0.5, 0.5)),
        # H lambda = -2 lambda: lifted by (2 + 2) lambda
        ((1.0, 0.0), (-2.0, 0.0), (1.0, 1.0), (5.0, 1.0)),
        # |H lambda| = 5, lambda^T H lambda = -3 at length 1: lifted by 8 lambda, .1 x 5 = .5 needs no limit
        ((1.0, 0.0), (-3.0, 4.0), (1.0, 1.0), (9.0, 1.0)),
        # lambda = 0: nothing is known of the curvature
        ((0.0, 0.0), (0.0, 0.0), (1.0, 1.0), (1.0, 1.0)),
    ],
)
def test_the_dual_s_step_by_hand(lam, product, residual, expected):
    got = steps.dual_direction(tensor(*lam), tensor(*product), tensor(*residual), 0.1)
    torch.testing.assert_close(got, tensor(*expected))


def test_oracles_agree_on_the_server_s_products():
    toy = Toy.generate(clients=3, seed=2)
    w, v = torch.randn(2, toy.dimension, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    batch, eye = toy.draw_validation(0), torch.eye(toy.dimension, dtype=torch.float64)
    A, angle = toy.A[0], toy.a[0] @ w - toy.b[0]
    exact = (A.T @ A - torch.cos(angle) * torch.outer(toy.a[0], toy.a[0])) @ (eye @ v)
    for oracle in (FusedOracle, LoopOracle, FunctionalOracle):
        torch.testing.assert_close(oracle(toy).validation_product(w, v, batch), exact, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("mode", ["reverse", "forward"])
def test_rfho_differentiates_the_steps_it_takes(mode):
    """K = 1, one dimension, eta_w = 10 and f_0 of curvature 3: the step is shortened to 2/3, so
    g_x,i = -(2/3) f_i'(w_0) f_0'(w_1). From w_0 = 4 with f_i' = (4, 2): w_1 = 4 - (2/3) 3 = 2, f_0' = 3 (2 - 1) = 3,
    g_x = (-8, -4)."""
    from pipeline.methods.client_weighting.rfho import Rfho

    hyper = Rfho(mode=mode, weight_step="plain", eta_w=10.0)
    context = dataclasses.replace(make_context(hyper, TWO), step_sizes={"w": 10.0})
    algorithm = ALGORITHMS["rfho"]
    state = algorithm.init(context)
    state.variables["w"] = tensor(4.0)
    first = algorithm.step(state, context)
    torch.testing.assert_close(10.0 * first.directions["w"], tensor(2.0))
    state.variables["w"] = state.variables["w"] - 10.0 * first.directions["w"]
    second = algorithm.step(state, context.at(2))
    torch.testing.assert_close(second.directions["x"], tensor(-8.0, -4.0))
