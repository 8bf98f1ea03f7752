"""A method with local steps through the same stages, by changing one line; and with learned weights, by one more."""

from __future__ import annotations

import pytest

from tests.stages.project import ran

pytestmark = pytest.mark.slow


def test_consensus_and_learned_weights_run_through_the_same_stages(project):
    project.edit("algorithm: primal_dual", "algorithm: a_fedpd")
    assert ran(project.dvc("repro"))[-2:] == ["train", "evaluate"]
    metrics = project.json("results/metrics.json")
    assert (metrics["algorithm"], metrics["problem"]) == ("a_fedpd", "consensus")
    assert 0.1 < metrics["test_accuracy"] <= 1
    assert metrics["test_accuracy"] == pytest.approx(metrics["average_accuracy"])  # the mean model is what is served
    assert 0.1 < metrics["shifted_accuracy"] <= 1
    assert [float(row["weight"]) for row in project.rows("client_weights.csv")] == pytest.approx([0.1] * 10)
    last = project.rows("history.csv")[-1]
    for measure in ("primal_residual", "dual_residual", "dual_drift", "dual_mean", "server_state_bytes"):
        assert float(last[measure]) > 0
    assert float(last["server_state_bytes"]) == 12 * 7850 * 4
    # The problem's own settings, and only those, make it run again; another problem's do not.
    project.edit("l2: 0.0", "l2: 0.1")
    assert ran(project.dvc("repro")) == ["check"]
    project.edit("normalise: auto", "normalise: true")
    assert ran(project.dvc("repro", "check")) == ["check"]
    assert project.changed() == ["train", "evaluate"]
    project.edit("algorithm: a_fedpd", "algorithm: fedavg", "problem: auto", "problem: client_weighting")
    assert ran(project.dvc("repro")) == ["check", "train", "evaluate"]
    metrics = project.json("results/metrics.json")
    assert (metrics["algorithm"], metrics["problem"]) == ("fedavg", "client_weighting")
    assert 0 < metrics["clean_weight"] <= 1
    assert len({row["weight"] for row in project.rows("client_weights.csv")}) > 1
