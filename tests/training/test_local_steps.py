"""Methods with local steps through the training loop: defaults that learn, records, resume, server optimizers."""

import dataclasses
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from pipeline.config.sections import Train
from pipeline.config.spec import override
from pipeline.data.partition import make_partition
from pipeline.data.schemes.iid import Iid
from pipeline.data.schemes.quantity import Quantity
from pipeline.methods import ALGORITHMS
from pipeline.methods.client_weighting.common import steps
from pipeline.methods.client_weighting.common.weighting_context import WeightingContext
from pipeline.methods.consensus.common import local_training
from pipeline.methods.consensus.common.local_context import LocalContext
from pipeline.methods.registry import FAMILIES
from pipeline.oracles import FusedLocal, LoopLocal
from pipeline.params import FederationSettings, Model, Params, PartitionSettings
from pipeline.params.resolve import resolve
from pipeline.problems.client_weighting import ClientWeighting
from pipeline.problems.consensus import Consensus
from pipeline.training.run import build_module
from pipeline.training.setup import build_problem
from tests.training.test_training import check_resume, fit

FAMILY = [name for name, algorithm in ALGORITHMS.items() if algorithm.context is LocalContext]
LEARNING = list(FAMILIES["averaging"])
every_method = pytest.mark.parametrize("name", FAMILY)
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def mixed(digits):
    """Ten clients with equal random parts."""
    return make_partition(digits.train_labels, "digits", 10, resolve(Params(partition=IID)).partition, seed=0)


IID = PartitionSettings(scheme="iid", iid=Iid(10))


def of(params, name, **settings):
    """The method in use, with some of its settings changed."""
    whole = name == "fedpd"
    return override(
        params,
        {
            "algorithm": name,
            "problem": "consensus",
            **({"federation.participation": 1.0} if whole else {}),
            **{f"algorithms.{name}.{key}": value for key, value in settings.items()},
        },
    )


@every_method
def test_every_method_learns_digits_with_its_defaults(digits, mixed, tmp_path, name):
    """Twelve rounds on a small network: far above the 10 % of guessing, and finite."""
    params = resolve(
        Params(
            algorithm=name,
            model=Model("mlp", {"hidden": [32]}),
            train=Train(rounds=12, eval_every=12, accelerator="cpu"),
        )
    )
    module, rows = fit(params, digits, mixed, tmp_path)
    assert isinstance(module.context.problem, Consensus)
    assert float(rows[-1]["test_accuracy"]) > 0.4


@every_method
def test_the_record_holds_every_measure_of_every_round(params, digits, partition, tmp_path, name):
    module, rows = fit(of(params, name), digits, partition, tmp_path)
    for measure in ALGORITHMS[name].measures:
        assert rows[0][measure] == ""
        assert all(math.isfinite(float(row[measure])) for row in rows[1:])
    assert all(float(row["primal_residual"]) > 0 for row in rows[1:])
    evaluated = [row for row in rows if row["test_accuracy"]]
    two_models = "w_bar" in module.state.variables
    models = ("average_accuracy", "shifted_accuracy")
    assert all(bool(row[model]) == two_models for row in evaluated for model in models)
    if two_models:  # what is tested is what the method's paper returns: A-FedPD's mean model, the others' theta
        served = models[name not in ("a_fedpd", "a_fedpd_sam")]
        assert all(row["test_accuracy"] == row[served] for row in evaluated)
    assert rows[-1]["client_weight_0"] == ""  # no weights here
    d, bytes_each = module.context.problem.dimension, 4
    assert float(rows[-1]["client_state_bytes"]) in (0, d * bytes_each)


@every_method
def test_every_method_resumes_bit_for_bit(params, digits, partition, tmp_path, name):
    params = replace(of(params, name), train=replace(params.train, rounds=6, eval_every=3, checkpoint_every=3))
    check_resume(params, digits, partition, tmp_path, stop=4)


@pytest.mark.parametrize("optimizer", ["momentum", "adam", "adagrad"])
def test_a_server_optimizer_resumes_bit_for_bit_with_local_epochs(params, digits, partition, tmp_path, optimizer):
    params = of(params, "fedcm", optimizer=optimizer, eta_g=0.01, local_epochs=1)
    params = replace(params, train=replace(params.train, rounds=6, eval_every=3, checkpoint_every=3))
    check_resume(params, digits, partition, tmp_path, stop=4)


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam", "adagrad"])
def test_server_optimizers_by_hand(double, digits, partition, tmp_path, optimizer):
    """The mean change of the clients is minus the gradient that the optimizer sees; no schedule."""
    params = of(double, "fedavg", optimizer=optimizer, eta_g=0.05, momentum=0.8)
    module, _ = fit(params, digits, partition, tmp_path)
    fresh = build_module(params, build_problem(params, digits, partition, CPU))
    state = ALGORITHMS["fedavg"].init(fresh.context)
    w = state.variables["w"]
    first, second = torch.zeros_like(w), torch.zeros_like(w)
    for t in range(1, params.train.rounds + 1):
        state.variables["w"] = w
        g = ALGORITHMS["fedavg"].step(state, dataclasses.replace(fresh.context, round=t)).directions["w"]
        if optimizer == "sgd":
            w = w - 0.05 * g
        elif optimizer == "momentum":
            first = 0.8 * first + g
            w = w - 0.05 * first
        elif optimizer == "adagrad":
            second = second + g**2
            w = w - 0.05 * g / (second.sqrt() + 1e-10)
        else:
            first, second = 0.9 * first + 0.1 * g, 0.999 * second + 0.001 * g**2
            w = w - 0.05 * (first / (1 - 0.9**t)) / ((second / (1 - 0.999**t)).sqrt() + 1e-8)
    torch.testing.assert_close(module.state.variables["w"], w, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("backend", [{"train.backend": "loop"}, {"clients_at_once": 2}, {"clients_at_once": 1}])
@pytest.mark.parametrize("name", ["fedavg", "a_fedpd_sam"])
def test_passes_of_any_size_and_the_loop_give_the_same_run(double, digits, partition, tmp_path, name, backend):
    """With local epochs, so that batches are short and clients finish at different times."""
    key, value = next(iter(backend.items()))
    base = replace(of(double, name, local_epochs=1), train=replace(double.train, rounds=2))
    base = override(base, {"federation.batch_size": 64})
    other = override(base, {key if "." in key else f"algorithms.{name}.{key}": value})
    (a, _), (b, _) = fit(base, digits, partition, tmp_path / "a"), fit(other, digits, partition, tmp_path / "b")
    for variable, value in a.state.variables.items():
        torch.testing.assert_close(b.state.variables[variable], value, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("network", ["linear", "mlp", "lenet5"])
def test_gradients_of_every_client_at_its_own_parameters(double, digits, partition, network):
    """Batched, in parts and one by one; with and without absent samples; against each other."""
    problem = build_problem(override(of(double, "fedavg"), {"model.name": network}), digits, partition, CPU)
    clients = torch.tensor([0, 4, 7])
    g = torch.Generator().manual_seed(0)
    W = problem.initial(0) + 0.02 * torch.randn(3, problem.dimension, generator=g, dtype=torch.float64)
    positions = torch.arange(6).expand(3, -1)
    present = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0], [1, 0, 0, 0, 0, 0]]).bool()
    for batch in (problem.draw(3, clients, 6), problem.take(3, clients, positions, present)):
        reference = LoopLocal(problem).gradients_each(W, batch)
        for at_once in (None, 1, 2, 3):
            found = FusedLocal(problem).gradients_each(W, batch, at_once)
            torch.testing.assert_close(found, reference, rtol=1e-9, atol=1e-12)
    alone = problem.take(3, clients[1:2], positions[1:2, :4])
    row = FusedLocal(problem).gradients_each(W[1:2], alone)
    torch.testing.assert_close(row, reference[1:2], rtol=1e-9, atol=1e-12)  # what is absent counts nothing


def test_memory_bounds_the_clients_of_a_pass(double, digits, partition, monkeypatch):
    """Three d-vectors and what autograd keeps: at least the images and logits of one client's batch."""
    problem = build_problem(of(double, "fedavg"), digits, partition, CPU)
    batch, W = problem.draw(1, torch.arange(5), 8), problem.initial(0).expand(5, -1)
    oracle = FusedLocal(problem)
    kept = oracle._kept(W[:1], problem.part(batch, slice(0, 1)))
    assert 8 * (784 + 10) * 8 <= kept < 4 * 8 * (784 + 10) * 8 + 8 * problem.dimension
    own = kept + 3 * 8 * problem.dimension
    monkeypatch.setattr("pipeline.oracles.local.LIMIT", 2 * own)
    assert FusedLocal(problem)._at_once(W, batch) == 2
    monkeypatch.setattr("pipeline.oracles.local.LIMIT", 1)
    assert FusedLocal(problem)._at_once(W, batch) == 1


def test_convolutions_go_one_by_one_on_a_cpu(double, digits, partition):
    answers = {}
    for name in ("linear", "mlp", "lenet5", "resnet18"):
        params = override(of(double, "fedavg"), {"model.name": name})
        answers[name] = build_problem(params, digits, partition, CPU).one_by_one
    assert answers == {"linear": False, "mlp": False, "lenet5": True, "resnet18": True}


def test_local_epochs_use_each_sample_once(digits):
    """Power-law sizes: as many gradients as batches of every active client, whatever the largest one needs."""
    settings = resolve(
        Params(
            algorithm="fedavg",
            model=Model("linear"),
            partition=PartitionSettings(scheme="quantity", quantity=Quantity(20, 1.0, 5)),
            federation=FederationSettings(batch_size=10, aggregation="samples"),
            train=Train(rounds=1, accelerator="cpu"),
        )
    )
    dealt = make_partition(digits.train_labels, "digits", 10, settings.partition, seed=0)
    params = override(settings, {"algorithms.fedavg.local_epochs": 2})
    module = build_module(params, build_problem(params, digits, dealt, CPU))
    seen = {i: [] for i in range(20)}
    problem, take = module.context.problem, module.context.problem.take

    class Spy(Consensus):
        def take(self, stream, clients, positions, present=None):
            there = torch.ones_like(positions) if present is None else present
            for i, row, counts in zip(clients.tolist(), positions, there, strict=True):
                seen[i] += row[counts.bool()].tolist()
            return take(stream, clients, positions, present)

    context = replace(module.context, oracle=FusedLocal(Spy(problem.model, problem.data)))
    step = ALGORITHMS["fedavg"].step(module.state, context)
    assert step.cost.gradients == 2 * sum(math.ceil(n / 10) for n in dealt.sizes)
    for i, n in enumerate(dealt.sizes):
        assert seen[i][:n] != seen[i][n:]  # shuffled anew
        assert sorted(seen[i][:n]) == sorted(seen[i][n:]) == list(range(n))


# ---------------------------------------------------------------------------------------------- learned client weights


def weighted(params, name, **settings):
    return override(of(params, name, **settings), {"problem": "client_weighting"})


def test_the_methods_that_learn_weights():
    assert LEARNING == ["fedavg", "fedprox", "fedcm", "fedsam"]


@pytest.mark.parametrize("name", LEARNING)
def test_learned_weights_are_recorded_and_resume_bit_for_bit(params, digits, partition, tmp_path, name):
    params = weighted(params, name)
    params = replace(params, train=replace(params.train, rounds=6, eval_every=3, checkpoint_every=3))
    module, rows = fit(params, digits, partition, tmp_path / "once")
    assert isinstance(module.context.problem, ClientWeighting)
    weights = np.array([[float(row[f"client_weight_{i}"]) for i in range(10)] for row in rows])
    np.testing.assert_allclose(weights.sum(1), 1, atol=1e-5)
    assert weights[0] == pytest.approx([0.1] * 10)
    assert np.abs(weights[-1] - 0.1).max() > 1e-3
    check_resume(params, digits, partition, tmp_path, stop=4)


@pytest.mark.parametrize("mode", ["plain", "oracle"])
def test_fixed_weights_as_references(double, digits, partition, tmp_path, mode):
    """plain: the run without weights. oracle: the weighted mean of the clients' models, nothing else."""
    name = "fedavg"
    params = override(weighted(double, name), {f"algorithms.{name}.weights.mode": mode})
    params = override(params, {"federation.participation": 1.0, "train.rounds": 3})
    module, rows = fit(params, digits, partition, tmp_path / "a")
    expected = torch.full((10,), 0.1) if mode == "plain" else torch.tensor(partition.oracle_weights()).float()
    torch.testing.assert_close(module.state.variables["x"].float(), expected)
    assert set(module.state.variables) == {"w", "x"}
    if mode == "plain":
        other, _ = fit(override(params, {"problem": "consensus"}), digits, partition, tmp_path / "b")
        torch.testing.assert_close(other.state.variables["w"], module.state.variables["w"], rtol=1e-12, atol=1e-12)
    else:
        assert rows[-1]["client_weight_5"] == "0"
        context, w = module.context, module.context.problem.initial(0)
        for t in (1, 2, 3):
            w = expected.double() @ local_training.train(replace(context, round=t), w, torch.arange(10)).models
        torch.testing.assert_close(module.state.variables["w"], w, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("participation", [1.0, 0.5])
@pytest.mark.parametrize(("dual", "weight_step"), [("residual", "scaled"), ("residual", "plain"), ("printed", "plain")])
def test_one_local_step_is_the_lead_method(double, digits, partition, participation, dual, weight_step):
    """K = 1, no decay, no clipping: the direction of w is that of primal_dual times eta_w, with Gamma = eta / eta_w and
    the same active clients; so are those of lambda and x. The model's curvature limit is too far to matter."""
    eta, eta_w = 0.2, 0.05
    base = override(double, {"federation.batch_size": 4})
    once = weighted(base, "fedavg", eta=eta, local_steps=1, weight_decay=0.0, clip_norm=0.0)
    own = {"eta_w": eta_w, "dual": dual, "weight_step": weight_step, "dual_damping": 0.02, "eta_lambda": 0.5}
    once = override(once, {f"algorithms.fedavg.weights.{name}": value for name, value in own.items()})
    base, once = (override(p, {"federation.participation": participation}) for p in (base, once))
    lead = override(
        base,
        {
            "algorithms.primal_dual.gamma": eta / eta_w,
            "algorithms.primal_dual.dual": dual,
            "algorithms.primal_dual.weight_step": weight_step,
            "algorithms.primal_dual.dual_damping": 0.02,
            "algorithms.primal_dual.eta_lambda": 0.5,
            "algorithms.primal_dual.curvature_limit": 1e9,
            "algorithms.primal_dual.clip_norm": 0.0,
            "algorithms.primal_dual.estimator": "normalised",
            "algorithms.primal_dual.hypergradient_batch": "product",
        },
    )
    one, other = (build_module(p, build_problem(p, digits, partition, CPU)) for p in (once, lead))
    assert other.context.__class__ is WeightingContext
    g = torch.Generator().manual_seed(3)
    state = one.state
    state.variables["lambda"].copy_(0.1 * torch.randn(len(state.variables["w"]), generator=g, dtype=torch.float64))
    x = torch.rand(10, generator=g, dtype=torch.float64)
    state.variables["x"].copy_(x / x.sum())
    # The same samples for the local step as for g_i: all draws depend on the purpose alone.
    rename = {"local step": "gradient"}

    class Same(LocalContext):
        def stream(self, purpose, *exchange):
            return super().stream(rename.get(purpose, purpose))

    context = Same(**{f.name: getattr(one.context, f.name) for f in dataclasses.fields(one.context)})
    assert set(state.memory) == ({"spread", "known", "pull"} if weight_step == "scaled" else set())
    memory = {name: value.clone() for name, value in state.memory.items()}
    memory |= {"hypergradient": torch.zeros(10, dtype=torch.float64)}
    memory |= steps.curvature(other.context, state.variables["w"])
    found = ALGORITHMS["fedavg"].step(state, context)
    expected = ALGORITHMS["primal_dual"].step(
        dataclasses.replace(state, memory=memory),
        replace(other.context, round=1, inner=1, step_sizes={"w": eta_w, "lambda": 0.5}),
    )
    for name, scale in (("w", eta_w), ("lambda", 1.0), ("x", 1.0)):
        torch.testing.assert_close(found.directions[name], scale * expected.directions[name], rtol=1e-9, atol=1e-11)
        assert found.directions[name].norm() > 1e-3
    n, d = len(context.active()), 7850
    assert dataclasses.astuple(found.cost) == (1, 2 * d * n + n, 2 * d * n, n, n)


# ------------------------------------------------------------------------------------------------- images, transformed


def test_augmentation_by_hand():
    from pipeline.problems.consensus import augmented

    X = torch.arange(2 * 3 * 5 * 6, dtype=torch.float64).view(2, 3, 5, 6)
    fill = (0.1, 0.2, 0.3)
    keep = torch.tensor([[0.5, 0.5, 0.9, 0.9]] * 2, dtype=torch.float64)
    assert torch.equal(augmented(X, keep, fill), X)
    flip = torch.tensor([[0.49, 0.5, 0.0, 0.0], [0.9, 0.9, 0.0, 0.0]], dtype=torch.float64)
    found = augmented(X, flip, fill)
    assert torch.equal(found[0], X[0].flip(2))
    assert torch.equal(found[1], X[1])
    # u = 0: the corner above and left, so the picture moves down and right by 4 and the padding shows.
    corner = torch.tensor([[0.9, 0.0, 0.0, 0.0], [0.9, 0.0, 8 / 9 + 0.01, 5 / 9 + 0.01]], dtype=torch.float64)
    found = augmented(X, corner, fill)
    assert torch.equal(found[0, :, 4:, 4:], X[0, :, :1, :2])
    assert torch.equal(found[0, :, 0, 0], torch.tensor(fill, dtype=torch.float64))
    assert torch.equal(found[0, :, 4, 3], torch.tensor(fill, dtype=torch.float64))
    # rows 8 (of 0..8) and columns 5: up by 4, left by 1.
    assert torch.equal(found[1, :, :1, :5], X[1, :, 4:, 1:])
    assert torch.equal(found[1, :, 0, 5], torch.tensor(fill, dtype=torch.float64))


def test_augmentation_is_fresh_in_every_draw_and_normalisation_is_in_the_network(params, digits, partition):
    settings = {"problems.consensus.augment": True, "problems.consensus.normalise": True}
    problem = build_problem(override(of(params, "fedavg"), settings), digits, partition, CPU)
    plain = build_problem(of(params, "fedavg"), digits, partition, CPU)
    clients, positions = torch.tensor([0, 1]), torch.zeros(2, 40, dtype=torch.int64)
    X, _ = problem.take(7, clients, positions)
    again, _ = problem.take(7, clients, positions)
    other, _ = problem.take(8, clients, positions)
    base, _ = plain.take(7, clients, positions)
    assert torch.equal(X, again)
    assert not torch.equal(X, other)
    unchanged = (base == X).flatten(2).all(2).double().mean()
    assert 0.1 < float(unchanged) < 0.4  # a quarter stay as they are
    w = plain.initial(0)
    assert torch.equal(w, problem.initial(0))
    mean, deviation = 0.3057, 0.3249
    expected = plain.model.apply(w, (X[0] - mean) / deviation)
    torch.testing.assert_close(problem.model.apply(w, X[0]), expected)
    with torch.no_grad():  # a served network takes images in [0, 1]
        torch.testing.assert_close(problem.model.module_with(w)(X[0]), expected)


def test_colour_decides_what_auto_means():
    for name, on in (("digits", False), ("mnist", False), ("cifar10", True), ("cifar100", True)):
        found = resolve(override(Params(), {"data.name": name})).problems.consensus
        assert (found.augment, found.normalise) == (on, on)
