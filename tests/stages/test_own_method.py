"""A method and a scheme of one's own through DVC: they run by dotted path, and an edit runs again what it must."""

from __future__ import annotations

import pytest

from tests.stages.project import ran

pytestmark = pytest.mark.slow


def test_it_runs_and_an_edit_trains_again(project):
    file = project.folder / "my_methods" / "trimmed.py"
    file.write_text((project.folder / "examples" / "trimmed.py").read_text())
    own = "algorithm: my_methods.trimmed.TRIMMED"
    project.edit("scheme: auto #", "scheme: examples.one_label.ONE_LABEL #")
    project.edit("\nalgorithm: primal_dual", f"\n{own}", "\nalgorithms:", "\nalgorithms:\n  trimmed:\n    trim: 0.3")
    assert ran(project.dvc("repro")) == ["check", "download", "partition", "train", "evaluate"]
    assert project.json("results/metrics.json")["algorithm"] == "my_methods.trimmed.TRIMMED"
    file.write_text(file.read_text().replace("mean(dim=0)", "median(dim=0).values"))
    assert ran(project.dvc("repro")) == ["check", "download", "partition", "train", "evaluate"]
    assert project.changed() == []


def test_keys_and_sections_may_be_left_out(project):
    """What is left out has its default, for DVC too."""
    (project.folder / "params.yaml").write_text("model: {name: linear}\ntrain: {rounds: 12}\n")
    project.dvc("repro")
    assert project.json("results/metrics.json")["rounds"] == 12
