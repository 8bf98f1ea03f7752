"""The toy laboratory through the same stages, with the defaults."""

from __future__ import annotations

import pytest

from tests.stages.project import ran

pytestmark = pytest.mark.slow


def test_the_toy_runs_through_the_same_stages(project):
    project.edit("name: digits", "name: toy", "rounds: 24", "rounds: 300")
    assert ran(project.dvc("repro")) == ["check", "download", "partition", "train", "evaluate"]
    metrics = project.json("results/metrics.json")
    assert (metrics["problem"], metrics["dataset"], metrics["rounds"]) == ("toy", "toy", 300)
    history = project.rows("history.csv")
    assert "test_accuracy" not in history[0]
    assert metrics["stationarity"] < 0.5 * float(history[0]["stationarity"])
    assert metrics["upper_value"] < float(history[0]["upper_value"]) - 0.5
    assert len(project.rows("client_weights.csv")) == 15
    assert (project.folder / "results" / "plots" / "value_and_stationarity.png").stat().st_size > 5000
    # Noise is a setting of the problem in use: everything that depends on it runs again, and only that.
    project.edit("l2: 0.0", "l2: 0.1")  # of the problem that is not in use
    assert ran(project.dvc("repro")) == ["check"]
    project.edit("noise: 0.0 #", "noise: 0.5 #")
    assert ran(project.dvc("repro", "check")) == ["check"]
    assert project.changed() == ["train", "evaluate"]
