"""The tracker knows what the disk knows, once; and a bad tracker costs a warning and nothing else."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.config.sections import Tracking
from pipeline.errors import UserError
from pipeline.masking import masked
from pipeline.params.decides import params_in_use
from pipeline.report.record import RunInfo, nested
from pipeline.tracking import metrics
from pipeline.tracking.live import LiveRun, log_points
from pipeline.tracking.publish import publish
from pipeline.tracking.store import Store, connect, resolve_uri
from pipeline.tracking.worker import in_a_line
from tests.report.synthetic import Synthetic

pytestmark = [
    # MLflow's own code, at import and at the first query.
    pytest.mark.filterwarnings("ignore:.*noload.*"),
    pytest.mark.filterwarnings("ignore:.*Any type hint is inferred.*"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


@pytest.fixture
def made(project: Path) -> Synthetic:
    synthetic = Synthetic(project)
    synthetic.write()
    return synthetic


def steps(store: Store, run_id: str | None, name: str) -> list[int]:
    return [m.step for m in store.client.get_metric_history(run_id, name)]


def send(made: Synthetic, tracking: Tracking, seconds: float = 60.0) -> tuple[RunInfo, str | None]:
    return publish(made.folder / "results", made.folder / "models", tracking, made.folder, seconds=seconds)


# ------------------------------------------------------------------------------------------- healthy


def test_train_then_evaluate_are_one_run(made: Synthetic) -> None:
    live = LiveRun.open(Tracking(), made.folder, made.record)
    rows = made.rows()
    live.report(rows[:20])
    live.report(rows[20:])
    info = live.finish("FINISHED")
    assert info.run_id is not None
    replace(made.record, run=info).save(made.folder / "models" / "training.json")
    published, error = send(made, Tracking())
    assert (published.run_id, published.experiment, error) == (info.run_id, info.experiment, None)

    store = connect(Tracking(), made.folder)
    found = store.client.get_run(info.run_id)
    assert found.info.status == "FINISHED"
    assert found.data.params["algorithm"] == "primal_dual"
    assert found.data.tags["partition_hash"] == "p" * 16
    assert "97.78 %" in found.data.tags["mlflow.note.content"]
    assert found.data.metrics["clean_weight"] > 0.98
    assert steps(store, info.run_id, "client_weight/03") == list(range(41))
    assert steps(store, info.run_id, "test_accuracy") == [0, 10, 20, 30, 40]
    assert {"cost/hvps", "train/dual_norm", "validation_loss", "test_loss"} <= set(found.data.metrics)
    assert found.inputs.dataset_inputs[0].dataset.name == "digits"
    names = {f.path for f in store.client.list_artifacts(info.run_id)}
    assert {"metrics.json", "history.csv", "client_weights.json", "params.yaml", "environment.json"} <= names
    assert json.loads((made.folder / "results" / "mlflow_run.json").read_text())["run_id"] == info.run_id
    assert (made.folder / "mlartifacts" / info.run_id).is_dir()


def test_resumed_run_continues_without_doubled_points(made: Synthetic) -> None:
    note, rows = made.folder / ".resume" / "run.json", made.rows()
    note.parent.mkdir()
    first = LiveRun.open(Tracking(), made.folder, made.record, note)
    first.report(rows[:25])
    killed = first.finish("KILLED")
    second = LiveRun.open(Tracking(), made.folder, made.record, note)
    second.report(rows[15:])  # the last save was at round 14
    assert second.finish("FINISHED") == killed
    store = connect(Tracking(), made.folder)
    assert steps(store, killed.run_id, "client_weight/00") == list(range(41))
    assert len(store.client.search_runs([store.experiment_id])) == 1


@pytest.mark.parametrize("change", ["unknown", "deleted", "other parameters"])
def test_a_run_that_cannot_be_continued_is_left_alone(made: Synthetic, change: str) -> None:
    note = made.folder / "run.json"
    first = LiveRun.open(Tracking(), made.folder, made.record, note).finish("FINISHED")
    changed = made.record
    if change == "unknown":
        replace(first, run_id="0" * 32).save(note)
    elif change == "deleted":
        connect(Tracking(), made.folder).client.delete_run(first.run_id)
    else:
        changed = replace(changed, params={**changed.params, "seed": 1})
    second = LiveRun.open(Tracking(), made.folder, changed, note).finish("FINISHED")
    assert second.run_id not in (None, first.run_id)
    assert RunInfo.load(note) == second


def test_publishing_again_changes_nothing(made: Synthetic) -> None:
    first, _ = send(made, Tracking())
    second, _ = send(made, Tracking())
    assert first == second
    store = connect(Tracking(), made.folder)
    assert len(store.client.search_runs([store.experiment_id])) == 1
    assert steps(store, first.run_id, "client_weight/00") == list(range(41))
    assert steps(store, first.run_id, "clean_weight") == [40]
    table = made.folder / "mlartifacts" / str(first.run_id) / "artifacts" / "client_weights.json"
    assert len(json.loads(table.read_text())["data"]) == 10


def test_a_store_that_never_saw_the_run_gets_all_of_it(made: Synthetic) -> None:
    send(made, Tracking())
    other = Tracking(uri="sqlite:///elsewhere.db", experiment="moved")
    info, error = send(made, other)
    assert error is None
    assert info.experiment == "moved"
    assert steps(connect(other, made.folder), info.run_id, "client_weight/09") == list(range(41))
    assert (made.folder / "elsewhere.db").is_file()


# --------------------------------------------------------------------------------------- unhealthy


@pytest.fixture
def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def silent_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Accepts connections and never answers."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "4")
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(16)
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def test_unreachable_tracker_costs_a_warning(
    made: Synthetic, closed_port: int, capfd: pytest.CaptureFixture[str]
) -> None:
    tracking, start = Tracking(uri=f"http://127.0.0.1:{closed_port}"), time.monotonic()
    live = LiveRun.open(tracking, made.folder, made.record)
    live.report(made.rows())
    assert live.finish("FINISHED").run_id is None
    info, error = send(made, tracking)
    assert time.monotonic() - start < 15
    assert info.run_id is None
    assert error is not None
    warnings = capfd.readouterr().err.strip().splitlines()
    assert len(warnings) == 2  # one of the training, one of the evaluation
    assert all(line.startswith("tracking: ") and line.endswith("make publish") for line in warnings)
    assert RunInfo.load(made.folder / "results" / "mlflow_run.json") == info


def test_silent_tracker_does_not_stall_training(
    made: Synthetic, silent_server: str, capfd: pytest.CaptureFixture[str]
) -> None:
    live = LiveRun.open(Tracking(uri=silent_server), made.folder, made.record)
    start = time.monotonic()
    for row in made.rows():
        live.report([row])
    assert time.monotonic() - start < 0.5
    live.finish("FINISHED", seconds=1.0)
    assert time.monotonic() - start < 2.5
    assert capfd.readouterr().err.count("tracking: no answer within 1 s") == 1


def test_tracker_that_dies_in_mid_run(
    made: Synthetic, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    alive = threading.Event()
    alive.set()
    real = log_points

    def dying(*arguments: object) -> None:
        if not alive.is_set():
            raise ConnectionError("the tracker is gone")
        real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr("pipeline.tracking.live.log_points", dying)
    live, rows = LiveRun.open(Tracking(), made.folder, made.record), made.rows()
    live.report(rows[:10])
    live._worker.do(alive.clear)
    for start in range(10, 41, 10):
        live.report(rows[start : start + 10])
    info = live.finish("FINISHED")
    assert capfd.readouterr().err.count("tracking: ConnectionError: the tracker is gone; the run goes on") == 1

    replace(made.record, run=info).save(made.folder / "models" / "training.json")
    published, error = send(made, Tracking())  # it is back
    assert (published.run_id, error) == (info.run_id, None)
    assert steps(connect(Tracking(), made.folder), info.run_id, "client_weight/00") == list(range(41))


def test_nothing_to_publish_is_said_plainly(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nothing to publish yet"):
        publish(tmp_path / "results", tmp_path / "models", Tracking(), tmp_path)


def test_two_processes_may_create_the_store_at_once(made: Synthetic) -> None:
    (made.folder / "mlflow.db").unlink()
    opened: list[str] = []
    threads = [
        threading.Thread(target=lambda: opened.append(connect(Tracking(), made.folder).experiment_id)) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(opened) == 2
    assert len(set(opened)) == 1


# ------------------------------------------------------------------------------------------- parts


def test_relative_databases_belong_to_the_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve_uri(Tracking(), tmp_path) == f"sqlite:///{tmp_path}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///sub/x.db")
    assert resolve_uri(Tracking(), tmp_path) == f"sqlite:///{tmp_path}/sub/x.db"
    assert resolve_uri(Tracking(uri="http://host:1"), tmp_path) == "http://host:1"


def test_no_password_is_written_or_printed() -> None:
    shown = masked("at 'postgresql://me:p%40ss@db:5432/x?sslmode=on&api_token=abc&y=1' and http://h/p@q")
    assert shown == "at 'postgresql://***@db:5432/x?sslmode=on&api_token=***&y=1' and http://h/p@q"
    assert masked("sqlite:////home/me@x/mlflow.db") == "sqlite:////home/me@x/mlflow.db"
    live = LiveRun(Tracking(uri="http://user:secret@127.0.0.1:9"), Path(), Synthetic(Path()).record, None)
    assert live.info.tracking_uri == "http://***@127.0.0.1:9"
    assert "secret" not in in_a_line(ValueError("no answer from http://user:secret@127.0.0.1:9"))


def test_points_are_thinned_but_evaluations_and_the_end_are_kept() -> None:
    rows = [{"round": r, "hvps": r} | ({"validation_loss": 0.5} if r == 7 else {}) for r in range(1000)]
    found = metrics.points(rows, rounds=999)
    assert metrics.thin(999) == 4
    at = [step for name, _, step in found if name == "cost/hvps"]
    assert 7 in at
    assert at[-1] == 999
    assert len(at) == 252
    assert [p for p in found if p[0] == "validation_loss"] == [("validation_loss", 0.5, 7)]


def test_metric_names() -> None:
    columns = ["round", *(f"client_weight_{i}" for i in range(10))]
    assert metrics.metric_name("client_weight_3", columns) == "client_weight/03"
    assert metrics.metric_name("client_weight_q25", ["client_weight_q25"]) == "client_weight/q25"
    assert metrics.metric_name("seconds", columns) == "cost/seconds"
    assert metrics.metric_name("dual_norm", columns) == "train/dual_norm"
    assert metrics.points([{"round": 0, "hvps": float("nan"), "gradients": float("inf")}], 1) == []


def test_params_in_use() -> None:
    flat = {"algorithm": "a", "algorithms.a.eta": 1, "algorithms.b.eta": 2, "tracking.uri": None, "seed": 3}
    flat |= {"partition.scheme": "lead", "partition.lead.k": 1, "partition.iid.k": 2, "partition.share": 0.5}
    flat |= {"problem": "p", "problems.p.l2": 0.0, "problems.toy.noise": 0.0, "model.name": "linear"}
    kept = params_in_use(flat)
    unused = {"algorithms.b.eta", "tracking.uri", "partition.iid.k", "problems.toy.noise"}
    assert set(flat) - set(kept) == unused
    kept = params_in_use(flat | {"problem": "toy"})
    assert not any(name.startswith(("partition.", "model.", "problems.p.")) for name in kept)
    assert "problems.toy.noise" in kept
    assert nested({"a.b": 1, "a.c": 2, "d": 3}) == {"a": {"b": 1, "c": 2}, "d": 3}


def test_the_list_opens_with_accuracy_and_what_runs_changed(made: Synthetic) -> None:
    import dataclasses

    for own in ({}, {"seed": 3}, {"algorithms.primal_dual.gamma": 1.0}):
        params = {**made.record.params, "data.name": "digits", "problem": "client_weighting", **own}
        dataclasses.replace(made.record, params=params).save(made.folder / "models" / "training.json")
        assert send(made, Tracking())[1] is None
    store = connect(Tracking(), made.folder)
    tags = store.client.get_experiment(store.experiment_id).tags
    columns = json.loads(tags["mlflow.sharedViewState.fedbilevel"])["selectedColumns"]
    assert columns[:2] == ["metrics.`accuracy/test`", "metrics.`clean_weight`"]
    assert sorted(columns)[0] == columns[0]  # the page sorts them by name
    (run, *_) = store.client.search_runs([store.experiment_id])
    assert run.data.metrics["accuracy/test"] == run.data.metrics["test_accuracy"] == 0.9778
    assert {"params.`seed`", "params.`algorithms.primal_dual.gamma`", "params.`train.rounds`"} <= set(columns)
    assert len(columns) == len(set(columns))
    steps_first = {name for name, _, _ in metrics.points([{"round": 0, "test_accuracy": 0.5}], 1)}
    assert steps_first == {"test_accuracy", "accuracy/test"}


def test_clients_are_recorded_by_name(made: Synthetic) -> None:
    """Characters that MLflow refuses are replaced; names that become the same keep their numbers."""
    names = ["Köln", "St. Mary <3", "a/b", "a:b", *(f"site {i}" for i in range(6))]
    made.record = replace(made.record, clients=names)
    made.record.save(made.folder / "models" / "training.json")
    table = (made.folder / "results" / "client_weights.csv").read_text()
    (made.folder / "results" / "client_weights.csv").write_text(table.replace("client 1,", "St. Mary <3|,", 1))
    info, error = send(made, Tracking())
    assert error is None
    run = connect(Tracking(), made.folder).client.get_run(info.run_id)
    recorded = {name for name in run.data.metrics if name.startswith("client_weight/")}
    assert recorded == {f"client_weight/{n}" for n in ("Köln", "St. Mary _3", "a_b 2", "a_b 3", *names[4:])}
    assert r"| St. Mary &lt;3\| |" in run.data.tags["mlflow.note.content"]
