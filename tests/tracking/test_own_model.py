"""The served model of a user's own table or arrays takes raw rows, and answers as the trained network."""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from pipeline.problems.images import logits, served_network
from pipeline.tracking.model import save_model
from pipeline.training.setup import build_problem
from stages.evaluate import answers, taken
from tests.data.own.making import CPU, made, table

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*noload.*"),
    pytest.mark.filterwarnings("ignore:.*Any type hint is inferred.*"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


class Made:
    """A network with its initial parameters, saved to be served, and what it should answer."""

    def __init__(self, folder: Path, **keys: Any) -> None:
        params, raw, partition = made(folder, **keys)
        self.problem = build_problem(params, raw, partition, CPU)
        self.variables = {"w": self.problem.model.initial(3)}
        self.folder = folder / "mlflow"
        shown = answers(params, self.problem, partition)
        save_model(
            served_network(self.problem, self.variables), self.folder, lambda: taken(raw, self.problem.data), shown
        )

    def load(self) -> Any:
        import mlflow

        return mlflow.pyfunc.load_model(str(self.folder))

    def expected(self) -> np.ndarray:
        """Of the test set."""
        data = self.problem.data
        found = logits(self.problem.model, data, self.variables["w"], data.test_images)
        return (found.softmax(1) if data.classes else found.double() * data.unit.spread + data.unit.shift).numpy()


def frames(label: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Rows of the clients and of the test set, with dates, and whole numbers that are never missing."""
    whole = table()
    whole["since"] = pd.to_datetime("2020-01-01") + pd.to_timedelta(whole["person"] * 36, unit="h")
    whole["smokes"] = whole["person"] % 3 == 0
    whole = whole.drop(columns="score" if label == "label" else "label")
    return whole.iloc[:250], whole.iloc[250:]


def saved(folder: Path, label: str) -> Made:
    clients, test = frames(label)
    place = folder / "table"
    place.mkdir()
    clients.to_csv(place / "clients.csv", index=False)
    test.to_csv(place / "test.csv", index=False)
    keys = {"data__name": "table", "data__path": str(place), "data__label": label, "data__client": "place"}
    return Made(folder, **keys)


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return saved(tmp_path_factory.mktemp("classes"), "label")


@pytest.mark.parametrize("label", ["label", "score"])
def test_raw_rows_are_answered(tmp_path: Path, label: str) -> None:
    found = saved(tmp_path, label)
    model, test = found.load(), frames(label)[1]
    names = model.metadata.get_input_schema().input_names()
    assert names == ["age", "job", "person", "since", "smokes"]
    got = model.predict(test)
    assert list(got.columns) == (["ja", "nein"] if label == "label" else ["score"])
    np.testing.assert_allclose(got, found.expected(), rtol=1e-4, atol=1e-5)
    example = model.input_example
    assert list(example.columns) == names
    assert example["age"].isna().tolist() == [False, True]
    assert len(model.predict(example)) == 2
    # One row, other types, other order: the same row.
    row = test.iloc[[4]]
    for same in (
        row[row.columns[::-1]],
        row.astype({"job": "category", "person": float}),
        row.astype(object),
        row.astype({"since": str, "smokes": str}),
        row.astype({"person": str}),
    ):
        np.testing.assert_allclose(model.predict(same), got.iloc[[4]], rtol=1e-5)
    for empty in (None, np.nan, "?"):
        np.testing.assert_allclose(
            model.predict(row.assign(job=empty, age=empty)), model.predict(row.assign(job=None, age=np.nan)), rtol=1e-5
        )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"job": "pilot"}, "data: column 'job' holds 'pilot', which no client has. Fix: one of 'clerk', "),
        ({"job": None, "age": "old"}, "data: column 'age' holds texts, such as 'old', where the clients' rows hold nu"),
        ({"since": "soon"}, "data: column 'since' holds texts, such as 'soon', where .* dates"),
        ({"age": np.inf}, "infinite"),
        ({"person": ...}, "data: there is no column 'person'. Fix: add it; its cells may be empty."),
    ],
)
def test_what_does_not_fit_is_refused_in_a_line(classes: Made, change: dict[str, Any], said: str) -> None:
    rows = frames("label")[1].head(3).assign(**change)
    rows = rows.drop(columns=[name for name, value in change.items() if value is ...])
    with pytest.raises(Exception, match=said) as caught:
        classes.load().predict(rows)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("shape", "dtype", "classed"),
    [((5,), "float64", True), ((5,), "float32", False), ((12, 12, 3), "float32", True), ((8, 8), "uint8", False)],
)
def test_arrays_of_their_own_shape(tmp_path: Path, shape: tuple[int, ...], dtype: str, classed: bool) -> None:
    random = np.random.default_rng(0)

    def samples(m: int) -> tuple[np.ndarray, np.ndarray]:
        X = random.normal(100, 20, (m, *shape)).astype(dtype)
        if dtype == "float64":
            X[::5, 1] = np.nan
        y = np.nan_to_num(X.reshape(m, -1)).mean(1)
        return X, (y > 100).astype(int) if classed else y

    (X, y), (X_test, y_test) = samples(90), samples(20)
    path = tmp_path / "own.npz"
    np.savez(path, X=X, y=y, client=np.repeat(["Ulm", "Köln", "Graz"], 30), X_test=X_test, y_test=y_test)
    found = Made(tmp_path, data__name="arrays", data__path=str(path), model__name="mlp")
    model = found.load()
    got = model.predict(X_test)
    assert list(got.columns) == (["0", "1"] if classed else ["y"])
    np.testing.assert_allclose(got, found.expected(), rtol=1e-4, atol=1e-4)
    schema = model.metadata.get_input_schema()
    if dtype != "uint8":  # raw images of any size
        assert [(each.type, each.shape) for each in schema.inputs] == [(np.dtype(dtype), (-1, *shape))]
        assert model.predict(model.input_example).shape == got.iloc[:2].shape
        with pytest.raises(Exception, match=r"Shape of input|shape"):
            model.predict(X_test[:, :3])


@pytest.fixture
def server(classes: Made, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The app that `mlflow models serve` runs, on a port of this machine."""
    import uvicorn
    from mlflow.pyfunc import scoring_server

    monkeypatch.setenv("_MLFLOW_IS_IN_SERVING_ENVIRONMENT", "true")  # set by init; removed again here
    app = scoring_server.init(classes.load())
    running = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
    thread = threading.Thread(target=running.run)
    thread.start()
    while not running.started:
        assert thread.is_alive()
        time.sleep(0.02)
    yield f"http://127.0.0.1:{running.servers[0].sockets[0].getsockname()[1]}"
    running.should_exit = True
    thread.join(20)


def test_mlflow_serves_it(classes: Made, server: str) -> None:
    rows = frames("label")[1].drop(columns="label")
    records = json.loads(rows.to_json(orient="records", date_format="iso"))
    split = {"columns": list(rows.columns), "data": [list(each.values()) for each in records]}
    for body in ({"dataframe_records": records}, {"dataframe_split": split}, {"inputs": records}):
        status, reply = _asked(server, body)
        assert status == 200
        got = [list(row.values()) for row in reply["predictions"]]
        np.testing.assert_allclose(got, classes.expected(), rtol=1e-4, atol=1e-5)
    for change, said in (({"job": "pilot"}, "'pilot', which no client has"), ({"age": "old"}, "'old'")):
        status, reply = _asked(server, {"dataframe_records": [records[0] | change]})
        assert (status, reply["error_code"]) == (400, "INVALID_PARAMETER_VALUE")
        assert said in reply["message"]
        assert "\n" not in reply["message"]
    example = json.loads((classes.folder / "serving_input_example.json").read_text())
    assert _asked(server, example)[0] == 200


def _asked(address: str, body: dict[str, Any]) -> tuple[int, Any]:
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{address}/invocations", json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as reply:
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)
