"""A sweep in the tracker: one parent, a child per run with everything a single run has; a dead tracker costs a line."""

from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.command import Paths
from pipeline.config.sections import Tracking
from pipeline.config.spec import override
from pipeline.params import Params
from pipeline.report.record import RunInfo
from pipeline.tracking.store import connect
from stages.sweep import sweep

pytestmark = [
    # MLflow's own code, at import and at the first query.
    pytest.mark.filterwarnings("ignore:.*noload.*"),
    pytest.mark.filterwarnings("ignore:.*Any type hint is inferred.*"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

PARAMS = override(
    Params(),
    {
        "data.name": "toy",
        "problems.toy.clients": 3,
        "algorithms.primal_dual.gamma": 2.0,
        "algorithms.primal_dual.curvature_limit": 0.0,
        "train.rounds": 6,
        "train.eval_every": 3,
        "sweep.seeds": [0, 1],
        "sweep.values": {"algorithms.primal_dual.eta_w": [0.03, 1e200]},
    },
)


def test_parent_and_children(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)
    paths = Paths(root=project)
    for _ in range(2):  # the second time nothing is left to do, and nothing is doubled
        sweep(PARAMS, paths)
    store = connect(Tracking(), project)
    found = store.client.search_runs([store.experiment_id])
    parent_info = RunInfo.load(paths.sweep / "mlflow_run.json")
    assert parent_info
    parent = next(run for run in found if run.info.run_id == parent_info.run_id)
    assert (parent.info.run_name, parent.info.status) == (
        "sweep of eta_w (2), seed (2): primal_dual toy r6",
        "FINISHED",
    )
    assert parent.data.params["sweep.algorithms.primal_dual.eta_w"] == "['0.03', '1e+200']"
    assert parent.data.params["algorithms.primal_dual.gamma"] == "2.0"
    assert "algorithms.primal_dual.eta_w" not in parent.data.params
    assert [file.path for file in store.client.list_artifacts(parent.info.run_id)] == ["report.html", "summary.csv"]

    children = {run.info.run_name: run for run in found if run is not parent}
    assert {name: run.info.status for name, run in children.items()} == {
        "eta_w=0.03,seed=0": "FINISHED",
        "eta_w=0.03,seed=1": "FINISHED",
        "eta_w=1e+200,seed=0": "FAILED",
        "eta_w=1e+200,seed=1": "FAILED",
    }
    for run in children.values():
        assert run.data.tags["mlflow.parentRunId"] == parent.info.run_id
    one = children["eta_w=0.03,seed=1"]
    assert (one.data.params["seed"], one.data.params["algorithms.primal_dual.eta_w"]) == ("1", "0.03")
    assert not any(name.startswith("sweep") for name in one.data.params)
    weights = store.client.get_metric_history(one.info.run_id, "client_weight/02")
    assert [metric.step for metric in weights] == list(range(7))
    assert {"stationarity", "cost/hvps", "validation_loss"} <= set(one.data.metrics)
    names = {file.path for file in store.client.list_artifacts(one.info.run_id)}
    assert {"history.csv", "metrics.json", "client_weights.json", "client_weights.csv"} <= names


def test_a_dead_tracker_costs_one_warning(project: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.chdir(project)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    dead = replace(PARAMS, tracking=Tracking(uri="http://127.0.0.1:9"))
    sweep(dead, Paths(root=project))
    output = capsys.readouterr()
    assert output.err.count("tracking:") == 1
    assert "make sweep" in output.err
    assert "stationarity" in output.out
    assert (project / "results" / "sweep" / "summary.csv").is_file()
