"""Own data through DVC: an edit of their files, wherever they lie, runs again what depends on it."""

from __future__ import annotations

import pytest

from tests.data.own.making import CLIENTS, folder, table
from tests.stages.project import ran

pytestmark = pytest.mark.slow

ALL = ["check", "download", "partition", "train", "evaluate"]
PARAMS = """
data: {{name: {name}, path: {path}, label: label, client: place}}
model: {{name: linear}}
train: {{rounds: 12, eval_every: 6}}
"""


def test_a_table_and_a_folder_outside_of_the_project(project, tmp_path):
    place = tmp_path / "of their own"
    place.mkdir()
    frame = table()
    frame.to_csv(place / "clients of ours.csv", index=False)
    params = project.folder / "params.yaml"
    params.write_text(PARAMS.format(name="table", path=f'"{place}/clients of ours.csv"'))
    output = project.dvc("repro")
    assert ran(output) == ALL
    assert "the validation set was held out from the clients: the weights show" in output
    assert [row["name"] for row in project.rows("client_weights.csv")] == sorted(CLIENTS)
    assert "clean_weight" not in project.json("results/metrics.json")
    served = project.json("models/mlflow/serving_input_example.json")["dataframe_split"]
    assert served["columns"] == ["age", "job", "person", "score"]
    assert project.changed() == []
    frame.head(250).to_csv(place / "clients of ours.csv", index=False)
    assert ran(project.dvc("repro")) == ALL[1:]
    before = sum(int(row["samples"]) for row in project.rows("client_weights.csv"))

    scans = folder(place / "scans")
    params.write_text(PARAMS.format(name="folder", path=f'"{scans}"'))
    assert ran(project.dvc("repro")) == ALL
    held = sum(int(row["samples"]) for row in project.rows("client_weights.csv"))
    assert held < 36 < before
    file = next(scans.rglob("*.png"))
    (file.parent / "one more.png").write_bytes(file.read_bytes())
    assert project.changed() == ["download"]
    assert project.git("status", "--porcelain", "--", "data", "models") == ""

    params.write_text("model: {name: linear}\ntrain: {rounds: 12, eval_every: 6}\n")
    project.dvc("repro", "download")
    before = project.changed()
    file.unlink()
    assert project.changed() == before  # no longer in use


def test_a_data_set_of_ones_own_by_its_dotted_path(project):
    project.edit("name: digits #", "name: examples.two_rings.TWO_RINGS #", "scheme: auto #", "scheme: iid #")
    assert ran(project.dvc("repro")) == ALL
    assert project.json("results/metrics.json")["test_accuracy"] > 0.5


def test_a_mistake_leaves_nothing_half_written(project, tmp_path):
    (tmp_path / "t.csv").write_text("place,x,label\nA,2,1\nB,3,1\n")
    (project.folder / "params.yaml").write_text(PARAMS.format(name="table", path=tmp_path / "t.csv"))
    output = project.dvc("repro", ok=False)
    assert "error: data.label 'label': there is only one class, '1'. Fix: " in output
    assert "Traceback" not in output
    assert not (project.folder / "data" / "raw" / "table").exists()
