"""From train to metrics.json and the tracker, without DVC: which model is served, and what the terminal says of it."""

from __future__ import annotations

import csv
import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from pipeline.command import Paths
from pipeline.config.spec import override
from pipeline.data.datasets import prepare
from pipeline.methods import ALGORITHMS
from pipeline.params import Params
from pipeline.params.resolve import resolve
from pipeline.report.clients import read_clients
from stages import evaluate, partition, train

SMALL = {
    "model.name": "linear",
    "train.rounds": 6,
    "train.eval_every": 2,
    "train.checkpoint_every": 2,
    "train.accelerator": "cpu",
    "subset.train": 900,
    "subset.test": 200,
}


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    folder = tmp_path_factory.mktemp("raw") / "digits"
    prepare("digits", folder)
    return folder


@pytest.fixture
def here(raw, empty_store, tmp_path, monkeypatch):
    """A project's folder with the data in it and an empty tracker, to work in."""
    (tmp_path / "data" / "raw").mkdir(parents=True)
    (tmp_path / "data" / "raw" / "digits").symlink_to(raw)
    shutil.copyfile(empty_store, tmp_path / "mlflow.db")
    monkeypatch.chdir(tmp_path)
    return Paths(root=tmp_path)


def rows(name):
    with open(f"results/{name}", newline="") as file:
        return list(csv.DictReader(file))


def scripted(monkeypatch, accuracies):
    """Evaluations of the train stage find these selection accuracies, one after another."""
    load = train.load_task

    def load_task(*given):
        task, left = load(*given), iter(accuracies)
        return replace(task, measure=lambda variables: task.measure(variables) | {"selection_accuracy": next(left)})

    monkeypatch.setattr(train, "load_task", load_task)


def settles(monkeypatch, name, values):
    """That method measures `settled` in its rounds, with these values."""
    found = ALGORITHMS[name]

    def step(state, context):
        value = torch.tensor(values[context.round - 1])
        return replace(found.step(state, context), report=lambda variables: {"settled": value})

    monkeypatch.setitem(ALGORITHMS, name, replace(found, step=step, measures=("settled",)))


def run(here, **settings):
    """The stages from partition on; metrics.json."""
    params = override(Params(), SMALL | {name.replace("__", "."): value for name, value in settings.items()})
    partition.partition(resolve(params), here)
    train.train_stage(params, here)
    evaluate.evaluate(params, here)
    return json.loads((here.root / "results" / "metrics.json").read_text())


def test_a_run_that_collapses_serves_its_best_model_and_says_so(here, monkeypatch, capsys):
    scripted(monkeypatch, [0.1, 0.7, 0.91, 0.503])
    metrics = run(here)
    line = (
        "the model of round 4 is served: selection accuracy 91.0 % there, 50.3 % after the last round 6. Lower eta_w,"
        " or train for fewer rounds."
    )
    assert line in capsys.readouterr().out.splitlines()
    assert (metrics["rounds"], metrics["served_round"]) == (6, 4)
    history = rows("history.csv")
    assert [row["selection_accuracy"] for row in history] == ["0.1", "", "0.7", "", "0.91", "", "0.503"]
    for name in ("test_accuracy", "validation_loss"):
        assert metrics[name] == pytest.approx(float(history[4][name]), rel=1e-5)
    weights = [float(row["weight"]) for row in rows("client_weights.csv")]
    assert weights == pytest.approx([float(history[4][f"client_weight_{i}"]) for i in range(10)], rel=1e-5)
    assert weights != pytest.approx([float(history[6][f"client_weight_{i}"]) for i in range(10)], rel=1e-5)

    from mlflow import MlflowClient

    known = json.loads((here.root / "results" / "mlflow_run.json").read_text())
    found = MlflowClient(known["tracking_uri"]).get_run(known["run_id"])
    assert found.data.metrics["served_round"] == 4
    assert found.data.metrics["test_accuracy"] == pytest.approx(metrics["test_accuracy"])
    assert found.outputs.model_outputs[0].step == 4


def test_any_other_run_serves_its_last_model(here, monkeypatch, capsys):
    scripted(monkeypatch, [0.1, 0.7, 0.91, 0.9])
    metrics = run(here)
    assert metrics["served_round"] == metrics["rounds"] == 6
    assert "is served" not in capsys.readouterr().out
    assert metrics["test_accuracy"] == pytest.approx(float(rows("history.csv")[6]["test_accuracy"]))


def test_replicates_give_every_weight_an_interval(here, capsys):
    run(here, train__replicates=3)
    with np.load("results/client_weights_history.npz") as saved:
        replicates = saved["replicates"]
    assert replicates.shape == (3, 10)
    clients = rows("client_weights.csv")
    assert list(clients[0]) == ["client", "name", "kind", "labels", "samples", "weight", "weight_low", "weight_high"]
    assert [row["name"] for row in clients] == [f"client {i}" for i in range(10)]
    weights, low, high = (np.array([float(row[name]) for row in clients]) for name in list(clients[0])[-3:])
    half = np.maximum(2.9199856 * replicates.std(axis=0, ddof=1), 0.001)
    np.testing.assert_allclose(low, np.clip(weights - half, 0, 1), atol=1e-6)
    np.testing.assert_allclose(high, np.clip(weights + half, 0, 1), atol=1e-6)
    out = capsys.readouterr().out
    assert f"{low[0]:.4f} to {high[0]:.4f}" in out
    assert not list(here.resume.glob("*/replicate*"))

    stored = read_clients(here.root / "results")
    assert (stored[2]["weight_low"], stored[2]["name"]) == (pytest.approx(low[2]), "client 2")


ALL_BAD = "clients 3, 4, 5, 6, 7, 8, 9"
SUSPICIOUS = "below half of an equal share, and the model disagrees with their labels"


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"train__replicates": 2}, f"suspicious: {ALL_BAD} (weight surely {SUSPICIOUS})"),
        ({}, f"suspicious: {ALL_BAD} (weight {SUSPICIOUS})"),
        ({"algorithm": "validation_only"}, None),  # gives no client anything
    ],
)
def test_the_terminal_names_clients_that_hold_too_little(here, capsys, settings, line):
    """The oracle's weights are fixed: 0 for the bad clients, and the same in every replicate."""
    run(here, **{"algorithm": "oracle_weights", "train__rounds": 2} | settings)
    said = [text for text in capsys.readouterr().out.splitlines() if "equal share" in text]
    assert said == ([line] if line else [])


@pytest.mark.parametrize(
    ("accuracies", "settled", "found"),
    [
        ([0.1, 0.9], [0.0, 1.0], True),
        ([0.1, 0.9], [1.0, 0.0], False),
        ([0.1, 0.9, 0.5], [0.0, 1.0, 1.0, 0.0], True),  # round 2 is served
        ([0.1, 0.9, 0.5], [1.0, 0.0, 1.0, 1.0], False),
    ],
)
def test_weights_that_have_not_settled_are_no_verdict(here, monkeypatch, capsys, accuracies, settled, found):
    """Evaluated after rounds 0, 2 and perhaps 4. Who holds too little is said of settled weights only."""
    scripted(monkeypatch, accuracies)
    settles(monkeypatch, "oracle_weights", settled)
    metrics = run(here, algorithm="oracle_weights", train__rounds=len(settled))
    assert metrics["served_round"] == 2
    assert metrics["weights_settled"] is found
    said = capsys.readouterr().out.splitlines()
    assert ("the weights have not settled: train on (more rounds)" in said) is not found
    assert (f"suspicious: {ALL_BAD} (weight {SUSPICIOUS})" in said) is found


def test_a_method_that_does_not_say_whether_weights_settle(here, capsys):
    assert "weights_settled" not in run(here, algorithm="oracle_weights", train__rounds=2)
    assert "settled" not in capsys.readouterr().out
