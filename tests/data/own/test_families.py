"""Every family of methods on own data, classes and numbers: it runs, is evaluated and reported."""

from __future__ import annotations

import csv
import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from pipeline.config.spec import dotted
from pipeline.data.losses import Loss, balanced
from pipeline.errors import UserError
from pipeline.params.resolve import resolve
from pipeline.report.numbers import write_numbers
from pipeline.report.record import describe
from pipeline.training.evaluation import Classification, Regression, judge, outcome
from pipeline.training.resume import ResumeFolder
from pipeline.training.run import run_fingerprint, train
from pipeline.training.setup import build_problem
from pipeline.training.tasks import image_task
from tests.data.own.making import CLIENTS, CPU, made, table

RUN = {"train__rounds": 6, "train__eval_every": 3, "train__checkpoint_every": 6}
TABLE = {"data__name": "table", "data__client": "place", "data__features": ["age", "job"], **RUN}
METHODS = {
    "primal_dual": {},
    "sustain": {},
    "simfbo": {},
    "fedbio_local": {},
    "lfednest": {},
    "fedavg": {},
    "a_fedpd": {},
    "fedbio": {"problem": "fair"},
    "exact_gradient": {},
}


def ran(tmp_path, label: str, **keys):
    path = tmp_path / "table.csv"
    table().to_csv(path, index=False)
    params, raw, partition = made(tmp_path, **TABLE, **keys, data__path=str(path), data__label=label)
    problem = build_problem(params, raw, partition, CPU)
    task = image_task(problem, raw.hash, partition.hash)
    with ResumeFolder(tmp_path / "resume", run_fingerprint(params, task)) as folder:
        module, history = train(params, task, folder, progress=False)
        history.export(tmp_path / "results")
    record = describe(dotted(params), raw.hash, partition.hash, "cpu")
    found = outcome(problem, module.kept.variables)
    metrics, _ = write_numbers(found, partition, replace(record, served_round=module.kept.round), tmp_path / "results")
    return problem, found, metrics


@pytest.mark.parametrize("label", ["label", "score"])
@pytest.mark.parametrize("method", METHODS)
def test_it_runs_and_is_reported(tmp_path, method, label):
    _, found, metrics = ran(tmp_path, label, algorithm=method, **METHODS[method])
    assert np.isfinite([found.validation_loss, found.test.loss]).all()
    assert ("test_rmse" in metrics, "test_r2" in metrics, "test_accuracy" in metrics) == (
        (True, True, False) if label == "score" else (False, False, True)
    )
    assert not {"clean_weight", "weight_error", "detection_auc"} & metrics.keys()
    with (tmp_path / "results" / "client_weights.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["name"] for row in rows] == sorted(CLIENTS)
    assert {row["kind"] for row in rows} == {"unknown"}
    assert rows[0]["labels"] == ("" if label == "score" else "ja; nein")
    assert json.loads((tmp_path / "results" / "metrics.json").read_text()) == metrics


@pytest.mark.parametrize(("problem", "method"), [("data_cleaning", "simfbo"), ("loss_tuning", "simfbo")])
def test_problems_about_classes_refuse_numbers(tmp_path, problem, method):
    with pytest.raises(UserError, match=rf"problem: {problem} is about classes.*numbers\. Fix: one of .*fair"):
        ran(tmp_path, "score", algorithm=method, problem=problem)


@pytest.mark.parametrize(
    ("label", "loss", "said"),
    [
        ("score", {"loss__name": "cross_entropy"}, "auto, squared or huber"),
        ("label", {"loss__name": "huber"}, "auto or cross_entropy"),
        ("score", {"loss__class_weights": "balanced"}, "none"),
    ],
)
def test_a_loss_that_does_not_go_with_the_targets(tmp_path, label, loss, said):
    with pytest.raises(UserError, match=f"loss.* {said}"):
        ran(tmp_path, label, **loss)


def test_numbers_are_judged_in_their_own_unit(tmp_path):
    """Against numpy, on the answers of the network."""
    problem, found, _ = ran(tmp_path, "score", loss__name="huber")
    data = problem.data
    variables = {"w": torch.randn(problem.model.d, generator=torch.Generator().manual_seed(0))}
    with torch.no_grad():
        scores = problem.model.apply(variables["w"], data.scaled(data.test_images))[:, 0].double().numpy()
    true = data.test_labels.double().numpy() * data.unit.spread + data.unit.shift
    guess = scores * data.unit.spread + data.unit.shift
    got = judge(problem, variables, data.test_images, data.test_labels)
    assert isinstance(got, Regression)
    assert isinstance(found.test, Regression)
    assert got.rmse == pytest.approx(np.sqrt(np.mean((guess - true) ** 2)), rel=1e-5)
    assert got.mae == pytest.approx(np.abs(guess - true).mean(), rel=1e-5)
    assert got.r2 == pytest.approx(1 - np.mean((guess - true) ** 2) / true.var(), rel=1e-5)


def test_further_figures_of_classes(tmp_path):
    """Against scikit-learn."""
    from sklearn.metrics import balanced_accuracy_score, log_loss, roc_auc_score

    problem, _, metrics = ran(tmp_path, "label", loss__class_weights="balanced")
    data = problem.data
    variables = {"w": torch.randn(problem.model.d, generator=torch.Generator().manual_seed(0))}
    got = judge(problem, variables, data.test_images, data.test_labels)
    assert isinstance(got, Classification)
    with torch.no_grad():
        shares = problem.model.apply(variables["w"], data.scaled(data.test_images)).double().softmax(1).numpy()
    y = data.test_labels.numpy()
    assert got.further["balanced_accuracy"] == pytest.approx(balanced_accuracy_score(y, shares.argmax(1)), rel=1e-6)
    assert got.further["auroc"] == pytest.approx(roc_auc_score(y, shares[:, 1]), rel=1e-6)
    assert got.further["log_loss"] == pytest.approx(log_loss(y, shares), rel=1e-6)
    assert 0 <= got.further["calibration_error"] <= 1
    assert {"test_balanced_accuracy", "test_auroc", "test_log_loss", "test_calibration_error"} <= metrics.keys()


def test_balanced_weights_make_every_class_count_the_same():
    counts = torch.tensor([30, 10, 0])
    weights = balanced(counts)
    assert (weights * counts).tolist() == [20, 20, 0]
    scores, y = torch.randn(4, 3), torch.tensor([0, 1, 1, 0])
    plain, weighted = Loss().each(scores, y), Loss(weights=weights).each(scores, y)
    assert torch.allclose(weighted, plain * weights[y])


def test_the_network_that_auto_picks_is_by_the_samples():
    from pipeline.models import automatic

    assert [automatic(size, 5000) for size in (1, 8, 12, 64, 65)] == ["mlp", "mlp", "lenet5", "lenet5", "conv4"]
    assert automatic(1, 999) == "linear"
    from pipeline.params import Params

    assert resolve(Params()).model.name == "lenet5"
