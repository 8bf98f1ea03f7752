"""The real thing: `dvc repro` in a copy of the project, what it leaves, and what an edit runs again."""

from __future__ import annotations

import csv
import json
import time

import pytest
import yaml

from tests.stages.project import ROUNDS, ran

pytestmark = pytest.mark.slow


def test_repro_leaves_every_file_of_the_contract(finished, first_output):
    assert ran(first_output) == ["check", "download", "partition", "train", "evaluate"]
    assert "test accuracy" in first_output
    metrics = finished.json("results/metrics.json")
    expected = {"algorithm": "primal_dual", "problem": "client_weighting", "dataset": "digits", "seed": 0}
    assert metrics | expected | {"rounds": ROUNDS, "served_round": ROUNDS} == metrics
    for name in ("test_accuracy", "selection_accuracy", "clean_weight", "max_noise_weight"):
        assert 0 <= metrics[name] <= 1
    assert 0 <= metrics["weight_error"] <= 2
    assert metrics["test_loss"] > 0
    weights = finished.rows("client_weights.csv")
    assert list(weights[0]) == [*("client", "name", "kind", "labels", "samples", "weight", "weight_low", "weight_high")]
    assert [row["kind"] for row in weights] == ["clean"] * 3 + ["noisy"] * 7
    assert weights[0]["labels"] == "0 1 2 3 4"
    assert (weights[3]["name"], weights[3]["weight_low"], weights[3]["weight_high"]) == ("client 3", "", "")
    assert sum(float(row["weight"]) for row in weights) == pytest.approx(1, abs=1e-5)
    assert metrics["clean_weight"] == pytest.approx(sum(float(row["weight"]) for row in weights[:3]), abs=1e-6)
    history = finished.rows("history.csv")
    assert [int(row["round"]) for row in history] == list(range(ROUNDS + 1))
    assert float(history[-1]["test_accuracy"]) == pytest.approx(metrics["test_accuracy"], abs=1e-6)
    for name in ("client_weights", "final_weights", "accuracy_and_loss", "partition", "confusion_matrix"):
        assert (finished.folder / "results" / "plots" / f"{name}.png").stat().st_size > 5000, name
    assert {"tracking_uri", "experiment", "run_id"} <= set(finished.json("results/mlflow_run.json"))


def test_a_second_repro_has_nothing_to_do(project):
    assert "up to date" in (again := project.dvc("repro")), again


def test_a_stage_depends_on_sources_and_nothing_python_leaves_beside_them(finished):
    """What a folder dependency counts are the files in git: byte code would make a clone differ from its lock."""
    stages = yaml.safe_load((finished.folder / "dvc.lock").read_text())["stages"].values()
    folders = {d["path"]: d["nfiles"] for stage in stages for d in stage["deps"] if "nfiles" in d}
    assert {"networks", "pipeline/methods", "pipeline/tracking"} <= set(folders)
    assert (finished.folder / "pipeline" / "tracking" / "__pycache__").exists()
    for folder in (f for f in folders if not f.startswith("data/")):
        assert folders[folder] == len(finished.git("ls-files", folder).splitlines()), folder


def test_the_tracker_tells_the_story(finished):
    """Parameters, metrics, weights, pictures, lineage and a model that one line loads."""
    script = """
import json, sys, warnings
warnings.simplefilter("ignore")
import mlflow, numpy
info = json.load(open("results/mlflow_run.json"))
client = mlflow.MlflowClient(info["tracking_uri"])
mlflow.set_tracking_uri(info["tracking_uri"])
run = client.get_run(info["run_id"])
model = run.outputs.model_outputs[0].model_id
answer = mlflow.pyfunc.load_model(f"models:/{model}").predict(numpy.zeros((3, 1, 28, 28), dtype=numpy.float32))
points = client.get_metric_history(info["run_id"], "client_weight/00")
print(json.dumps({
    "status": run.info.status, "params": run.data.params, "metrics": run.data.metrics, "tags": run.data.tags,
    "shape": list(answer.shape), "steps": [p.step for p in points],
    "files": [a.path for a in client.list_artifacts(info["run_id"])],
    "plots": [a.path for a in client.list_artifacts(info["run_id"], "plots")],
    "dataset": run.inputs.dataset_inputs[0].dataset.name,
}))
"""
    done = finished.python("-c", script)
    assert done.returncode == 0, done.stderr
    run = json.loads(done.stdout.splitlines()[-1])
    metrics = finished.json("results/metrics.json")
    assert run["status"] == "FINISHED"
    assert run["params"]["algorithms.primal_dual.gamma"] == "4.0"
    assert run["params"]["federation.batch_size"] == "32"
    assert not any(name.startswith(("tracking", "partition.dirichlet")) for name in run["params"])
    assert run["metrics"]["test_accuracy"] == pytest.approx(metrics["test_accuracy"])
    assert run["steps"] == list(range(ROUNDS + 1))
    assert {"data_hash", "partition_hash", "mlflow.source.git.commit"} <= set(run["tags"])
    assert run["shape"] == [3, 10]
    assert run["dataset"] == "digits"
    assert any("client_weights" in name for name in run["files"])
    assert any(name.endswith("client_weights.png") for name in run["plots"])


@pytest.mark.parametrize(
    ("pairs", "stages"),
    [
        (
            ("concentration: 0.1", "concentration: 0.2", "fedbilevel #", "other #", "mirror: null", "mirror: x"),
            ["check"],
        ),
        ((f"rounds: {ROUNDS}", "rounds: 12"), ["check", "train", "evaluate"]),
        (("noise_clients: 7", "noise_clients: 2"), ["check", "partition", "train", "evaluate"]),
    ],
)
def test_an_edit_reruns_what_it_must_and_nothing_else(project, pairs, stages):
    project.edit(*pairs)
    assert ran(project.dvc("repro")) == stages


def test_experiments_run_and_compare(project):
    project.commit()
    output = project.dvc("exp", "run", "-n", "gentle", "-S", "algorithms.primal_dual.gamma=1")
    assert ran(output) == ["check", "train", "evaluate"]
    table = project.dvc("exp", "show", "--csv")
    (line,) = [row for row in csv.DictReader(table.splitlines()) if row["Experiment"] == "gentle"]
    assert float(line["algorithms.primal_dual.gamma"]) == 1
    (accuracy,) = [value for name, value in line.items() if name.split(":")[-1] == "test_accuracy"]
    assert float(accuracy) > 0


def test_an_unreachable_tracker_costs_a_warning(project):
    project.edit(f"rounds: {ROUNDS}", "rounds: 10")
    start = time.monotonic()
    output = project.dvc("repro", MLFLOW_TRACKING_URI="http://127.0.0.1:9")
    assert time.monotonic() - start < 200
    assert "make publish" in output
    assert "Traceback" not in output
    assert project.json("results/mlflow_run.json")["run_id"] is None
    assert project.json("results/metrics.json")["rounds"] == 10
    done = project.python("-m", "pipeline.tracking")
    assert done.returncode == 0, done.stderr
    assert project.json("results/mlflow_run.json")["run_id"]
    assert "up to date" in (again := project.dvc("repro")), again
