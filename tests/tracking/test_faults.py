"""A tracker that is slow, answers 500, has a locked database, or is made by two clones at once."""

from __future__ import annotations

import http.server
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from pipeline.config.sections import Tracking
from pipeline.tracking import store
from pipeline.tracking.live import LiveRun
from tests.report.synthetic import Synthetic

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*noload.*"),
    pytest.mark.filterwarnings("ignore:.*Any type hint is inferred.*"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


@contextmanager
def serving(seconds: float, code: int) -> Iterator[str]:
    """An address at which every call is answered after so long with that code."""
    over = threading.Event()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            over.wait(seconds)
            self.send_response(code)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_POST = do_GET  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        over.set()
        server.shutdown()


def trained(made: Synthetic, uri: str, seconds: float) -> float:
    """Report a whole run; how long training waited, before it waits at its end."""
    live, begun = LiveRun.open(Tracking(uri=uri), made.folder, made.record), time.monotonic()
    for row in made.rows():
        live.report([row])
    waited = time.monotonic() - begun
    live.finish("FINISHED", seconds=seconds)
    return waited


@pytest.fixture
def made(tmp_path: Path) -> Synthetic:
    return Synthetic(tmp_path)


def test_a_slow_tracker_does_not_stall_training(made: Synthetic, capfd: pytest.CaptureFixture[str]) -> None:
    """Thirty seconds for every call."""
    with serving(30.0, 200) as uri:
        assert trained(made, uri, seconds=1.0) < 0.5
    said = capfd.readouterr().err.strip().splitlines()
    assert len(said) == 1
    assert "tracking: no answer within 1 s" in said[0]


def test_a_tracker_that_answers_500_costs_one_line(
    made: Synthetic, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with serving(0.0, 500) as uri:
        assert trained(made, uri, seconds=20.0) < 0.5
    said = capfd.readouterr().err.strip().splitlines()
    assert len(said) == 1, said
    assert said[0].startswith("tracking: ")
    assert "500" in said[0]
    assert said[0].endswith("make publish")


def test_a_locked_database_costs_one_line(
    project: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Another program holds the database for good."""
    made = Synthetic(project)
    with closing(sqlite3.connect(project / "mlflow.db", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        assert trained(made, "sqlite:///mlflow.db", seconds=2.0) < 0.5
        said = capfd.readouterr().err.strip().splitlines()
        other.execute("ROLLBACK")
    assert len(said) == 1, said
    assert said[0].startswith("tracking: ")
    assert said[0].endswith("make publish")


def test_clones_that_share_a_new_database_wait_for_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two projects, one address: only one at a time is inside."""
    inside, most = [0], [0]

    def slowly(*_: object, **__: object) -> str:
        if threading.current_thread() not in threads:
            return "1"  # what another test has left behind
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        time.sleep(0.2)
        inside[0] -= 1
        return "1"

    store.prepare()
    monkeypatch.setattr("mlflow.MlflowClient", slowly)  # creates the tables
    monkeypatch.setattr(store, "_experiment", slowly)
    uri = Tracking(uri=f"sqlite:///{tmp_path}/shared.db")
    roots = [tmp_path / name for name in ("a", "b")]
    for root in roots:
        root.mkdir()
    threads = [threading.Thread(target=store.connect, args=(uri, root)) for root in roots]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most[0] == 1
