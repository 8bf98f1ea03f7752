"""Learned client weights with many local steps: where the rule rests, in closed form (float64)."""

import dataclasses
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from pipeline import projections
from pipeline.methods import ALGORITHMS
from pipeline.methods.consensus.common.weights import LearnedWeights
from pipeline.oracles import FusedLocal, LoopLocal
from tests.core.consensus.quadratics import Closed, Quadratics, close, context_for, options, run, theta


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


def settings(K, dual="printed"):
    sizes = {1: (0.2, 0.3, 0.1), 4: (0.3, 0.5, 0.5 if dual == "printed" else 0.1)}[K]
    weights = LearnedWeights("learned", dual, "plain", *sizes, dual_radius=1e9, dual_damping=0.0)
    return {"eta": 0.3, "local_steps": K, "weights": weights}


@pytest.mark.parametrize("dual", ["residual", "printed"])
@pytest.mark.parametrize("K", [1, 4])
@pytest.mark.slow
def test_where_it_rests(problem, K, dual):
    """The clients' changes cancel, H lambda = -grad f_0(w), and x wants to move no more; better than equal weights."""
    rounds = 600 if dual == "printed" else {1: 1000, 4: 1800}[K]
    state = run("fedavg", problem, rounds, oracle=ByHand, **settings(K, dual))
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
    equal = run("fedavg", problem, 600, eta=0.3, local_steps=K, weights=LearnedWeights(mode="plain"))
    assert problem.validation_loss(w, ()) < 0.5 * problem.validation_loss(theta(equal), ())


@pytest.mark.parametrize("dual", ["residual", "printed"])
@pytest.mark.parametrize("eta_g", [1.0, 0.5])
@pytest.mark.slow
def test_where_it_rests_with_damping(problem, eta_g, dual):
    """G = rho lambda and lambda = -(H + Gamma rho)^(-1) grad f_0(w), Gamma = eta_g eta K / eta_w; the weights held."""
    weights = LearnedWeights("learned", dual, "plain", 0.2, 0.3, 1e-12, dual_radius=1e9, dual_damping=0.4)
    more = {"eta": 0.1, "local_steps": 4, "eta_g": eta_g, "weights": weights}
    state = run("fedavg", problem, 800, oracle=ByHand, **more)
    w, lam, x = (state.variables[name] for name in ("w", "lambda", "x"))
    optima = torch.linalg.solve(problem.A, problem.b)
    q = torch.linalg.matrix_power(torch.eye(3, dtype=torch.float64) - 0.1 * problem.A, 4)
    models = optima + torch.einsum("ikl,il->ik", q, w - optima)
    close(x @ (w - models) / (0.1 * 4), 0.4 * lam)
    H = torch.einsum("i,ikl->kl", x, problem.A) + eta_g * 0.1 * 4 / 0.2 * 0.4 * torch.eye(3, dtype=torch.float64)
    close(lam, torch.linalg.solve(H, problem.target - w))
    assert lam.norm() > 0.05


@pytest.mark.parametrize("rho", [0.0, 0.4])
@pytest.mark.slow
def test_the_residual_dual_rests_where_averaging_does_with_different_numbers_of_steps(problem, rho):
    """One epoch of batch 1: 1, 2, 3 and 4 steps, 2.5 on average, of the whole f_i. At rest, the weights
    held,  sum_i x_i (w - theta_i) / (2.5 eta) = rho lambda  and  (H + Gamma rho) lambda = -grad f_0  with
    Gamma = eta_g 2.5 eta / eta_w."""
    counts = torch.arange(1, 5)
    unequal = dataclasses.replace(problem, counts=counts, offsets=torch.zeros(4, 4, 3, dtype=torch.float64))
    weights = LearnedWeights("learned", "residual", "plain", 0.2, 0.3, 1e-12, dual_radius=1e9, dual_damping=rho)
    state = run("fedavg", unequal, 800, oracle=ByHand, eta=0.1, local_epochs=1, eta_g=0.5, weights=weights)
    w, lam, x = (state.variables[name] for name in ("w", "lambda", "x"))
    eye = torch.eye(3, dtype=torch.float64)
    optima = torch.linalg.solve(problem.A, problem.b)
    q = torch.stack([torch.linalg.matrix_power(eye - 0.1 * A, k) for A, k in zip(problem.A, (1, 2, 3, 4), strict=True)])
    models = optima + torch.einsum("ikl,il->ik", q, w - optima)
    close(x @ (w - models) / (2.5 * 0.1), rho * lam)
    H = torch.einsum("i,ikl->kl", x, problem.A)
    close((H + 0.5 * 2.5 * 0.1 / 0.2 * rho * eye) @ lam, problem.target - w)
    assert lam.norm() > 0.05


@pytest.mark.parametrize("dual", ["residual", "printed"])
def test_the_printed_dual_carries_the_path_and_the_residual_dual_does_not(problem, dual):
    """Five rounds, weights held, R = sum_t r_t: the residual dual is -eta_lambda R, the printed one is
    -(eta_lambda / Gamma) R - kappa (w - w_1)  with Gamma = eta_g eta K / eta_w = 0.3 and
    kappa = eta_lambda / (eta_w Gamma) = 0.5."""
    weights = LearnedWeights("learned", dual, "plain", 0.2, 0.03, 1e-12, dual_radius=1e9, dual_damping=0.0)
    start, H = torch.ones(3, dtype=torch.float64), problem.A.mean(0)
    seen = [{"w": start, "lambda": torch.zeros_like(start)}]
    moved = dataclasses.replace(problem, start=start)
    more = {"eta": 0.03, "local_steps": 4, "eta_g": 0.5, "weights": weights}
    run("fedavg", moved, 5, oracle=ByHand, each=lambda state: seen.append(dict(state.variables)), **more)
    R = sum(v["w"] - problem.target + H @ v["lambda"] for v in seen[:-1])
    w, lam = seen[-1]["w"], seen[-1]["lambda"]
    path = 0.5 * (w - start)
    close(lam, -0.03 * R if dual == "residual" else -0.1 * R - path)
    assert path.norm() > 0.1


@pytest.mark.parametrize("dual", ["residual", "printed"])
def test_fused_loop_and_hand_agree(problem, dual):
    a, b, c = (run("fedavg", problem, 6, oracle=o, **settings(4, dual)) for o in (FusedLocal, LoopLocal, ByHand))
    for other in (b, c):
        for name, value in a.variables.items():
            close(other.variables[name], value, 1e-11)


@pytest.mark.parametrize("mode", ["plain", "oracle"])
def test_references_may_take_the_server_s_steps_too(problem, mode):
    """w <- w + eta_g mean_i (theta_i - w) - eta_w (w - target), at no cost beside averaging's."""
    own = LearnedWeights(mode, server_steps=True, eta_w=0.2)
    alone = LearnedWeights(mode)
    steps = {}
    for weights in (own, alone):
        context = context_for(
            problem, options("fedavg", eta=0.2, local_steps=4, eta_g=0.5, weights=weights), oracle=FusedLocal
        )
        state = ALGORITHMS["fedavg"].init(context)
        state.variables["w"] = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64)
        steps[weights.server_steps] = ALGORITHMS["fedavg"].step(state, context)
    difference = 0.5 * (steps[True].directions["w"] - steps[False].directions["w"])
    close(difference, 0.2 * (torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64) - problem.target))
    assert set(steps[True].directions) == {"w"}
    assert steps[True].cost == steps[False].cost
    reports = [step.report({"w": state.variables["w"]})["server_state_bytes"] for step in steps.values()]
    assert reports[0] == reports[1]


def test_the_references_have_fixed_weights(problem):
    for mode in ("plain", "oracle"):
        hyper = options("fedavg", weights=LearnedWeights(mode=mode))
        context = context_for(problem, hyper, oracle=FusedLocal)
        state = ALGORITHMS["fedavg"].init(context)
        step = ALGORITHMS["fedavg"].step(state, context)
        assert set(step.directions) == {"w"}
        assert not state.memory
        assert set(ALGORITHMS["fedavg"].step_sizes(hyper)) == {"w"}
        assert step.cost.hvps == 0


@pytest.mark.parametrize("weight_step", ["scaled", "plain"])
@pytest.mark.parametrize("dual", ["residual", "printed"])
@pytest.mark.parametrize("active", [[0, 2, 3], [1]])
def test_one_round_term_by_term(problem, active, dual, weight_step):
    """Round 4 of four local steps, clients absent, damping, a decayed rate and a server's step of 1/2: the three
    directions and the cost as the module's docstring has them. x_2 alone is below 1/4, what equal weights would hold:
    the clients' part of the step is 0.05 / 0.25 of a whole one. Earlier rounds have left a spread of 0.7; half stays.
    Gamma = 0.5 * 0.1 * 4 / 0.2 = 1; at eta_lambda = 0.01 the dual's step needs no shortening."""
    rates = {"eta_w": 0.2, "eta_lambda": 0.01, "eta_x": 0.1}
    learned = LearnedWeights("learned", dual, weight_step, **rates, dual_damping=0.4, active_weight_floor=0.3)
    hyper = options("fedavg", eta=0.8, eta_decay=0.5, local_steps=4, eta_g=0.5, weights=learned)
    context = dataclasses.replace(context_for(problem, hyper, lambda t: active, ByHand), round=4)
    state = ALGORITHMS["fedavg"].init(context)
    w, lam = torch.tensor([[0.5, -1.0, 2.0], [1.0, 0.3, -0.2]], dtype=torch.float64)
    x = torch.tensor([0.35, 0.05, 0.2, 0.4], dtype=torch.float64)
    state.variables.update({"w": w, "lambda": lam, "x": x})
    if weight_step == "scaled":
        state.memory["spread"] += 0.7

    c = x[active] / max(float(x[active].sum()), min(0.3, len(active) / 4))
    A, b = problem.A[active], problem.b[active]
    models = w.expand(len(active), -1)
    for _ in range(4):
        models = models - 0.1 * (torch.einsum("ikl,il->ik", A, models) - b)
    step = ALGORITHMS["fedavg"].step(state, context)
    G = (w - models) / (0.1 * 4)
    inner = torch.zeros(4, dtype=torch.float64)
    inner[active] = 4 / len(active) * (torch.einsum("ikl,l->ik", A, w) - b) @ lam
    own = w - problem.target + torch.einsum("i,ikl,l->k", c, A, lam)
    close(0.5 * step.directions["w"], 0.5 * c @ (w - models) + 0.2 * own)  # eta_g is the clients' part alone
    close(step.directions["lambda"], 0.4 * lam + own if dual == "residual" else 0.4 * lam - c @ G)
    deviation = inner - inner.sum() / 4
    spread = 0.35 + 0.5 * deviation @ deviation / 4
    close(step.directions["x"], deviation / (4 * (4 * spread).sqrt()) if weight_step == "scaled" else inner)
    if weight_step == "scaled":
        close(state.memory["spread"], spread)
    n, d = len(active), 3
    assert dataclasses.astuple(step.cost) == (1, n * (2 * d + 1), n * 2 * d, 4 * n, n)
    report = step.report({"w": w})
    assert (int(report["server_state_bytes"]), int(report["client_state_bytes"])) == (8 * 2 * d, 0)  # w and lambda


@pytest.mark.parametrize("active", [[0, 1, 2], [1, 2]])
def test_gamma_counts_the_active_clients_mean_number_of_steps(active):
    """One epoch of batch 1 on linear losses, H = 0: 1, 2 and 3 steps, on average 2 of all and 2.5 of the last two. The
    dual's direction is w - target + Gamma rho lambda, Gamma = 0.5 * 0.2 K / 0.25."""
    zero = torch.zeros(3, 3, 2, dtype=torch.float64)
    target = torch.tensor([1.0, -2.0], dtype=torch.float64)
    counts = torch.tensor([1, 2, 3])
    linear = WeightedQuadratics(zero[:, :2], zero[:, 0] + 1, counts=counts, offsets=zero, target=target)
    learned = LearnedWeights("learned", eta_w=0.25, dual_damping=0.3)
    hyper = options("fedavg", eta=0.2, eta_g=0.5, local_epochs=1, weights=learned)
    context = context_for(linear, hyper, lambda t: active, oracle=ByHand)
    state = ALGORITHMS["fedavg"].init(context)
    lam = torch.tensor([3.0, 5.0], dtype=torch.float64)
    state.variables["lambda"] = lam
    gamma = {3: 0.8, 2: 1.0}[len(active)]
    close(ALGORITHMS["fedavg"].step(state, context).directions["lambda"], gamma * 0.3 * lam - target)


@pytest.mark.parametrize(
    ("curvature", "eta_lambda", "expected"),
    [
        (4.0, 0.1, [11.0, 14.0]),  # q = 0.4: r = -target + 4 lambda as it is
        (4.0, 0.5, [2.75, 3.5]),  # q = 2, a quarter of r to keep 1/2
        (-2.0, 0.1, [5.0, 6.0]),  # along lambda the curvature is +2
        (-2.0, 0.5, [2.5, 3.0]),  # and q = 1, so half of it
    ],
)
def test_the_dual_steps_on_a_positive_curvature_and_within_its_limit(curvature, eta_lambda, expected):
    """Two clients with f_i = curvature ||w||^2 / 2, w = 0, lambda = (3, 4) and target = (1, 2)."""
    A = curvature * torch.eye(2, dtype=torch.float64).expand(2, 2, 2)
    target = torch.tensor([1.0, 2.0], dtype=torch.float64)
    bent = WeightedQuadratics(A, torch.zeros(2, 2, dtype=torch.float64), target=target)
    weights = LearnedWeights("learned", eta_lambda=eta_lambda, dual_damping=0.0)
    context = context_for(bent, options("fedavg", weights=weights), oracle=ByHand)
    state = ALGORITHMS["fedavg"].init(context)
    state.variables["lambda"] = torch.tensor([3.0, 4.0], dtype=torch.float64)
    found = ALGORITHMS["fedavg"].step(state, context).directions
    close(found["lambda"], torch.tensor(expected, dtype=torch.float64))
    own = 0.1 * (curvature * state.variables["lambda"] - target)  # the model's step is not limited
    close(found["w"], own)


@pytest.mark.parametrize("name", ["fedavg", "fedprox", "fedcm", "fedsam"])
def test_the_scaled_step_of_the_weights_has_no_units(problem, name):
    """Two rounds from a dual that is not 0; with a thousandfold lambda, whose own step is then too small to count, the
    weights are the same, and not where they began."""
    found = []
    for scale in (1.0, 1000.0):
        weights = LearnedWeights("learned", eta_w=1e-12, eta_lambda=1e-12, eta_x=0.1, dual_radius=1e9)
        context = context_for(problem, options(name, eta=0.1, weights=weights), oracle=ByHand)
        state = ALGORITHMS[name].init(context)
        state.variables["lambda"] = scale * torch.tensor([0.3, -0.1, 0.2], dtype=torch.float64)
        found.append(run(name, problem, 2, state=state, oracle=ByHand, eta=0.1, weights=weights).variables["x"])
    close(found[0], found[1], 1e-9)
    assert (found[0] - 0.25).abs().max() > 0.01


@pytest.mark.parametrize("active", [[2], [0, 1], [0, 1, 2, 3]])
def test_plain_weights_are_federated_averaging_whoever_is_active(problem, active):
    base = Quadratics(problem.A, problem.b)
    plain = run("fedavg", problem, 5, lambda t: active, weights=LearnedWeights(mode="plain"), eta=0.2)
    close(theta(plain), theta(run("fedavg", base, 5, lambda t: active, eta=0.2)))


@pytest.mark.parametrize("first", [0.5, 0.1])
def test_fixed_weights_of_absent_clients_and_no_floor(problem, first):
    """The oracle trusts the first two clients. With the other two active nothing moves; with the first and the third
    the first makes a whole step, be its weight below the floor of learned ones or not."""

    @dataclass(frozen=True)
    class Known(WeightedQuadratics):
        @property
        def oracle_weights(self):
            return torch.tensor([first, 1 - first, 0.0, 0.0], dtype=torch.float64)

    known = Known(problem.A, problem.b, start=torch.ones(3, dtype=torch.float64), target=problem.target)
    oracle = LearnedWeights(mode="oracle", active_weight_floor=0.3)
    close(theta(run("fedavg", known, 1, lambda t: [2, 3], weights=oracle)), known.start)
    alone = Quadratics(problem.A[:1], problem.b[:1], start=known.start)
    close(theta(run("fedavg", known, 1, lambda t: [0, 2], weights=oracle)), theta(run("fedavg", alone, 1)))


def test_plain_weights_may_be_by_samples():
    """One epoch of batch 1 on linear losses: client i moves by -eta times its samples' sum, and counts n_i-fold."""
    g = torch.Generator().manual_seed(4)
    counts = torch.tensor([1, 2, 3])
    offsets = torch.randn(3, 3, 2, generator=g, dtype=torch.float64) * (torch.arange(3) < counts[:, None])[..., None]
    zero = torch.zeros(3, 2, 2, dtype=torch.float64)
    linear = WeightedQuadratics(zero, zero[:, 0], counts=counts, offsets=offsets, target=zero[0, 0])
    more = {"eta": 0.2, "local_epochs": 1, "weights": LearnedWeights(mode="plain")}
    state = run("fedavg", linear, 1, federation={"aggregation": "samples"}, **more)
    close(theta(state), -0.2 * (counts[:, None] * offsets.sum(1)).sum(0) / 6)


def test_momentum_is_the_weighted_mean_of_the_pseudo_gradients(problem):
    """FedCM, K = 1 and full participation: m = sum_i x_i grad f_i(w) after the first round, where m = 0 and alpha g is
    the step: m = alpha sum_i x_i g_i."""
    hyper = options("fedcm", eta=0.2, local_steps=1, alpha=0.3, weights=settings(1)["weights"])
    context = context_for(problem, hyper, oracle=ByHand)
    state = ALGORITHMS["fedcm"].init(context)
    x = torch.tensor([0.35, 0.05, 0.2, 0.4], dtype=torch.float64)
    state.variables["x"] = x
    ALGORITHMS["fedcm"].step(state, context)
    close(state.memory["momentum"], 0.3 * x @ problem.gradients(state.variables["w"]))


def test_each_clients_change_is_divided_by_its_own_number_of_steps():
    """One epoch of batch 1: 1, 2 and 3 steps of linear losses, so that G_i is the mean of the client's own gradients,
    offsets included: lambda's direction is -sum_i x_i mean_j (offset_ij - b_i)."""
    g = torch.Generator().manual_seed(4)
    counts = torch.tensor([1, 2, 3])
    offsets = torch.randn(3, 3, 2, generator=g, dtype=torch.float64) * (torch.arange(3) < counts[:, None])[..., None]
    b = torch.randn(3, 2, generator=g, dtype=torch.float64)
    zero = torch.zeros(3, 2, 2, dtype=torch.float64)
    linear = WeightedQuadratics(zero, b, counts=counts, offsets=offsets, target=b[0])
    learned = LearnedWeights("learned", "printed", "plain", dual_damping=0.0)
    hyper = options("fedavg", eta=0.2, local_epochs=1, weights=learned)
    context = context_for(linear, hyper, oracle=ByHand)
    state = ALGORITHMS["fedavg"].init(context)
    x = torch.tensor([0.5, 0.2, 0.3], dtype=torch.float64)
    state.variables["x"] = x
    step = ALGORITHMS["fedavg"].step(state, context)
    means = offsets.sum(1) / counts[:, None] - b
    close(step.directions["lambda"], -x @ means)


def test_dual_and_weights_stay_on_their_sets(problem):
    seen = []
    weights = LearnedWeights("learned", "printed", "plain", 0.2, 0.5, 5.0, dual_radius=0.05, dual_damping=0.0)
    more = {"eta": 0.3, "local_steps": 4, "weights": weights}
    run("fedavg", problem, 20, oracle=ByHand, each=lambda state: seen.append(dict(state.variables)), **more)
    norms = torch.stack([variables["lambda"].norm() for variables in seen])
    X = torch.stack([variables["x"] for variables in seen])
    assert 0.05 - 1e-12 < norms.max() <= 0.05 + 1e-12
    close(X.sum(1), torch.ones(20, dtype=torch.float64))
    assert (X >= 0).all()
    assert (X[-1] == 0).any()


def test_the_product_has_a_minibatch_of_its_own(problem, monkeypatch):
    """Neither a local step's nor another round's."""
    streams, original = [], WeightedQuadratics.draw

    def recorded(self, stream, clients, size):
        streams.append(stream)
        return original(self, stream, clients, size)

    monkeypatch.setattr(WeightedQuadratics, "draw", recorded)
    run("fedavg", problem, 3, oracle=ByHand, **settings(4))
    assert len(streams) == len(set(streams)) == 3 * (4 + 1)
