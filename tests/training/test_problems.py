"""Every method on every problem it fits, through the training loop: a few rounds on digits with a small network."""

from __future__ import annotations

import csv
from dataclasses import fields, replace
from functools import cache

import numpy as np
import pytest
import torch

from pipeline.config.spec import override
from pipeline.data.partition import make_partition
from pipeline.data.raw import RawDataset
from pipeline.errors import UserError
from pipeline.methods import ALGORITHMS as METHODS
from pipeline.methods.registry import FITS, family, method_for
from pipeline.params import Params, Subset
from pipeline.params.resolve import resolve
from pipeline.params.rules import check_rules
from pipeline.problems.images import served_network
from pipeline.problems.toy import Toy
from pipeline.training import evaluation
from pipeline.training.resume import ResumeFolder
from pipeline.training.run import run_fingerprint, train
from pipeline.training.setup import build_problem, build_toy
from pipeline.training.tasks import image_task, toy_task

SMALL = {
    "model.name": "mlp",
    "model.options": {"hidden": [8]},
    "train.rounds": 3,
    "train.eval_every": 3,
    "train.checkpoint_every": 2,
    "train.accelerator": "cpu",
    "federation.participation": 0.6,
    "federation.batch_size": 8,
    "federation.validation_batch_size": 16,
}
SCHEMES = {"data_cleaning": "cleaning", "loss_tuning": "longtail", "fair": "dirichlet", "few_shot": "few_shot"}
# The other families have tests of their own.
GENERAL = [name for name in METHODS if family(name) in ("bilevel", "local", "either")]
PAIRS = [(m, p) for m in GENERAL for p in FITS if family(m) in FITS[p]] + [("fednest", "fair")]


def settings_of(method: str, problem: str, **more) -> Params:
    chosen = {"algorithm": method, "problem": problem, **SMALL}
    if problem == "toy":
        chosen["data.name"] = "toy"
        # Its curvature is some fifteen times that of a network: the steps are for those.
        steps = [f.name for f in fields(getattr(Params().algorithms, method)) if f.name.startswith(("eta_", "gamma_"))]
        chosen |= {f"algorithms.{method}.{name}": 0.01 for name in steps}
    elif problem in SCHEMES:
        chosen["partition.scheme"] = SCHEMES[problem]
        chosen[f"partition.{SCHEMES[problem]}.clients"] = 4
    if problem == "few_shot":
        chosen |= {"data.name": "glyphs", "problems.few_shot.test_tasks": 4}
    params = override(Params(), chosen | {name.replace("__", "."): value for name, value in more.items()})
    check_rules(params)
    return resolve(params)


@cache
def of_the_form(name: str, classes: int, trained: int, each: int, channels: int, size: int) -> RawDataset:
    """Generated images of a data set's form, one random picture per class with noise; `trained` of the classes are
    trained on, the others tested, or all are both."""
    generator = np.random.default_rng(0)
    labels = np.repeat(np.arange(classes), each)
    images = np.repeat(generator.integers(0, 200, (classes, channels, size, size)), each, axis=0)
    images = (images + generator.integers(0, 56, images.shape)).astype(np.uint8)
    train = labels < trained
    test = ~train if trained < classes else train
    return RawDataset(name, classes, images[train], labels[train], images[test], labels[test])


def task_of(params: Params, digits):
    name, raw = params.data.name, digits
    if name == "toy":
        return toy_task(build_toy(params))
    if name == "glyphs":
        raw = of_the_form("glyphs", 60, 40, 20, 1, 28)
    elif name == "cifar10":
        raw = of_the_form("cifar10", 10, 10, 40, 3, 32)
    partition = make_partition(raw.train_labels, raw.name, raw.classes, params.partition, params.seed)
    return image_task(build_problem(params, raw, partition, torch.device("cpu")))


def fit(params: Params, task, root):
    with ResumeFolder(root, "run") as folder:
        module, history = train(params, task, folder, progress=False)
        history.export(root / "results")
    with (root / "results" / "history.csv").open(newline="") as file:
        return module, list(csv.DictReader(file))


def test_few_shot_settings_reach_the_problem(digits):
    more = {"problems__few_shot__mu": 0.5, "problems__few_shot__test_tasks": 7, "partition__few_shot__ways": 4}
    params = settings_of("lfednest", "few_shot", **more)
    problem = task_of(params, digits).problem
    assert (problem.mu, problem.test_tasks, problem.ways, problem.tasks) == (0.5, 7, 4, 2)
    assert problem.model.head == 4 * 9


def test_what_is_served_of_a_few_shot_problem_is_its_body(digits):
    problem = task_of(settings_of("lfednest", "few_shot"), digits).problem
    variables = {"x": problem.initial_upper(0), "Y": torch.zeros(4, problem.lower_dimension)}
    images = problem.data.scaled(problem.data.test_images[:3])
    features = served_network(problem, variables)(images)
    assert features.shape == (3, 8)
    torch.testing.assert_close(features, problem.model.features(variables["x"], images))
    assert (features != 0).any()


def test_tasks_dealt_otherwise_are_refused(digits):
    """The same samples, cut into tasks of other sizes."""
    params = settings_of("lfednest", "few_shot")
    raw = of_the_form("glyphs", 60, 40, 20, 1, 28)
    partition = make_partition(raw.train_labels, raw.name, raw.classes, params.partition, params.seed)
    other = override(params, {"partition.few_shot.ways": 2})
    with pytest.raises(UserError, match=r"few_shot\.ways is 2, and the partition was made with 5.*Fix: run dvc repro"):
        build_problem(other, raw, partition, torch.device("cpu"))


def test_a_test_with_too_few_classes_is_refused(digits):
    params = settings_of("lfednest", "few_shot")
    raw = of_the_form("glyphs", 60, 40, 20, 1, 28).first(Subset(test=60))
    partition = make_partition(raw.train_labels, raw.name, raw.classes, params.partition, params.seed)
    with pytest.raises(UserError, match=r"few_shot\.ways = 5 .* at most 3, the test classes.*subset\.test"):
        build_problem(params, raw, partition, torch.device("cpu"))


@pytest.mark.parametrize(("method", "heads"), [("simfbo", "shared"), ("fedbio_local", "local")])
def test_colour_images_and_a_convolutional_body(tmp_path, method, heads):
    """Images of CIFAR's form, which are all bodies learn here: the body's 61,156 parameters and a head of 850."""
    more = {"data__name": "cifar10", "model__name": "cnn", "model__options": {"normalise": [0.5, 0.5]}}
    more |= {"partition__scheme": "iid", "partition__iid__clients": 4, "partition__client_validation": 0.5}
    more |= {"partition__validation_per_label": 0, "partition__selection_per_label": 0}
    params = settings_of(method, "hyper_representation", **more)
    task = task_of(params, None)
    module, rows = fit(params, task, tmp_path)
    assert task.problem.upper_dimension == 61_156
    assert task.problem.lower_dimension == 850
    assert task.problem.local_lower == (heads == "local")
    assert (module.state.variables["x"] != task.problem.initial_upper(params.seed)).any()
    assert float(rows[-1]["test_accuracy"]) == pytest.approx(
        evaluation.accuracy(task.problem, module.served, task.problem.data.test_images, task.problem.data.test_labels)
    )


@pytest.mark.parametrize(("method", "problem"), PAIRS)
def test_every_method_runs_on_every_problem_it_fits(digits, tmp_path, method, problem):
    """It moves the upper and the lower variable, and what is measured can be measured again from what is kept."""
    params = settings_of(method, problem)
    task = task_of(params, digits)
    module, rows = fit(params, task, tmp_path)
    start = module.algorithm.init(module.context)
    before = start.variables | {name: start.memory[name] for name in ("Y",) if name in start.memory}
    assert set(before) == set(module.served)
    for name in {"x", "y", "Y"} & set(before):
        assert not torch.equal(before[name], module.served[name]), name
        assert module.served[name].isfinite().all()
    assert method_for(method, problem) == params.algorithm
    measured = task.measure(module.served)
    for name in task.measures:
        if name in measured:
            assert float(rows[-1][name]) == pytest.approx(measured[name], rel=1e-6)
    if problem in ("client_weighting", "toy"):
        x = module.served["x"]
        assert (x >= 0).all()
        assert float(x.sum()) == pytest.approx(1.0, abs=1e-5)
        assert "client_weight_0" in rows[0]
    if problem != "toy":
        found = evaluation.outcome(task.problem, module.served)
        assert found.weighted == (task.problem.client_weights(module.served) is not None)
        assert found.weighted or problem not in ("client_weighting", "fair")
        assert found.test.accuracy == pytest.approx(float(rows[-1]["test_accuracy"]), abs=1e-6)


@pytest.mark.parametrize("problem", [p for p in FITS if "bilevel" in FITS[p] and p != "toy"])
def test_the_loop_backend_gives_the_same_run(digits, tmp_path, problem):
    base = settings_of("simfbo", problem, train__precision="64-true", algorithms__simfbo__local_steps=2)
    ends = []
    for backend in ("fused", "loop"):
        params = replace(base, train=replace(base.train, backend=backend))
        module, _ = fit(params, task_of(params, digits), tmp_path / backend)
        ends.append(module.served)
    for name, value in ends[0].items():
        torch.testing.assert_close(ends[1][name], value, rtol=1e-9, atol=1e-11)


def test_the_weighting_form_and_the_general_form_are_one_problem(digits):
    """On the toy: the same upper value and stationarity at the same point."""
    general, toy = (build_toy(settings_of(method, "toy")) for method in ("simfbo", "primal_dual"))
    assert isinstance(toy, Toy)
    x, w = general.initial_upper(0), general.initial_lower(0)
    assert general.measure({"x": x, "y": w}) == toy.measure({"x": x, "w": w})


@pytest.mark.parametrize("method", [m for m in GENERAL if family(m) in FITS["data_cleaning"]])
def test_sharded_scores_are_the_same_run_with_fewer_floats(digits, tmp_path, method):
    """What is saved is a whole number of x, both ways, in every method."""
    ends, floats = [], []
    for scores in ("averaged", "sharded"):
        params = settings_of(method, "data_cleaning", problems__data_cleaning__scores=scores)
        task = task_of(params, digits)
        module, _ = fit(params, task, tmp_path / scores)
        ends.append(module.served)
        floats.append((module.cost.floats_up, module.cost.floats_down))
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])
    for averaged, sharded in zip(*floats, strict=True):
        assert averaged > sharded > 0
        assert (averaged - sharded) % task.problem.upper_dimension == 0
        assert sharded % task.problem.lower_dimension == 0


def test_a_client_without_validation_samples_is_named(digits):
    params = settings_of("simfbo", "fair", partition__client_validation=0.001)
    with pytest.raises(UserError, match=r"fair needs validation samples on every client, and client 0 .* Fix"):
        task_of(params, digits)


def test_settings_of_the_problem_in_use_name_the_run(digits):
    params = settings_of("simfbo", "hyper_representation")
    task = task_of(params, digits)
    other = settings_of("simfbo", "hyper_representation", problems__hyper_representation__mu=0.5)
    unused = settings_of("simfbo", "hyper_representation", problems__fair__q=3.0)
    assert run_fingerprint(params, task) == run_fingerprint(unused, task) != run_fingerprint(other, task)
