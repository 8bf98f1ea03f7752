"""What client weighting draws when, on the toy: independent minibatches and client sets, and those used twice; what an
absent client's remembered answers stand in for. Float64."""

import dataclasses
from collections import Counter

import pytest
import torch

from pipeline.methods import ALGORITHMS
from pipeline.methods.client_weighting.afl import Afl
from pipeline.methods.client_weighting.average import Average
from pipeline.methods.client_weighting.common import estimators
from pipeline.methods.client_weighting.exact_gradient import ExactGradient
from pipeline.methods.client_weighting.fednest import FedNest
from pipeline.methods.client_weighting.oracle_weights import OracleWeights
from pipeline.methods.client_weighting.primal_dual import PrimalDual
from pipeline.methods.client_weighting.rfho import Rfho
from pipeline.methods.client_weighting.sustain import Sustain
from pipeline.methods.client_weighting.validation_only import ValidationOnly
from pipeline.oracles import FusedOracle
from pipeline.problems.toy import Toy
from tests.core.helpers import PLAIN, PRINTED, make_context, run

# Per outer iteration: minibatches of each client, how often each is looked at, the server's minibatches, and client
# sets. Lead specification, sections 2 (items 4 and 6) and 3: B and B' are independent, active sets are drawn per inner
# step; RFHO's way back re-uses those of the forward steps; "a fresh active set and batch for every factor"; SUSTAIN
# evaluates one sample at two points.
DRAWS = {
    "primal_dual": (PrimalDual(**PLAIN, inner_steps=2), 4, 1, 2, 2),
    "rfho reverse": (Rfho(**PLAIN, inner_steps=3), 3, 2, 1, 3),
    "rfho forward": (Rfho(**PLAIN, inner_steps=3, mode="forward"), 3, 1, 1, 3),
    "rfho realtime": (Rfho(**PLAIN, inner_steps=2, mode="realtime"), 2, 1, 1, 2),
    "fednest": (FedNest(**PLAIN, inner_steps=2), 2 + 2 + 1, 1, 1, 5),
    "sustain": (Sustain(**PLAIN, series_products=2), 2 + 1, 2, 1, 3),
    "exact_gradient": (ExactGradient(**PLAIN, inner_steps=2), 2 + 1 + 1, 1, 1, 4),
    "afl": (Afl(**PLAIN), 1, 2, 0, 1),
    "average": (Average(**PLAIN), 1, 1, 0, 1),
    "oracle_weights": (OracleWeights(**PLAIN), 1, 1, 0, 1),
    "validation_only": (ValidationOnly(**PLAIN), 0, 1, 1, 0),
}


@pytest.fixture(scope="module")
def toy():
    return Toy.generate(clients=5, seed=0)


@pytest.fixture
def drawn(monkeypatch):
    """(who, stream, clients) of every minibatch that is asked for."""
    seen = []

    def clients_draw(self, stream, clients, size):
        seen.append(("clients", stream, tuple(clients.tolist())))
        return self.problem.draw(stream, clients, size)

    def server_draw(self, stream, original=Toy.draw_validation):
        seen.append(("server", stream, ()))
        return original(self, stream)

    monkeypatch.setattr(FusedOracle, "draw", clients_draw)
    monkeypatch.setattr(Toy, "draw_validation", server_draw)
    return seen


def rounds_of(variant, toy, drawn, rounds):
    """What each round has drawn, two of the five clients being active."""
    found = []

    def keep(state):
        found.append(drawn.copy())
        drawn.clear()

    hyper = dataclasses.replace(DRAWS[variant][0], estimator="paper")
    run(variant.split()[0], make_context(hyper, toy, 0.4, sampling="fixed"), rounds, each=keep)
    return found


@pytest.mark.parametrize("variant", DRAWS)
def test_minibatches_are_as_many_and_as_independent_as_the_specification_says(toy, drawn, variant):
    """Rounds 2 and 3 (SUSTAIN's first has one point)."""
    _, clients, times, server, _ = DRAWS[variant]
    found = [entry for each in rounds_of(variant, toy, drawn, 3)[1:] for entry in each]
    streams = Counter((who, stream) for who, stream, _ in found)
    assert len({stream for _, stream, _ in found}) == len(streams)
    assert Counter(who for who, _ in streams) == Counter({"clients": 2 * clients, "server": 2 * server})
    assert {count for (who, _), count in streams.items() if who == "clients"} <= {times}
    assert {count for (who, _), count in streams.items() if who == "server"} <= {2 if variant == "sustain" else 1}


@pytest.mark.parametrize("variant", DRAWS)
def test_exchanges_have_client_sets_of_their_own(toy, drawn, variant):
    """Draw number j of a round is made for the same clients as number k in all of twenty rounds only if both belong to
    one set."""
    found = [[e for e in each if e[0] == "clients"] for each in rounds_of(variant, toy, drawn, 21)[1:]]
    columns = {tuple(each[j][2] for each in found) for j in range(len(found[0]))}
    assert len(columns) == DRAWS[variant][-1]


# ------------------------------------------------------------------------------------------------------------ memory


@pytest.fixture(scope="module")
def start(toy):
    return torch.randn(toy.dimension, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


X = torch.tensor([0.4, 0.1, 0.15, 0.05, 0.3], dtype=torch.float64)


def remembering(name, hyper, toy, start, **more):
    """A state in which all clients' last gradient is that at 1, and the context of its next step."""
    context = make_context(dataclasses.replace(hyper, estimator="memory"), toy, 0.4, sampling="fixed", round=2, **more)
    state = ALGORITHMS[name].init(context)
    state.variables.update({"w": start.clone(), "x": X.clone()})
    state.memory["G"].copy_(toy.gradients(torch.ones_like(start))[1:])
    return state, context


def test_fednest_under_memory_by_hand(toy, start):
    """Products have nothing worth keeping: the series takes normalised coefficients over its factor's own clients. The
    inner products of absent clients come from the remembered gradients, those of active ones are fresh."""
    hyper = FedNest(**PLAIN, eta_h=0.03, inner_steps=1, series_products=2, active_weight_floor=0.3)
    state, context = remembering("fednest", hyper, toy, start, inner=2)
    old, new = state.memory["G"].clone(), toy.gradients(start)
    term = total = new[0]
    for q in (1, 2):
        active, c = context.active(q), torch.zeros_like(X)
        c[active] = X[active] / max(float(X[active].sum()), 0.3)
        term = term - 0.03 * toy.hessian(start, c) @ term
        total = total + term
    answers = old.clone()
    answers[context.active()] = new[1:][context.active()]
    step = ALGORITHMS["fednest"].step(state, context)
    torch.testing.assert_close(step.directions["x"], -answers @ (0.03 * total))
    assert torch.equal(state.memory["G"], old)  # what is sent back is a number, no gradient


def prepared(name, hyper, toy, start, estimator, **more):
    """A state at (start, X) in which each client's last gradient, if it is kept, is that at 1; and the context of its
    next step."""
    if estimator == "memory":
        return remembering(name, hyper, toy, start, **more)
    context = make_context(dataclasses.replace(hyper, estimator=estimator), toy, 0.4, sampling="fixed", round=2, **more)
    state = ALGORITHMS[name].init(context)
    state.variables.update({"w": start.clone(), "x": X.clone()})
    assert not state.memory
    return state, context


def present(estimator, active):
    """c over all five clients, 0 for the absent, two being active: (5/2) x_i, or x_i over their sum, 0.3 at least."""
    c = torch.zeros_like(X)
    c[active] = X[active] * (5 / 2 if estimator == "paper" else 1 / max(float(X[active].sum()), 0.3))
    return c


def answered(estimator, state, toy, start, active):
    """g_i of all clients, as it counts in an inner product: (5/2) g_i of the active ones and 0, or each one's last."""
    fresh = toy.gradients(start)[1:]
    if estimator == "memory":
        G = state.memory["G"].clone()
        G[active] = fresh[active]
        return G
    G = torch.zeros_like(fresh)
    G[active] = 5 / 2 * fresh[active]
    return G


@pytest.mark.parametrize("estimator", ["paper", "normalised", "memory"])
def test_the_exact_gradient_of_two_of_five_clients_by_hand(toy, start, estimator):
    """v = (sum_i c_i Hess f_i)^(-1) grad f_0 over the Hessian's own clients, then -v^T g_i over the last exchange's."""
    hyper = ExactGradient(**PLAIN, inner_steps=1, active_weight_floor=0.3)
    state, context = prepared("exact_gradient", hyper, toy, start, estimator, inner=2)
    measured, active = context.active(1), context.active()
    assert measured.tolist() != active.tolist()
    v = torch.linalg.solve(toy.hessian(start, present(estimator, measured)), toy.gradients(start)[0])
    expected = -answered(estimator, state, toy, start, active) @ v
    torch.testing.assert_close(ALGORITHMS["exact_gradient"].step(state, context).directions["x"], expected)


@pytest.mark.parametrize("estimator", ["paper", "normalised", "memory"])
def test_fednest_of_two_of_five_clients_by_hand(toy, start, estimator):
    """v = eta_h (g_0 + (I - eta_h H_1) g_0) with the factor's own clients, then -v^T g_i over the last exchange's."""
    hyper = FedNest(**PLAIN, eta_h=0.03, inner_steps=1, series_products=1, active_weight_floor=0.3)
    state, context = prepared("fednest", hyper, toy, start, estimator, inner=2)
    g_0, H = toy.gradients(start)[0], toy.hessian(start, present(estimator, context.active(1)))
    expected = -answered(estimator, state, toy, start, context.active()) @ (0.03 * (2 * g_0 - 0.03 * H @ g_0))
    torch.testing.assert_close(ALGORITHMS["fednest"].step(state, context).directions["x"], expected)


def test_rfho_reverse_under_memory_by_hand(toy, start):
    """K = 2: on the way back active clients of a step answer with their gradient at that step's point, absent ones with
    their newest; the product of step 2 takes normalised coefficients."""
    hyper, sizes = Rfho(**PLAIN, inner_steps=2, active_weight_floor=0.3), {"w": 0.03}
    state, context = remembering("rfho", hyper, toy, start, step_sizes=sizes)
    G, points, w = state.memory["G"].clone(), [], start
    for k in (1, 2):
        points.append(w)
        active = context.at(k).active()
        G[active] = toy.gradients(w)[1:][active]
        direction = ALGORITHMS["rfho"].step(state, context.at(k)).directions["w"]
        torch.testing.assert_close(direction, X @ G)
        w = state.variables["w"] = w - 0.03 * direction
    a, g_x = toy.gradients(w)[0], torch.zeros_like(X)
    for k in (2, 1):
        active, c, answers = context.at(k).active(), torch.zeros_like(X), G.clone()
        answers[active] = toy.gradients(points[k - 1])[1:][active]
        g_x = g_x - 0.03 * answers @ a
        c[active] = X[active] / max(float(X[active].sum()), 0.3)
        a = a - 0.03 * toy.hessian(points[k - 1], c) @ a
    torch.testing.assert_close(ALGORITHMS["rfho"].step(state, context.at(3)).directions["x"], g_x)


def test_sustain_under_memory_remembers_the_new_point(toy, start):
    """Active clients answer at both points, absent ones with one remembered gradient; sums have their point's x."""
    hyper = Sustain(**PLAIN, eta_h=0.03, series_products=1, storm_weight=0.25)
    state, context = remembering("sustain", hyper, toy, start)
    old_w, old_x = start + 0.1, X.flip(0)
    state.memory["previous_w"].copy_(old_w)
    state.memory["previous_x"].copy_(old_x)
    state.memory["momentum_w"].fill_(1.0)
    state.memory["momentum_x"].fill_(0.5)
    G, active = state.memory["G"].clone(), context.active()
    behind, ahead = G.clone(), G.clone()
    behind[active], ahead[active] = (toy.gradients(w)[1:][active] for w in (old_w, start))
    step = ALGORITHMS["sustain"].step(state, context)
    expected = X @ ahead + 0.75 * (torch.ones_like(start) - old_x @ behind)
    torch.testing.assert_close(step.directions["w"], expected)

    def inverse_product(w, x):
        factor, c, g_0 = context.active(1), torch.zeros_like(x), toy.gradients(w)[0]
        c[factor] = x[factor] / max(float(x[factor].sum()), hyper.active_weight_floor)
        return 0.03 * (2 * g_0 - 0.03 * toy.hessian(w, c) @ g_0)

    expected = -ahead @ inverse_product(start, X) + 0.75 * (0.5 + behind @ inverse_product(old_w, old_x))
    torch.testing.assert_close(step.directions["x"], expected)
    torch.testing.assert_close(state.memory["G"], ahead)


def test_agnostic_learning_under_memory_by_hand(toy, start):
    """x ascends the last loss that each client has reported."""
    state, context = remembering("afl", Afl(**PLAIN), toy, start)
    last = torch.arange(5.0, dtype=torch.float64)
    state.memory["losses"].copy_(last)
    active = context.active()
    step = ALGORITHMS["afl"].step(state, context)
    last[active] = toy.losses(start, (active,))
    torch.testing.assert_close(step.directions["x"], -last)
    torch.testing.assert_close(state.memory["losses"], last)
    assert len(active) == 2


def test_the_lead_method_remembers_two_vectors_per_client(toy):
    """N d floats fit and 2 N d do not: then it is `normalised`, and average still remembers its one."""
    room = 1.5 * 5 * toy.dimension * 8 / 2**20
    for name, hyper, remembers in (("primal_dual", PrimalDual(), False), ("average", Average(), True)):
        context = make_context(dataclasses.replace(hyper, memory_limit_mb=room), toy, 0.5)
        assert ("G" in ALGORITHMS[name].init(context).memory) == remembers


def test_the_initial_dual_is_projected(toy):
    context = make_context(PrimalDual(dual_init="gradient", dual_radius=0.1), toy)
    lam, g_0 = ALGORITHMS["primal_dual"].init(context).variables["lambda"], toy.gradients(toy.initial(0))[0]
    torch.testing.assert_close(lam, -0.1 * g_0 / g_0.norm())


@pytest.mark.parametrize("estimator", ["paper", "normalised", "memory"])
def test_gradients_and_products_of_the_lead_method_have_minibatches_of_their_own(toy, start, estimator):
    """By the minibatches' own noise, e of B and E of B': g_w = g_0 + e_0 + sum_i c_i ((H_i + E_i) lambda + Gamma (g_i +
    e_i)), g_lambda = sum_i c_i (g_i + e_i)."""
    noisy = dataclasses.replace(toy, noise=0.5)
    hyper = PrimalDual(**PRINTED, gamma=2.0, clip_norm=0.0, estimator=estimator)
    context, lam = make_context(hyper, noisy, 0.4, sampling="fixed"), start.flip(0)
    state = ALGORITHMS["primal_dual"].init(context)
    state.variables.update({"w": start, "lambda": lam, "x": X})
    active, c = context.active(), torch.zeros_like(X)
    scale = {
        "paper": 5 / 2,
        "normalised": 1 / max(float(X[active].sum()), 0.3),
        "memory": 1.0,
    }  # no client is remembered
    c[active] = scale[estimator] * X[active]
    (_, e, _), (_, _, E) = (context.batch(purpose, active, 1) for purpose in ("gradient", "product"))
    sum_g = c[active] @ (toy.gradients(start)[1:][active] + e)
    sum_h = toy.hessian(start, c) @ lam + torch.einsum("i,ikl,l->k", c[active], E, lam)
    directions = ALGORITHMS["primal_dual"].step(state, context).directions
    torch.testing.assert_close(
        directions["w"], toy.gradients(start)[0] + context.validation()[1][0] + sum_h + 2.0 * sum_g
    )
    torch.testing.assert_close(directions["lambda"], -sum_g)


@pytest.mark.parametrize("batch", ["gradient", "product", "both"])
@pytest.mark.parametrize("estimator", ["paper", "normalised", "memory"])
def test_the_lead_methods_hypergradient_counts_the_active_for_all(toy, start, estimator, batch):
    """lambda^T g_i on B, on B' or the mean of both: N/n-fold for the active clients and 0 for the others; under memory
    each client's last answer on B, once."""
    noisy = dataclasses.replace(toy, noise=0.5)
    hyper = PrimalDual(**PRINTED, estimator=estimator, hypergradient_batch=batch)
    context, lam = make_context(hyper, noisy, 0.4, sampling="fixed"), start.flip(0)
    state = ALGORITHMS["primal_dual"].init(context)
    state.variables.update({"w": start, "lambda": lam, "x": X})
    active = context.active()
    batches = (context.batch(purpose, active, 1) for purpose in ("gradient", "product"))
    of_B, of_product = ((toy.gradients(start)[1:][active] + e) @ lam for _, e, _ in batches)
    expected, remembered = torch.zeros_like(X), estimator == "memory"
    if remembered:
        state.memory["G"][:] = 1.0
        expected[:] = lam.sum()
    fresh = {"gradient": of_B, "product": of_product, "both": (of_B + of_product) / 2}[batch]
    expected[active] = of_B if remembered else 5 / 2 * fresh
    torch.testing.assert_close(ALGORITHMS["primal_dual"].step(state, context).directions["x"], expected)
    assert (of_B - of_product).abs().min() > 1e-3


@pytest.mark.parametrize("floor", [0.3, 0.9])
def test_the_floor_binds_only_above_what_equal_weights_hold(floor):
    """Two of five are active, n/N = 0.4: weights of 0.1 and 0.05 are divided by min(floor, 0.4)."""
    x, active = torch.tensor([0.1, 0.05, 0.5, 0.2, 0.15], dtype=torch.float64), torch.tensor([0, 1])
    c = estimators.coefficients("normalised", x, active, floor)
    torch.testing.assert_close(c, x[:2] / min(floor, 0.4))
    whole = estimators.coefficients("normalised", x, torch.tensor([2, 3]), floor)
    torch.testing.assert_close(whole, x[2:4] / 0.7)
