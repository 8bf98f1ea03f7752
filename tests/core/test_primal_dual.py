"""The lead method as printed, on the toy problem, where everything has a closed form (float64)."""

import dataclasses
import itertools

import pytest
import torch

from pipeline import projections
from pipeline.methods import ALGORITHMS
from pipeline.methods.client_weighting.common import estimators
from pipeline.methods.client_weighting.primal_dual import PrimalDual
from pipeline.oracles import FusedOracle, LoopOracle
from pipeline.problems.toy import Toy
from tests.core.helpers import LARGE, PRINTED, make_context, permuted, run

HYPER = PrimalDual(**PRINTED, eta_w=0.03, eta_lambda=0.1, eta_x=0.01, gamma=2.0, dual_radius=LARGE, clip_norm=0.0)


@pytest.fixture(scope="module")
def toy():
    return Toy.generate(clients=5, seed=0)


@pytest.mark.slow
def test_at_fixed_weights_it_finds_the_lower_solution_the_dual_and_the_hypergradient(toy):
    """Property 1: w -> w*(x), lambda -> -H^{-1} grad f_0, lambda^T grad f_i -> the hypergradient."""
    context = make_context(HYPER, toy)
    state = run("primal_dual", context, 1500, frozen=("x",))
    exact = toy.solve(torch.full((5,), 0.2, dtype=torch.float64))
    torch.testing.assert_close(state.variables["w"], exact.w, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(state.variables["lambda"], exact.dual, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(state.memory["hypergradient"], exact.hypergradient, rtol=1e-8, atol=1e-8)


@pytest.mark.slow
def test_damping_ends_at_the_damped_solve(toy):
    """sum_i x_i grad f_i(w) = rho lambda and lambda = -(H + Gamma rho I)^(-1) grad f_0(w), by explicit matrices."""
    rho = 0.05
    hyper = dataclasses.replace(HYPER, dual_damping=rho)
    variables = run("primal_dual", make_context(hyper, toy), 1500, frozen=("x",)).variables
    w, lam, x = (variables[name] for name in ("w", "lambda", "x"))
    gradients = toy.gradients(w)
    damped = toy.hessian(w, x) + hyper.gamma * rho * torch.eye(toy.dimension, dtype=torch.float64)
    torch.testing.assert_close(x @ gradients[1:], rho * lam, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(lam, -torch.linalg.solve(damped, gradients[0]), rtol=1e-8, atol=1e-8)
    assert (lam - toy.solve(x).dual).norm() > 0.01  # the undamped solve is another point


@pytest.mark.slow
def test_dampings_bias_is_of_first_order(toy):
    """Half the damping, half the distance of lambda^T grad f_i to the hypergradient (1 % more by the second order)."""
    exact = toy.solve(torch.full((5,), 0.2, dtype=torch.float64)).hypergradient
    errors = []
    for rho in (0.002, 0.001):
        context = make_context(dataclasses.replace(HYPER, dual_damping=rho), toy)
        errors.append((run("primal_dual", context, 1500, frozen=("x",)).memory["hypergradient"] - exact).norm())
    assert 0 < errors[0] < 0.02 * exact.norm()
    assert errors[0] / errors[1] == pytest.approx(2.0, rel=0.02)


def test_damping_takes_part_of_the_dual_away(toy):
    """One step: lambda_2 = lambda_1 + eta (sum_i x_i g_i - rho lambda_1)."""
    hyper = dataclasses.replace(HYPER, dual_damping=0.25)
    context = make_context(hyper, toy)
    state = ALGORITHMS["primal_dual"].init(context)
    lam = torch.arange(1.0, toy.dimension + 1, dtype=torch.float64)
    state.variables["lambda"] = lam
    mean = toy.gradients(state.variables["w"])[1:].mean(0)
    torch.testing.assert_close(ALGORITHMS["primal_dual"].step(state, context).directions["lambda"], lam / 4 - mean)


@pytest.mark.parametrize(("gamma_schedule", "s"), [("rising", 0.25), ("constant", 1.0)])
def test_a_rising_gamma_by_hand(toy, gamma_schedule, s):
    """Steps at a quarter: g_w = s (g_0 + H lambda) + Gamma g, g_lambda = g - s rho lambda, g_x as ever."""
    hyper = dataclasses.replace(HYPER, dual_damping=0.3, gamma_schedule=gamma_schedule)
    context = dataclasses.replace(make_context(hyper, toy), schedule=0.25)
    state = ALGORITHMS["primal_dual"].init(context)
    w, lam = torch.randn(2, toy.dimension, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    x = torch.tensor([0.5, 0.1, 0.1, 0.1, 0.2], dtype=torch.float64)
    state.variables.update({"w": w, "lambda": lam, "x": x})
    got = ALGORITHMS["primal_dual"].step(state, context).directions
    g_0, G = toy.gradients(w)[0], toy.gradients(w)[1:]
    torch.testing.assert_close(got["w"], s * (g_0 + toy.hessian(w, x) @ lam) + 2.0 * (x @ G))
    torch.testing.assert_close(got["lambda"], s * 0.3 * lam - x @ G)
    torch.testing.assert_close(got["x"], G @ lam)


def test_under_a_rising_gamma_the_model_goes_to_the_lower_solution_and_the_dual_stays_damped(toy):
    """Where both directions are 0: w* + O(s), and -(H + Gamma rho I)^(-1) grad f_0 whatever s is."""
    rho, x = 0.05, torch.full((5,), 0.2, dtype=torch.float64)
    hyper = dataclasses.replace(HYPER, dual_damping=rho, gamma_schedule="rising")
    exact, distances = toy.solve(x), []
    for s in (0.02, 0.01):
        context = dataclasses.replace(make_context(hyper, toy), schedule=s)
        w = exact.w
        for _ in range(50):  # Newton's method on sum_i x_i grad f_i(w) = s rho lambda(w), lambda held
            gradients, hessian = toy.gradients(w), toy.hessian(w, x)
            damped = hessian + hyper.gamma * rho * torch.eye(toy.dimension, dtype=torch.float64)
            lam = -torch.linalg.solve(damped, gradients[0])
            w = w - torch.linalg.solve(hessian, x @ gradients[1:] - s * rho * lam)
        state = ALGORITHMS["primal_dual"].init(context)
        state.variables.update({"w": w, "lambda": lam, "x": x})
        directions = ALGORITHMS["primal_dual"].step(state, context).directions
        for name in ("w", "lambda"):
            torch.testing.assert_close(directions[name], torch.zeros_like(w), rtol=0, atol=1e-10)
        distances.append((w - exact.w).norm())
    assert distances[0] / distances[1] == pytest.approx(2.0, rel=0.02)
    assert (lam - exact.dual).norm() > 0.01  # not the undamped solve


@pytest.mark.parametrize("inner_steps", [1, 3])
@pytest.mark.slow
def test_it_reaches_a_stationary_point_of_the_bilevel_problem(toy, inner_steps):
    state = run("primal_dual", make_context(dataclasses.replace(HYPER, inner_steps=inner_steps), toy), 1500)
    x = state.variables["x"]
    stationarity = (x - projections.simplex(x - toy.solve(x).hypergradient)).norm()
    assert stationarity < 1e-8
    uniform = torch.full_like(x, 0.2)
    assert toy.solve(x).value < toy.solve(uniform).value - 0.01


def test_one_iteration_by_hand(toy):
    """From a state with lambda != 0, all three updates as the listing prints them, by explicit matrices."""
    context = make_context(HYPER, toy)
    state = ALGORITHMS["primal_dual"].init(context)
    generator = torch.Generator().manual_seed(1)
    w, lam = (torch.randn(toy.dimension, generator=generator, dtype=torch.float64) for _ in range(2))
    x = torch.tensor([0.5, 0.1, 0.1, 0.1, 0.2], dtype=torch.float64)
    state.variables.update({"w": w, "lambda": lam, "x": x})
    step = ALGORITHMS["primal_dual"].step(state, context)
    g_0, G = toy.gradients(w)[0], toy.gradients(w)[1:]
    torch.testing.assert_close(step.directions["w"], g_0 + toy.hessian(w, x) @ lam + 2.0 * (x @ G))
    torch.testing.assert_close(step.directions["lambda"], -(x @ G))
    torch.testing.assert_close(step.directions["x"], G @ lam)


@pytest.mark.parametrize("participation", [1.0, 0.5])
@pytest.mark.parametrize("estimator", ["paper", "normalised", "memory"])
def test_loop_and_fused_give_the_same_run(toy, estimator, participation):
    hyper = dataclasses.replace(HYPER, estimator=estimator, inner_steps=2)
    a, b = (
        run("primal_dual", make_context(hyper, toy, participation, oracle), 30) for oracle in (FusedOracle, LoopOracle)
    )
    for name in a.variables:
        torch.testing.assert_close(a.variables[name], b.variables[name], rtol=1e-10, atol=1e-10)


def test_paper_estimator_is_unbiased(toy):
    """Property 3: over all 2^N - 1 active sets with their probabilities given non-empty, E[(N/n) 1{i active}] = 1, so
    the expected sums and the expected hypergradient are those of full participation."""
    p, N = 0.3, toy.clients
    x = torch.tensor([0.5, 0.1, 0.1, 0.1, 0.2], dtype=torch.float64)
    values = torch.arange(1.0, N + 1, dtype=torch.float64)
    expected_sum, expected_scatter, total = 0.0, torch.zeros(N, dtype=torch.float64), 0.0
    for size in range(1, N + 1):
        # Given n active, every set of n is equally likely, so P(set) = P(n) / C(N, n).
        for subset in itertools.combinations(range(N), size):
            probability = p**size * (1 - p) ** (N - size) / (1 - (1 - p) ** N)
            active = torch.tensor(subset)
            c = estimators.coefficients("paper", x, active, 0.3)
            expected_sum += probability * float(c @ values[active])
            expected_scatter += probability * estimators.scatter(values[active], active, N)
            total += probability
    assert total == pytest.approx(1.0, abs=1e-12)
    assert expected_sum == pytest.approx(float(x @ values), abs=1e-12)
    torch.testing.assert_close(expected_scatter, values, rtol=0, atol=1e-12)


def test_normalised_estimator_divides_by_active_weight_down_to_the_floor():
    x = torch.tensor([0.6, 0.2, 0.1, 0.1], dtype=torch.float64)
    got = estimators.coefficients("normalised", x, torch.tensor([0, 2]), floor=0.3)
    torch.testing.assert_close(got, torch.tensor([6 / 7, 1 / 7], dtype=torch.float64))
    got = estimators.coefficients("normalised", x, torch.tensor([2, 3]), floor=0.3)
    torch.testing.assert_close(got, torch.tensor([1 / 3, 1 / 3], dtype=torch.float64))


def test_memory_estimator_lets_the_last_answer_stand_in(toy):
    """Against a plain record of who answered what and when; clients never seen count as zero."""
    hyper = dataclasses.replace(HYPER, estimator="memory")
    context = make_context(hyper, toy, participation=0.4)
    algorithm = ALGORITHMS["primal_dual"]
    state = algorithm.init(context)
    sizes = algorithm.step_sizes(hyper)
    answers_g: dict[int, torch.Tensor] = {}
    answers_h: dict[int, torch.Tensor] = {}
    for t in range(1, 15):
        now = dataclasses.replace(context, round=t)
        w, lam, x = (state.variables[name].clone() for name in ("w", "lambda", "x"))
        for i in now.active().tolist():
            answers_g[i] = toy.gradients(w)[1 + i]
            single = torch.eye(toy.clients, dtype=torch.float64)[i]
            answers_h[i] = toy.hessian(w, single) @ lam
        step = algorithm.step(state, now)
        expected_w = toy.gradients(w)[0] + sum(x[i] * (answers_h[i] + 2.0 * answers_g[i]) for i in answers_g)
        expected_lam = -sum(x[i] * answers_g[i] for i in answers_g)
        expected_x = torch.tensor([float(answers_g[i] @ lam) if i in answers_g else 0.0 for i in range(5)])
        torch.testing.assert_close(step.directions["w"], expected_w)
        torch.testing.assert_close(step.directions["lambda"], expected_lam)
        torch.testing.assert_close(step.directions["x"], expected_x.double())
        for name, direction in step.directions.items():
            state.variables[name] = state.variables[name] - sizes[name] * direction
    assert len(answers_g) > 0


def test_auto_takes_memory_while_it_fits_and_the_fused_pass_when_all_are_active():
    options = PrimalDual(memory_limit_mb=1)  # 2 * N * d * 4 bytes <= 2^20 for N = 10: d <= 13107
    assert estimators.choose(options, 10, 13_107, 4, 0.5) == "memory"
    assert estimators.choose(options, 10, 13_108, 4, 0.5) == "normalised"
    assert estimators.choose(options, 10, 13_107, 4, 1.0) == "paper"
    assert estimators.choose(dataclasses.replace(options, estimator="paper"), 10, 1, 4, 0.5) == "paper"


@pytest.mark.parametrize("estimator", ["paper", "normalised", "memory"])
def test_the_weights_never_leave_the_simplex(toy, estimator):
    hyper = dataclasses.replace(HYPER, estimator=estimator, eta_x=0.3)
    seen = []
    run("primal_dual", make_context(hyper, toy, 0.5), 100, each=lambda state: seen.append(state.variables["x"]))
    X = torch.stack(seen)
    assert (X >= 0).all()
    torch.testing.assert_close(X.sum(1), torch.ones(100, dtype=torch.float64), rtol=0, atol=1e-12)


def test_the_dual_stays_in_its_ball(toy):
    hyper = dataclasses.replace(HYPER, dual_radius=0.05)
    norms = []
    run(
        "primal_dual",
        make_context(hyper, toy),
        50,
        each=lambda state: norms.append(state.variables["lambda"].norm()),
    )
    assert max(norms) == pytest.approx(0.05, abs=1e-12)


def test_permuting_clients_permutes_the_weights(toy):
    """Property 6 at full participation, where no random stream is involved."""
    order = [3, 0, 4, 1, 2]
    x = run("primal_dual", make_context(HYPER, toy), 50).variables["x"]
    y = run("primal_dual", make_context(HYPER, permuted(toy, order)), 50).variables["x"]
    torch.testing.assert_close(y, x[order], rtol=1e-10, atol=1e-12)


def test_identical_clients_keep_equal_weights(toy):
    x = run("primal_dual", make_context(HYPER, permuted(toy, [2, 2, 2])), 50).variables["x"]
    torch.testing.assert_close(x, torch.full_like(x, 1 / 3), rtol=0, atol=1e-12)


def test_random_iterate_uses_each_inner_step_and_equals_last_for_one_step(toy):
    K = 3
    hyper = dataclasses.replace(HYPER, inner_steps=K, hypergradient_iterate="random")
    algorithm, chosen = ALGORITHMS["primal_dual"], set()
    for t in range(1, 30):
        context = make_context(hyper, toy, round=t)
        state = algorithm.init(context)
        state.variables["lambda"] = torch.ones(toy.dimension, dtype=torch.float64)
        inners = []
        for k in range(1, K + 1):
            state.variables["w"] = torch.full((toy.dimension,), float(k), dtype=torch.float64)
            inners.append(toy.gradients(state.variables["w"])[1:] @ state.variables["lambda"])
            step = algorithm.step(state, dataclasses.replace(context, inner=k))
            assert ("x" in step.directions) == (k == K)
        matches = [k for k, inner in enumerate(inners) if torch.allclose(step.directions["x"], inner)]
        assert len(matches) == 1
        chosen.update(matches)
    assert chosen == {0, 1, 2}
    one = {n: dataclasses.replace(HYPER, hypergradient_iterate=n) for n in ("last", "random")}
    a, b = (run("primal_dual", make_context(h, toy, 0.5), 20).variables["x"] for h in one.values())
    assert torch.equal(a, b)


def test_initial_dual_may_start_one_step_into_the_solve(toy):
    context = make_context(dataclasses.replace(HYPER, dual_init="gradient"), toy)
    lam = ALGORITHMS["primal_dual"].init(context).variables["lambda"]
    torch.testing.assert_close(lam, -toy.gradients(context.problem.initial(0))[0])


@pytest.mark.parametrize(
    ("options", "scalars"),
    [
        ({"hypergradient_batch": "gradient"}, 0),
        ({"hypergradient_batch": "gradient", "inner_steps": 4}, 0),
        ({"hypergradient_batch": "product", "estimator": "paper"}, 1),
        ({"hypergradient_batch": "both", "estimator": "normalised"}, 1),
        ({"hypergradient_batch": "both", "estimator": "memory"}, 0),
        ({"hypergradient_batch": "both", "product_batch_size": "shared"}, 0),
    ],
)
def test_counters_are_the_specification_s(toy, options, scalars):
    """Per active client and inner step: down 2d, up 2d, one gradient, one product; one exchange (section 3's table)."""
    hyper = dataclasses.replace(HYPER, **options)
    context = make_context(hyper, toy, participation=0.5)
    state = ALGORITHMS["primal_dual"].init(context)
    K, d = hyper.inner_steps, toy.dimension
    for t in range(1, 6):
        for k in range(1, K + 1):
            now = dataclasses.replace(context, round=t, inner=k)
            n = len(now.active())
            cost = ALGORITHMS["primal_dual"].step(state, now).cost
            assert (cost.communication_rounds, cost.gradients, cost.hvps) == (1, n, n)
            assert (cost.floats_down, cost.floats_up) == (2 * d * n, 2 * d * n + scalars * n)


@pytest.mark.parametrize(("choice", "mix"), [("gradient", (1, 0)), ("product", (0, 1)), ("both", (0.5, 0.5))])
def test_hypergradient_batch(toy, choice, mix):
    """Two batches made to differ: on "product" the client losses are doubled, so lambda^T grad f_i is too."""

    class Doubled(Toy):
        def draw(self, stream, clients, size):
            return (clients, size)

        def losses(self, w, batch):
            return super().losses(w, batch[:1]) * (batch[1] if len(batch) > 1 else 1)

        def select(self, batch, i):
            return (batch[0][i : i + 1], *batch[1:])

    problem = Doubled(toy.A, toy.B, toy.a, toy.b)
    hyper = dataclasses.replace(HYPER, hypergradient_batch=choice, product_batch_size=2)
    context = make_context(hyper, problem)
    state = ALGORITHMS["primal_dual"].init(context)
    lam = torch.linspace(-1, 1, toy.dimension, dtype=torch.float64)
    state.variables["lambda"] = lam
    direction = ALGORITHMS["primal_dual"].step(state, context).directions["x"]
    plain = toy.gradients(state.variables["w"])[1:] @ lam
    torch.testing.assert_close(direction, mix[0] * plain + mix[1] * 2 * plain)


@pytest.mark.parametrize("estimator", ["paper", "memory"])
def test_a_shared_batch_is_one_draw_for_gradient_product_and_hypergradient(toy, estimator):
    """With white noise e_i on gradients and E_i on Hessians: all three directions hold the errors of ONE minibatch."""
    noisy, drawn = dataclasses.replace(toy, noise=0.5), []

    class Watched(FusedOracle):
        def draw(self, stream, clients, size):
            drawn.append(super().draw(stream, clients, size))
            return drawn[-1]

    hyper = dataclasses.replace(HYPER, product_batch_size="shared", estimator=estimator)
    context = dataclasses.replace(make_context(hyper, noisy), oracle=Watched(noisy))
    state = ALGORITHMS["primal_dual"].init(context)
    lam = torch.linspace(-1, 1, toy.dimension, dtype=torch.float64)
    state.variables["lambda"] = lam
    w, x = state.variables["w"], state.variables["x"]
    found = ALGORITHMS["primal_dual"].step(state, context).directions
    ((_, e, E),) = drawn
    G = toy.gradients(w)[1:] + e
    sum_h = toy.hessian(w, x) @ lam + torch.einsum("i,ikl,l->k", x, E, lam)
    g_0 = context.oracle.validation_gradient(w, context.validation())
    torch.testing.assert_close(found["w"], g_0 + sum_h + hyper.gamma * x @ G)
    torch.testing.assert_close(found["lambda"], hyper.dual_damping * lam - x @ G)
    torch.testing.assert_close(found["x"], G @ lam)


def test_equal_seeds_give_equal_bits_and_others_do_not(toy):
    a, b, c = (run("primal_dual", make_context(HYPER, toy, 0.5, seed=s), 20).variables["w"] for s in (0, 0, 1))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)
