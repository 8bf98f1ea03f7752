"""What a federated run hands over for use: an MLflow model that takes what the participants' files hold."""

from __future__ import annotations

import builtins
import csv
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from pipeline.data.federated import FederatedData
from pipeline.federation import model
from pipeline.federation.demo import FEATURES
from tests.federation.helpers import history, params, run, trained, transport
from tests.federation.helpers import sites as plain_sites
from tests.federation.test_own_samples import chosen_for, sites

DOCS = Path(__file__).parents[2] / "docs"


def loaded(folder):
    import mlflow

    return mlflow.pyfunc.load_model(str(folder / "server" / "models" / "mlflow"))


def shown_in_the_docs(words, folder, monkeypatch):
    """The names that the page's block with these words defines in that folder."""
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / "federation.md").read_text(), re.DOTALL)
    (block,) = [block for block in blocks if words in block]
    monkeypatch.chdir(folder)
    found = {}
    exec(block, found)
    return found


def table(path):
    frame = pd.read_csv(path)
    return frame.drop(columns="diseased"), frame["diseased"].to_numpy()


def test_a_run_hands_over_a_model_that_takes_the_users_columns(tmp_path, exports, monkeypatch):
    """Its accuracy on the raw test file is the one reported; the order of columns does not matter."""
    run(tmp_path, params(), transport(plain_sites(tmp_path)))
    X, y = table(tmp_path / "server" / "test.csv")
    found = loaded(tmp_path).predict(X[list(reversed(FEATURES))])
    assert list(found.columns) == ["0", "1"]
    assert found.to_numpy().sum(1) == pytest.approx(np.ones(len(y)), abs=1e-5)
    pd.testing.assert_frame_equal(shown_in_the_docs("load_model", tmp_path / "server", monkeypatch)["answers"], found)
    accuracy = (found.to_numpy().argmax(1) == y).mean()
    assert accuracy == pytest.approx(float(history(tmp_path)[-1]["test_accuracy"]), abs=1e-6)


def test_under_local_heads_it_is_the_body(tmp_path, exports, monkeypatch):
    """With a site's head, its features make the site's network."""
    there = sites(tmp_path)
    run(tmp_path, chosen_for("fedbio_local"), transport(there))
    assert trained(tmp_path).keys() == {"x"}
    X, _ = table(tmp_path / "server" / "test.csv")
    features = torch.tensor(loaded(tmp_path).predict(X).to_numpy(), dtype=torch.float64)
    assert features.shape[1] == 5
    head = shown_in_the_docs("glob", tmp_path / "south", monkeypatch)["head"]
    assert torch.equal(head, there["south"]._runner.saved()["Y"][0])
    weight, bias = head.split([10, 2])
    scores = features @ weight.view(2, 5).T + bias
    problem = there["south"]._part.context.problem
    x = trained(tmp_path)["x"]
    raw = torch.tensor(X.to_numpy(dtype=np.float32))[:, :, None, None]
    expected = problem.model.apply_halves(x, head, problem.data.scaled(raw))
    torch.testing.assert_close(scores, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(3,), (4, 4), (3, 4, 5), (2, 4, 4)])
@pytest.mark.parametrize("kind", [np.float32, np.uint8])
def test_samples_of_every_form_are_prepared_as_in_training(shape, kind):
    """The request's form and the training's scaling give the same inputs; a feature that never varies in the server's
    validation set keeps its sign alone."""
    from pipeline.tracking import served

    generator = np.random.default_rng(0)
    draw = lambda: generator.integers(1, 200, (12, *shape)).astype(kind)  # noqa: E731
    X, y = draw(), np.arange(12) % 2
    if shape == (3,):
        X[:, 1] = 7
    other = draw()
    data = FederatedData.from_arrays([(other, y)], (X, y), (other, y), classes=2, kinds=["unknown"])
    columns = ["a", "b", "c"] if shape == (3,) else []
    for names in {(), tuple(columns)}:
        form = model.taken(data, list(names), list(shape))
        features = served._module(form.artifacts["features"]) if form.artifacts else None
        request = pd.DataFrame(other, columns=list(names)) if names else other
        if form.note["kind"] == "images" and len(shape) == 3:
            request = np.moveaxis(other, 1, 3) if shape[0] == 3 else None
            if request is None:
                return  # of two channels: no picture
        X_served = served.PREPARE[form.note["kind"]](form.note | {"record": form.note.get("record")}, request, features)
        torch.testing.assert_close(X_served, data.scaled(data.test_images), rtol=1e-5, atol=1e-6)
        assert form.inputs.shape[1:] == data.test_images.shape[1:]


def test_without_mlflow_a_run_ends_with_a_line(tmp_path, exports, monkeypatch, capsys):
    real = builtins.__import__

    def absent(name, *more, **keywords):
        if name.partition(".")[0] == "mlflow":
            raise ImportError("No module named 'mlflow'")
        return real(name, *more, **keywords)

    there = transport(plain_sites(tmp_path))
    monkeypatch.setattr(builtins, "__import__", absent)
    summary = run(tmp_path, params(), there)
    monkeypatch.undo()
    assert "test accuracy" in summary
    assert "models/ holds no MLflow model (No module named 'mlflow'). Fix: " in capsys.readouterr().err
    with (tmp_path / "server" / "results" / "client_weights.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 4
