"""What holds for every client-weighting method alike, on the toy (float64); fixed points and costs of the shipped."""

import dataclasses

import pytest
import torch

from pipeline.errors import UserError
from pipeline.methods import ALGORITHMS, Cost
from pipeline.methods.client_weighting.afl import Afl
from pipeline.methods.client_weighting.average import Average
from pipeline.methods.client_weighting.common.weighting_context import WeightingContext
from pipeline.methods.client_weighting.exact_gradient import ExactGradient
from pipeline.methods.client_weighting.fednest import FedNest
from pipeline.methods.client_weighting.oracle_weights import OracleWeights
from pipeline.methods.client_weighting.primal_dual import PrimalDual
from pipeline.methods.client_weighting.rfho import Rfho
from pipeline.methods.client_weighting.sustain import Sustain
from pipeline.methods.client_weighting.validation_only import ValidationOnly
from pipeline.oracles import FusedOracle, LoopOracle
from pipeline.problems.toy import Toy
from tests.core.helpers import LARGE, PLAIN, PRINTED, make_context, permuted, run, stationarity, well_conditioned
from tests.registered import unnamed

STEPS = {"eta_w": 0.03, "eta_x": 0.01}
VARIANTS = {
    "primal_dual": ("primal_dual", PrimalDual(**STEPS, eta_lambda=0.1, dual_radius=LARGE, inner_steps=2)),
    "primal_dual shared": (
        "primal_dual",
        PrimalDual(**STEPS, eta_lambda=0.1, dual_radius=LARGE, inner_steps=2, product_batch_size="shared"),
    ),
    "rfho reverse": ("rfho", Rfho(**STEPS, inner_steps=3)),
    "rfho forward": ("rfho", Rfho(**STEPS, inner_steps=3, mode="forward")),
    "rfho realtime": ("rfho", Rfho(**STEPS, inner_steps=2, mode="realtime")),
    "fednest": ("fednest", FedNest(**STEPS, eta_h=0.03, inner_steps=2)),
    "fednest randomised": ("fednest", FedNest(**STEPS, eta_h=0.03, inner_steps=3, series="randomised")),
    "sustain": ("sustain", Sustain(**STEPS, eta_h=0.03, series_products=2)),
    "sustain randomised": ("sustain", Sustain(**STEPS, eta_h=0.03, series_products=3, series="randomised")),
    "afl": ("afl", Afl(**STEPS)),
    "validation_only": ("validation_only", ValidationOnly(eta_w=0.03)),
    "average": ("average", Average(eta_w=0.03)),
    "oracle_weights": ("oracle_weights", OracleWeights(eta_w=0.03)),
    "exact_gradient": ("exact_gradient", ExactGradient(**STEPS, inner_steps=2)),
}
VARIANTS |= {
    name: (name, ALGORITHMS[name].options(**PLAIN, **{ALGORITHMS[name].options.main_step_size: 0.03}))
    for name in unnamed(WeightingContext, {name for name, _ in VARIANTS.values()})
}
every_method = pytest.mark.parametrize(("name", "hyper"), VARIANTS.values(), ids=VARIANTS.keys())
every_estimator = pytest.mark.parametrize("estimator", ["paper", "normalised", "memory"])


@pytest.fixture(scope="module")
def toy():
    return Toy.generate(clients=5, seed=0)


@pytest.fixture(scope="module")
def noisy(toy):
    return dataclasses.replace(toy, noise=0.5)


# ------------------------------------------------------------------------------------------------- fixed points

# Hessians near the identity: steps of size 1 contract fast, and K = 8 leaves 0.15^8 = 3e-7 of a truncated series.
FIXED = {  # settings and outer iterations
    "primal_dual": [(PrimalDual(**PRINTED, eta_w=0.2, eta_lambda=0.3, eta_x=0.05, gamma=2.0, dual_radius=LARGE), 150)],
    "rfho": [
        (Rfho(**PLAIN, eta_w=1.0, eta_x=0.2, inner_steps=8), 15),
        (Rfho(**PLAIN, eta_w=1.0, eta_x=0.2, inner_steps=8, mode="forward"), 15),
        (Rfho(**PLAIN, eta_w=1.0, eta_x=0.2, inner_steps=1, mode="realtime"), 40),
    ],
    "fednest": [(FedNest(**PLAIN, eta_w=1.0, eta_x=0.2, eta_h=1.0, inner_steps=2, series_products=8), 15)],
    "sustain": [(Sustain(**PLAIN, eta_w=0.8, eta_x=0.1, eta_h=1.0, storm_weight=0.7, series_products=8), 45)],
    "exact_gradient": [(ExactGradient(**PLAIN, eta_w=1.0, eta_x=0.2, inner_steps=2), 15)],
    "afl": [(Afl(**PLAIN, eta_w=0.5, eta_x=0.1), 1500)],
    "average": [(Average(**PLAIN, eta_w=1.0), 30)],
    "oracle_weights": [(OracleWeights(**PLAIN, eta_w=1.0), 30)],
    "validation_only": [(ValidationOnly(**PLAIN, eta_w=1.0), 30)],
}
LEARNING = ("primal_dual", "rfho", "fednest", "sustain", "exact_gradient")


@pytest.fixture(scope="module")
def mild():
    """x* is no vertex: two clients share the weight."""
    return well_conditioned(seed=1)


@pytest.mark.parametrize(("name", "hyper", "rounds"), [(n, *settings) for n in LEARNING for settings in FIXED[n]])
def test_bilevel_methods_end_at_the_stationary_point(mild, name, hyper, rounds):
    """Deterministic, K large enough: the end is where the closed-form hypergradient wants to move no more, with
    w = w*(x), and better than the start."""
    state = run(name, make_context(hyper, mild), rounds)
    x, uniform = state.variables["x"], torch.full((4,), 0.25, dtype=torch.float64)
    assert stationarity(mild, x) < 1e-5 < 0.5 < stationarity(mild, uniform)
    torch.testing.assert_close(state.variables["w"], mild.solve(x).w, rtol=0, atol=1e-5)
    assert mild.solve(x).value < mild.solve(uniform).value - 1.0
    assert (x > 0.01).sum() == 2


@pytest.mark.parametrize("name", ["average", "oracle_weights", "validation_only"])
def test_fixed_weights_end_at_the_lower_solution(mild, name):
    ((hyper, rounds),) = FIXED[name]
    w = run(name, make_context(hyper, mild), rounds).variables["w"]
    if name == "validation_only":
        assert mild.gradients(w)[0].norm() < 1e-10
    else:  # on the toy no client is bad, so the oracle's weights are 1/N too
        torch.testing.assert_close(w, mild.solve(torch.full((4,), 0.25, dtype=torch.float64)).w, rtol=0, atol=1e-10)


def test_agnostic_learning_ends_at_the_minimax_point(mild):
    """Optimality: sum_i x_i grad f_i(w) = 0, and every client of positive weight has the largest loss."""
    ((hyper, rounds),) = FIXED["afl"]
    state, all_clients = run("afl", make_context(hyper, mild), rounds), (torch.arange(4),)
    w, x = state.variables["w"], state.variables["x"]
    losses, start = mild.losses(w, all_clients), mild.solve(torch.full_like(x, 0.25)).w
    assert (x @ mild.gradients(w)[1:]).norm() < 1e-6
    assert (losses[x > 1e-9] > losses.max() - 1e-6).all()
    assert (x > 0.01).sum() >= 2
    assert losses.max() < mild.losses(start, all_clients).max() - 0.01


# ---------------------------------------------------------------------------------------- one mathematics, two backends


@every_method
@every_estimator
@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_loop_and_fused_give_the_same_run(noisy, name, hyper, estimator, participation):
    hyper = dataclasses.replace(hyper, estimator=estimator)
    a, b = (run(name, make_context(hyper, noisy, participation, oracle), 5) for oracle in (FusedOracle, LoopOracle))
    for variable, value in a.variables.items():
        torch.testing.assert_close(b.variables[variable], value, rtol=1e-9, atol=1e-10)
    for kept, value in a.memory.items():
        torch.testing.assert_close(b.memory[kept], value, rtol=1e-8, atol=1e-9)


@every_method
def test_equal_seeds_give_equal_bits_and_others_do_not(noisy, name, hyper):
    a, b, c = (run(name, make_context(hyper, noisy, 0.5, seed=s), 5).variables for s in (0, 0, 1))
    assert all(torch.equal(a[variable], b[variable]) for variable in a)
    assert not torch.equal(a["w"], c["w"])


# ------------------------------------------------------------------------------------------------------- the weights


@every_method
@every_estimator
def test_the_weights_never_leave_the_simplex(noisy, name, hyper, estimator):
    fast = {"eta_x": 0.5} if hasattr(hyper, "eta_x") else {}
    hyper, seen = dataclasses.replace(hyper, estimator=estimator, **fast), []
    context = make_context(hyper, noisy, 0.5)
    run(name, context, 10, each=lambda state: seen.append(state.variables["x"]))
    X = torch.stack(seen)
    total = 0.0 if name == "validation_only" else 1.0
    assert (X >= 0).all()
    torch.testing.assert_close(X.sum(1), torch.full((10,), total, dtype=torch.float64), rtol=0, atol=1e-12)
    moved = "x" in ALGORITHMS[name].step_sizes(hyper)
    assert moved == bool((X[-1] != ALGORITHMS[name].init(context).variables["x"]).any())


@every_method
def test_permuting_clients_permutes_the_weights(toy, name, hyper):
    """Property 6 at full participation without noise, where no client has a random stream."""
    order = [3, 0, 4, 1, 2]
    x = run(name, make_context(hyper, toy), 10).variables["x"]
    y = run(name, make_context(hyper, permuted(toy, order)), 10).variables["x"]
    torch.testing.assert_close(y, x[order], rtol=1e-9, atol=1e-11)


@every_method
def test_identical_clients_keep_equal_weights(toy, name, hyper):
    x = run(name, make_context(hyper, permuted(toy, [2, 2, 2])), 10).variables["x"]
    torch.testing.assert_close(x, x.mean().expand(3), rtol=0, atol=1e-12)


# -------------------------------------------------------------------------------------------------- what it costs

# Per active client and outer iteration, as functions of (K, d, N): exchanges, floats up, floats down, gradients,
# products. Exchanges and floats up are the specification's table; floats down count what a client that keeps nothing
# between exchanges must be sent.
RFHO_FORWARD = lambda K, d, N: (K, K * d + (K - 1) * N * d, K * d + (K - 1) * N * d, K, (K - 1) * N)  # noqa: E731
TABLE = [
    (
        "primal_dual",
        lambda K: PrimalDual(inner_steps=K, hypergradient_batch="gradient"),
        lambda K, d, N: (K, 2 * K * d, 2 * K * d, K, K),
    ),
    (
        "rfho",
        lambda K: Rfho(inner_steps=K),
        lambda K, d, N: (2 * K, (2 * K - 1) * d + K, 3 * K * d, 2 * K, K - 1),
    ),
    ("rfho", lambda K: Rfho(inner_steps=K, mode="forward"), RFHO_FORWARD),
    (
        "fednest",
        lambda K: FedNest(inner_steps=K),
        lambda K, d, N: (2 * K + 1, 2 * K * d + 1, (3 * K + 2) * d, K + 1, K),
    ),
    (
        "sustain",
        lambda K: Sustain(series_products=K),
        lambda K, d, N: (K + 1, (2 * K + 1) * d + 2, 4 * (K + 1) * d + 2, 2, 2 * K),
    ),
    ("afl", lambda K: Afl(), lambda K, d, N: (1, d + 1, d, 1, 0)),
    ("average", lambda K: Average(), lambda K, d, N: (1, d, d, 1, 0)),
    ("oracle_weights", lambda K: OracleWeights(), lambda K, d, N: (1, d, d, 1, 0)),
    ("validation_only", lambda K: ValidationOnly(), lambda K, d, N: (0, 0, 0, 0, 0)),
    (
        "exact_gradient",
        lambda K: ExactGradient(inner_steps=K),
        lambda K, d, N: (K + 2, K * d + d * (d + 1) // 2 + 1, (K + 3) * d, K + 1, d),
    ),
]


def spent(name, context, rounds) -> Cost:
    """Of the last of that many outer iterations."""
    algorithm, total = ALGORITHMS[name], Cost()
    state = algorithm.init(context)
    sizes = algorithm.step_sizes(context.hyper)
    for t in range(1, rounds + 1):
        total = Cost()
        for k in range(1, algorithm.inner_steps(context.hyper) + 1):
            total += algorithm.step(state, dataclasses.replace(context, round=t, inner=k, step_sizes=sizes)).cost
    return total


@pytest.mark.parametrize("K", [1, 3])
@pytest.mark.parametrize(("name", "hyper", "row"), TABLE, ids=[name for name, _, _ in TABLE])
def test_counters_are_the_specification_s(toy, name, hyper, row, K):
    """Exactly n = 2 of N = 5 clients are active in every exchange, so each counter is 2 times the table's entry."""
    context = make_context(dataclasses.replace(hyper(K), estimator="paper"), toy, 0.4, sampling="fixed")
    exchanges, *per_client = row(K, toy.dimension, toy.clients)
    got = spent(name, context, rounds=2)
    assert dataclasses.astuple(got) == (exchanges, *(2 * count for count in per_client))


def test_counters_of_special_cases(toy):
    """Sustain's first iteration has one point; under memory its new gradient travels alone; real-time RFHO pays for
    every step's products but the very first's, where dw/dx = 0."""
    d, N, n = toy.dimension, toy.clients, 2

    def cost(name, hyper, rounds):
        return dataclasses.astuple(spent(name, make_context(hyper, toy, 0.4, sampling="fixed"), rounds))

    paper, memory = ({"estimator": e} for e in ("paper", "memory"))
    K = 2
    assert cost("sustain", Sustain(series_products=K, **paper), 1) == (
        K + 1,
        n * ((K + 1) * d + 1),
        n * 2 * (K + 1) * d,
        n,
        n * K,
    )
    assert cost("sustain", Sustain(series_products=K, **memory), 2) == (
        K + 1,
        n * (2 * (K + 1) * d + 2),
        n * 4 * (K + 1) * d,
        2 * n,
        2 * n * K,
    )
    first, later = (cost("rfho", Rfho(inner_steps=K, mode="realtime", **paper), rounds) for rounds in (1, 2))
    assert first == (K, *(2 * [n * (K * d + (K - 1) * N * d)]), n * K, n * (K - 1) * N)
    assert later == (K, *(2 * [n * (K * d + K * N * d)]), n * K, n * K * N)


def test_a_randomised_series_pays_for_the_factors_it_draws(toy):
    K, d = 3, toy.dimension
    context = make_context(FedNest(inner_steps=K, series="randomised"), toy)
    algorithm, seen = ALGORITHMS["fednest"], set()
    for t in range(1, 30):
        now = dataclasses.replace(context, round=t, inner=K + 1)
        q = now.integer("series", K + 1)
        cost = algorithm.step(algorithm.init(now), now).cost
        assert (cost.communication_rounds, cost.hvps, cost.floats_up) == (q + 1, 5 * q, 5 * (q * d + 1))
        seen.add(q)
    assert seen == {0, 1, 2, 3}


@every_method
def test_clipping_shortens_the_models_direction_and_nothing_else(name, hyper, toy):
    """To half its length, and not at all when it is shorter; rfho, which differentiates plain steps, refuses."""
    algorithm = ALGORITHMS[name]
    context = make_context(hyper, toy, oracle=LoopOracle, step_sizes=algorithm.step_sizes(hyper))
    free = algorithm.step(algorithm.init(context), context)
    length = float(free.directions["w"].norm())
    for norm, factor in ((length / 2, 0.5), (2 * length, 1.0)):
        clipped = dataclasses.replace(context, hyper=dataclasses.replace(hyper, clip_norm=norm))
        if name == "rfho":
            with pytest.raises(UserError, match=r"algorithms.rfho.clip_norm.*plain steps.*Fix: set it to 0"):
                algorithm.init(clipped)
            continue
        step = algorithm.step(algorithm.init(clipped), clipped)
        torch.testing.assert_close(step.directions["w"], factor * free.directions["w"])
        for other in step.directions.keys() - {"w"}:
            torch.testing.assert_close(step.directions[other], free.directions[other])


def test_the_momentum_of_sustain_is_not_clipped(toy):
    """Only the step is: the recursion d <- G + (1 - c)(d - G_old) goes on with the whole of d."""
    hyper = Sustain(**PLAIN, **STEPS, eta_h=0.03, storm_weight=0.5)
    momenta = []
    for norm in (0.0, 1e-3):
        context, algorithm = make_context(dataclasses.replace(hyper, clip_norm=norm), toy), ALGORITHMS["sustain"]
        state = algorithm.init(context)
        for t in (1, 2):  # at the same point, so that the two differ by the momentum alone
            step = algorithm.step(state, dataclasses.replace(context, round=t))
        momenta.append(state.memory["momentum_w"])
    torch.testing.assert_close(momenta[0], momenta[1])
    assert float(step.directions["w"].norm()) == pytest.approx(1e-3)
