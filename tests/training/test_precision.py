"""`train.precision`: what is rounded in training, and what never is."""

from dataclasses import replace

import pytest
import torch

from pipeline.data.catalog import resolve
from pipeline.params import Model
from pipeline.params.pairs import FITS
from pipeline.training.evaluation import accuracy, outcome
from pipeline.training.resume import ResumeFolder
from pipeline.training.run import build_module, train
from pipeline.training.setup import build_problem
from pipeline.training.tasks import image_task
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


@pytest.mark.parametrize(("name", "rounds"), [("32-true", False), ("bf16-mixed", False), ("tf32", True)])
def test_a_gpu_rounds_float32_only_when_asked_to(name, rounds, params, digits, partition, tmp_path):
    """torch's own default rounds in convolutions, so that 32-true would not be what it says; set by every training."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    try:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = not rounds
        trained(replace(params, train=replace(params.train, rounds=1, precision=name)), digits, partition, tmp_path)
        assert torch.backends.cuda.matmul.allow_tf32 is rounds
        assert torch.backends.cudnn.allow_tf32 is rounds
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before
