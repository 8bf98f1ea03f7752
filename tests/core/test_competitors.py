"""Each competitor against what it is on paper: explicit matrices, finite differences, enumeration (toy, float64)."""

import dataclasses
from dataclasses import replace

import pytest
import torch

from pipeline.errors import UserError
from pipeline.methods import ALGORITHMS, StepContext
from pipeline.methods.client_weighting.afl import Afl
from pipeline.methods.client_weighting.average import Average
from pipeline.methods.client_weighting.common import estimators, weighted_neumann
from pipeline.methods.client_weighting.exact_gradient import ExactGradient
from pipeline.methods.client_weighting.fednest import FedNest
from pipeline.methods.client_weighting.oracle_weights import OracleWeights
from pipeline.methods.client_weighting.rfho import Rfho
from pipeline.methods.client_weighting.sustain import Sustain
from pipeline.problems.toy import Toy
from tests.core.helpers import PLAIN, make_context, run

STEPS = PLAIN | {"eta_w": 0.03, "eta_x": 0.01}
X = torch.tensor([0.4, 0.1, 0.15, 0.05, 0.3], dtype=torch.float64)


@pytest.fixture(scope="module")
def toy():
    return Toy.generate(clients=5, seed=0)


@pytest.fixture(scope="module")
def noisy(toy):
    return replace(toy, noise=0.5)


@pytest.fixture(scope="module")
def start(toy):
    """A point far from every solution."""
    return torch.randn(toy.dimension, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def outer_iteration(name, context, w, x, t=1, schedule=1.0):
    """From (w, x): the model after its K steps, and the direction of x. schedule: what multiplies the step sizes."""
    algorithm = ALGORITHMS[name]
    state = algorithm.init(context)
    state.variables.update({"w": w.clone(), "x": x.clone()})
    sizes = {variable: schedule * size for variable, size in algorithm.step_sizes(context.hyper).items()}
    for k in range(1, algorithm.inner_steps(context.hyper) + 1):
        step = algorithm.step(state, replace(context, round=t, inner=k, step_sizes=sizes))
        if "w" in step.directions:
            state.variables["w"] = state.variables["w"] - sizes["w"] * step.directions["w"]
    return state.variables["w"], step.directions["x"]


# --------------------------------------------------------------------------------------------------------------- RFHO


@pytest.mark.parametrize("participation", [1.0, 0.5])
@pytest.mark.parametrize(("estimator", "K"), [("paper", 4), ("normalised", 4), ("memory", 1)])
def test_reverse_equals_forward(noisy, start, estimator, K, participation):
    """Property 7, on noisy minibatches with absent clients: both differentiate the same realised steps."""
    reverse = Rfho(**STEPS, inner_steps=K, estimator=estimator)
    contexts = [make_context(h, noisy, participation) for h in (reverse, replace(reverse, mode="forward"))]
    (w, g_x), (w_forward, g_x_forward) = (outer_iteration("rfho", context, start, X, t=3) for context in contexts)
    torch.testing.assert_close(w, w_forward, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(g_x, g_x_forward, rtol=1e-9, atol=1e-12)
    if estimator != "memory" and participation < 1:
        seen = torch.cat([replace(contexts[0], round=3).at(k).active() for k in range(1, K + 1)]).unique()
        assert (g_x[seen] != 0).all()
        assert g_x.count_nonzero() == len(seen)


@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_reverse_is_the_slope_of_the_validation_loss_after_the_realised_steps(toy, start, participation):
    """Central differences in x of f_0(w_K(x)), the active sets held fixed."""
    context = make_context(Rfho(**STEPS, inner_steps=4, estimator="paper"), toy, participation)
    _, g_x = outer_iteration("rfho", context, start, X)
    step, server = 1e-5, (torch.tensor([-1]),)
    for i in range(5):
        move = step * torch.eye(5, dtype=torch.float64)[i]
        ends = [outer_iteration("rfho", context, start, X + sign * move)[0] for sign in (1, -1)]
        slope = (toy.validation_loss(ends[0], server) - toy.validation_loss(ends[1], server)) / (2 * step)
        assert float(g_x[i]) == pytest.approx(float(slope), rel=1e-6, abs=1e-8)


@pytest.mark.parametrize("mode", ["reverse", "forward", "realtime"])
def test_one_step_is_the_inner_product_of_gradients(toy, start, mode):
    """K = 1: -eta_w grad f_i(w_0)^T grad f_0(w_1)."""
    context = make_context(Rfho(**STEPS, mode=mode), toy)
    w, g_x = outer_iteration("rfho", context, start, X)
    torch.testing.assert_close(w, start - 0.03 * X @ toy.gradients(start)[1:])
    torch.testing.assert_close(g_x, -0.03 * toy.gradients(start)[1:] @ toy.gradients(w)[0])


@pytest.mark.parametrize("mode", ["reverse", "forward", "realtime"])
def test_the_steps_in_force_are_differentiated(toy, start, mode):
    """Half of the schedule is half of eta_w: the realised steps, and the factor eta_w of the hypergradient."""
    hyper = Rfho(**STEPS, inner_steps=3, mode=mode)
    w, g_x = outer_iteration("rfho", make_context(hyper, toy), start, X, schedule=0.5)
    halved = outer_iteration("rfho", make_context(replace(hyper, eta_w=0.015), toy), start, X)
    torch.testing.assert_close(w, halved[0])
    torch.testing.assert_close(g_x, halved[1])


def test_realtime_starts_as_forward_and_then_carries_its_derivative_over(toy):
    forward = Rfho(**STEPS, inner_steps=2, mode="forward")
    contexts = [make_context(h, toy) for h in (forward, replace(forward, mode="realtime"))]
    after = [[run("rfho", context, rounds).variables["x"] for context in contexts] for rounds in (1, 2)]
    assert torch.equal(*after[0])
    assert (after[1][0] - after[1][1]).abs().max() > 1e-6


def test_realtime_s_derivative_by_hand(toy):
    """x held fixed: after two outer iterations of two steps Z is that of one iteration of four."""
    context = make_context(Rfho(**STEPS, inner_steps=2, mode="realtime"), toy)
    long = make_context(Rfho(**STEPS, inner_steps=4, mode="forward"), toy)
    a, b = run("rfho", context, 2, frozen=("x",)), run("rfho", long, 1, frozen=("x",))
    torch.testing.assert_close(a.memory["Z"], b.memory["Z"])
    torch.testing.assert_close(a.variables["w"], b.variables["w"])


def test_under_memory_an_absent_client_s_last_gradient_stands_in(toy, start):
    """K = 1: g_x,i = -eta_w G_i^T grad f_0(w_1) for all i, G_i the last answer (here: at an older point)."""
    context = replace(make_context(Rfho(**STEPS, estimator="memory"), toy, 0.5), round=2, step_sizes={"w": 0.03})
    state = ALGORITHMS["rfho"].init(context)
    old = torch.ones_like(start)
    G = toy.gradients(old)[1:]
    state.memory["G"].copy_(G)
    active = context.active()
    assert 0 < len(active) < 5
    G[active] = toy.gradients(start)[1:][active]
    state.variables.update({"w": start, "x": X})
    state.variables["w"] = start - 0.03 * ALGORITHMS["rfho"].step(state, context).directions["w"]
    torch.testing.assert_close(state.variables["w"], start - 0.03 * X @ G)
    g_x = ALGORITHMS["rfho"].step(state, context.at(2)).directions["x"]
    torch.testing.assert_close(g_x, -0.03 * G @ toy.gradients(state.variables["w"])[0])


@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_other_than_plain_steps_are_refused(toy, optimizer):
    with pytest.raises(UserError, match=rf"algorithms\.rfho\.optimizer = '{optimizer}'.*sgd.*plain steps.*Fix"):
        ALGORITHMS["rfho"].init(make_context(Rfho(optimizer=optimizer), toy))


# -------------------------------------------------------------------------------------------------- the Neumann series


def test_series_by_matrix_powers_and_its_error_bound(toy, start):
    """Property 8: v = eta_h sum_q (I - eta_h H)^q g_0; at most (1 - eta_h mu)^(Q+1) of the exact norm away from it."""
    H, g_0 = toy.hessian(start, X), toy.gradients(start)[0]
    eigenvalues = torch.linalg.eigvalsh(H)
    eta_h = float(0.9 / eigenvalues[-1])
    context = make_context(FedNest(eta_h=eta_h), toy)
    exact, errors = torch.linalg.solve(H, g_0), []
    contraction = torch.eye(toy.dimension, dtype=torch.float64) - eta_h * H
    for Q in (0, 1, 4, 40):
        v, cost = weighted_neumann.inverse_product(context, start, X, Q)
        powers = sum(torch.linalg.matrix_power(contraction, q) @ g_0 for q in range(Q + 1))
        torch.testing.assert_close(v, eta_h * powers)
        errors.append(float((v - exact).norm()))
        assert errors[-1] <= (1 - eta_h * float(eigenvalues[0])) ** (Q + 1) * float(exact.norm()) * (1 + 1e-9)
        assert cost.hvps == 5 * Q
    assert errors == sorted(errors, reverse=True)
    long, _ = weighted_neumann.inverse_product(context, start, X, 600)
    torch.testing.assert_close(long, exact, rtol=0, atol=1e-2 * errors[-1])


def test_without_products_the_hypergradient_is_an_inner_product(toy, start):
    """Q = 0: v = eta_h grad f_0, at the model after its steps."""
    context = make_context(FedNest(**STEPS, eta_h=0.07, inner_steps=2, series_products=0), toy)
    w, g_x = outer_iteration("fednest", context, start, X)
    g = toy.gradients(w)
    torch.testing.assert_close(g_x, -0.07 * g[1:] @ g[0])


def test_randomised_series_is_unbiased(noisy, start, monkeypatch):
    """The mean over q = 0..Q, each with probability 1/(Q+1), is the deterministic series, sample by sample."""
    Q = 4
    context = make_context(FedNest(eta_h=0.03), noisy, 0.5)
    expected, _ = weighted_neumann.inverse_product(context, start, X, Q)
    randomised = replace(context, hyper=replace(context.hyper, series="randomised"))
    terms = []
    for q in range(Q + 1):
        monkeypatch.setattr(StepContext, "integer", lambda self, purpose, count, q=q: q)
        terms.append(weighted_neumann.inverse_product(randomised, start, X, Q)[0])
    torch.testing.assert_close(sum(terms) / (Q + 1), expected)


def test_the_random_length_is_uniform(toy):
    """4000 rounds, Q + 1 = 4: each count within 4.5 standard deviations (27.4) of 1000."""
    context = make_context(FedNest(), toy)
    drawn = torch.tensor([replace(context, round=t).integer("series", 4) for t in range(4000)])
    assert (drawn.bincount(minlength=4) - 1000).abs().max() < 4.5 * 27.4


def test_factors_have_their_own_clients_and_samples(noisy):
    """Every factor of the series, and the step around it, draws independently; asking again gives the same."""
    context = make_context(FedNest(), noisy, 0.5)
    all_clients = torch.arange(5)
    sets = {tuple(replace(context, round=t).active(*q).tolist()) for t in range(1, 4) for q in ((), (1,), (2,))}
    assert len(sets) > 5
    first, second, again = (context.batch("factor", all_clients, 1, q) for q in (1, 2, 1))
    assert torch.equal(first[2], again[2])
    assert not (first[2] == second[2]).any()


# ------------------------------------------------------------------------------------------------------------- SUSTAIN


def sample(context, w, x):
    """G(z; xi) by explicit matrices: exact gradients and Hessians plus the minibatches' own noise, (N/n) x_i."""
    toy, eta_h = context.problem, context.hyper.eta_h
    _, e_0, _ = context.validation()
    term = toy.gradients(w)[0] + e_0[0]
    total = term
    for q in range(1, context.hyper.series_products + 1):
        active = context.active(q)
        _, _, E = context.batch("factor", active, 1, q)
        present = torch.zeros_like(x)
        present[active] = x[active] * 5 / len(active)
        H = toy.hessian(w, present) + torch.einsum("i,ikl->kl", present[active], E)
        term = term - eta_h * H @ term
        total = total + term
    active = context.active()
    _, e, _ = context.batch("gradient", active, 1)
    G = torch.zeros(5, toy.dimension, dtype=torch.float64)
    G[active] = 5 / len(active) * (toy.gradients(w)[1:][active] + e)
    return x @ G, -G @ (eta_h * total)


@pytest.mark.parametrize("c", [1.0, 0.3])
def test_sustain_is_storm_on_shared_samples(noisy, c):
    """d <- G(z_t; xi) + (1 - c)(d - G(z_(t-1); xi)) by hand; with c = 1 that is plain simultaneous descent."""
    hyper = Sustain(**STEPS, eta_h=0.03, storm_weight=c, series_products=2, estimator="paper")
    context = make_context(hyper, noisy, 0.5)
    state = ALGORITHMS["sustain"].init(context)
    sizes = {"w": 0.03, "x": 0.01}
    momentum = previous = None
    for t in range(1, 6):
        now = replace(context, round=t, step_sizes=sizes)
        w, x = state.variables["w"], state.variables["x"]
        fresh = sample(now, w, x)
        if previous is None or c == 1.0:
            momentum = fresh
        else:
            stale = sample(now, *previous)
            momentum = tuple(g + (1 - c) * (d - s) for g, d, s in zip(fresh, momentum, stale, strict=True))
        step = ALGORITHMS["sustain"].step(state, now)
        torch.testing.assert_close(step.directions["w"], momentum[0], rtol=1e-9, atol=1e-10)
        torch.testing.assert_close(step.directions["x"], momentum[1], rtol=1e-9, atol=1e-10)
        previous = (w.clone(), x.clone())
        for name, size in sizes.items():
            moved = state.variables[name] - size * step.directions[name]
            state.variables[name] = ALGORITHMS["sustain"].projections.get(name, lambda v, h: v)(moved, hyper)


# ------------------------------------------------------------------------------------------ AFL and the fixed weights


@dataclasses.dataclass(frozen=True)
class Known(Toy):
    """A toy whose clients have samples, and whose oracle knows weights."""

    @property
    def samples(self):
        return torch.tensor([4, 1, 3, 1, 1])

    @property
    def oracle_weights(self):
        return torch.tensor([0.4, 0.1, 0.3, 0.1, 0.1], dtype=torch.float64)


@pytest.mark.parametrize("estimator", ["paper", "normalised", "memory"])
def test_fixed_weights_and_agnostic_learning_without_x_steps_are_one_algorithm(noisy, estimator):
    """Property 10: average by samples, the oracle's weights (chosen equal here) and AFL held at the same x give the
    same bits; average and AFL both start from 1/N."""
    known, options = Known(*dataclasses.astuple(noisy)), {"eta_w": 0.03, "estimator": estimator}
    contexts = [make_context(h(**options), known, 0.5) for h in (Average, OracleWeights, Afl)]
    by_samples = replace(contexts[0], federation=replace(contexts[0].federation, aggregation="samples"))
    average = run("average", contexts[0], 8).variables["w"]
    weighted = run("average", by_samples, 8).variables["w"]
    oracle = run("oracle_weights", contexts[1], 8).variables["w"]
    afl = run("afl", contexts[2], 8, frozen=("x",)).variables["w"]
    assert torch.equal(afl, average)
    torch.testing.assert_close(weighted, oracle, rtol=1e-12, atol=1e-14)
    assert (oracle - average).abs().max() > 1e-4
    almost = replace(contexts[2], hyper=replace(contexts[2].hyper, eta_x=1e-300))
    torch.testing.assert_close(run("afl", almost, 8).variables["w"], average, rtol=1e-12, atol=1e-14)


def test_agnostic_step_by_hand(toy, start):
    context = make_context(Afl(**PLAIN, estimator="paper"), toy, 0.5)
    state = ALGORITHMS["afl"].init(context)
    state.variables.update({"w": start, "x": X})
    active = context.active()
    step = ALGORITHMS["afl"].step(state, context)
    expected = torch.zeros(5, dtype=torch.float64)
    expected[active] = toy.losses(start, (active,)) * 5 / len(active)
    assert 0 < len(active) < 5
    torch.testing.assert_close(step.directions["x"], -expected)
    torch.testing.assert_close(step.directions["w"], 5 / len(active) * X[active] @ toy.gradients(start)[1:][active])


# ------------------------------------------------------------------------------------------------- the exact gradient


def test_exact_gradient_by_hand(toy, start):
    context = make_context(ExactGradient(**STEPS, inner_steps=2), toy)
    w, g_x = outer_iteration("exact_gradient", context, start, X)
    g = toy.gradients(w)
    torch.testing.assert_close(g_x, -g[1:] @ torch.linalg.solve(toy.hessian(w, X), g[0]))


def test_exact_gradient_refuses_a_large_model(toy):
    class Large(Known):
        dimension = 61_706

    context = make_context(ExactGradient(), Large(*dataclasses.astuple(toy)))
    with pytest.raises(UserError, match=r"exact_gradient needs a dense Hessian.*2000.*61706.*Fix"):
        ALGORITHMS["exact_gradient"].init(context)


def test_auto_counts_what_each_method_remembers():
    options = Average(memory_limit_mb=1)  # N d * 4 bytes <= 2^20 for N = 10: d <= 26214
    assert estimators.choose(options, 10, 26_214, 4, 0.5, vectors=1) == "memory"
    assert estimators.choose(options, 10, 26_215, 4, 0.5, vectors=1) == "normalised"
