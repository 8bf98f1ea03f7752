"""`train.precision`: what is rounded in training, and what never is."""

from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from torch import nn

from pipeline.command import Paths
from pipeline.errors import UserError
from pipeline.methods.registry import FITS
from pipeline.params import Model
from pipeline.params.resolve import resolve
from pipeline.training.evaluation import accuracy, outcome
from pipeline.training.resume import ResumeFolder
from pipeline.training.run import build_module, train
from pipeline.training.setup import build_model, build_problem
from pipeline.training.tasks import image_task
from stages import evaluate
from tests.training.test_problems import settings_of, task_of


def trained(params, digits, partition, folder):
    problem = build_problem(params, digits, partition, torch.device("cpu"))
    rows = []
    with ResumeFolder(folder, "run") as held:
        module, _ = train(params, image_task(problem), held, on_rows=rows.extend, progress=False)
    return problem, module.served, rows


@pytest.mark.parametrize("algorithm", ["primal_dual", "simfbo", "fedavg", "a_fedpd_sam", "aggitd"])
def test_a_mixed_run_goes_where_the_exact_one_goes(algorithm, params, digits, partition, tmp_path):
    """Every family under bf16-mixed: variables stay float32 and end near those of 32-true, but not on them."""
    ends = {}
    for name in ("32-true", "bf16-mixed"):
        problem = "consensus" if "fed" in algorithm else "client_weighting"
        short = replace(params.train, rounds=4, precision=name)
        chosen = replace(params, algorithm=algorithm, problem=problem, train=short)
        chosen = resolve(replace(chosen, model=Model("mlp", {"hidden": [12]})))
        _, ends[name], _ = trained(chosen, digits, partition, tmp_path / name)
    for key, exact in ends["32-true"].items():
        mixed = ends["bf16-mixed"][key]
        assert mixed.dtype == exact.dtype == torch.float32
        assert not torch.equal(mixed, exact)
        assert torch.linalg.vector_norm(mixed - exact) <= 0.2 * torch.linalg.vector_norm(exact)


@pytest.mark.parametrize("problem", [p for p in FITS if "bilevel" in FITS[p] and p != "toy"])
def test_no_problem_rounds_what_it_measures(problem, digits):
    """Every measure, and the figures at the end, of the same variables under both precisions."""
    found = []
    for name in ("32-true", "bf16-mixed"):
        task = task_of(settings_of("simfbo", problem, train__precision=name), digits)
        start = build_module(settings_of("simfbo", problem), task.problem).served
        ended = outcome(task.problem, start)
        found.append(task.measure(start) | {"final": ended.validation_loss, "test": ended.test.loss})
    assert found[0] == found[1]


def test_every_client_its_own_head_is_not_rounded_either(digits):
    found = []
    for name in ("32-true", "bf16-mixed"):
        params = settings_of("fedbio_local", "hyper_representation", train__precision=name)
        task = task_of(params, digits)
        found.append(task.measure(build_module(params, task.problem).served))
    assert found[0] == found[1]


def test_evaluations_are_never_rounded(params, digits, partition, tmp_path):
    chosen = replace(params, train=replace(params.train, precision="bf16-mixed"))
    problem, served, rows = trained(chosen, digits, partition, tmp_path)
    exact = build_problem(params, digits, partition, torch.device("cpu"))
    test = (problem.data.test_images, problem.data.test_labels)
    assert accuracy(problem, served, *test) == accuracy(exact, served, *test)
    assert rows[-1]["test_accuracy"] == pytest.approx(accuracy(exact, served, *test), abs=1e-9)


def float32_alone(channels, image_size, classes):
    """One's own network with a constant whose dtype is not that of its input."""

    class Fixed(nn.Linear):
        def forward(self, X):
            return super().forward(X.flatten(1) @ torch.eye(self.in_features, dtype=torch.float32))

    return Fixed(channels * image_size**2, classes)


@pytest.mark.parametrize("name", ["64-true", "bf16-mixed"])
def test_a_network_that_knows_float32_alone_is_refused_elsewhere(name, params):
    chosen = replace(params, model=Model("tests.training.test_precision.float32_alone"))
    assert build_model(chosen).d == (28 * 28 + 1) * 10
    with pytest.raises(UserError, match=f"train.precision: {name} .*float32_alone.* Fix: train.precision: 32-true"):
        build_model(replace(chosen, train=replace(chosen.train, precision=name)))


@pytest.mark.parametrize(("name", "rounds"), [("32-true", False), ("bf16-mixed", False), ("tf32", True)])
def test_a_gpu_rounds_float32_only_when_asked_to(name, rounds, params, digits, partition, tmp_path):
    """torch's own default rounds in convolutions, so that 32-true would not be what it says; set by every training."""
    chosen = replace(params, train=replace(params.train, rounds=1, precision=name))
    with tensor_cores(not rounds):
        trained(chosen, digits, partition, tmp_path)
        assert torch.backends.cuda.matmul.allow_tf32 is rounds
        assert torch.backends.cudnn.allow_tf32 is rounds


@pytest.mark.parametrize(("name", "rounds"), [("32-true", False), ("tf32", True)])
def test_the_test_figures_are_rounded_like_training(name, rounds, params, digits, partition, tmp_path, monkeypatch):
    """The stage that evaluates is a process of its own."""

    class Evaluated(Exception):
        pass

    def evaluated(*_):
        assert torch.backends.cudnn.allow_tf32 is torch.backends.cuda.matmul.allow_tf32 is rounds
        raise Evaluated

    monkeypatch.setattr(evaluate, "load", lambda _: digits)
    monkeypatch.setattr(evaluate.Partition, "load", lambda _: partition)
    monkeypatch.setattr(evaluate, "build_problem", evaluated)
    chosen = replace(params, train=replace(params.train, precision=name))
    with tensor_cores(not rounds), pytest.raises(Evaluated):
        evaluate.image_report(chosen, Paths(tmp_path), None)


@contextmanager
def tensor_cores(allowed):
    """torch's two switches, set so; afterwards as they were."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before
