"""Results files and what fills them: rows, locks, workers, and with which code."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch
from filelock import FileLock

from experiments import provenance, workers
from experiments.results import append, read
from pipeline.errors import UserError


@pytest.fixture
def path(tmp_path):
    return tmp_path / "results" / "quick.jsonl"


def test_rows_are_read_by_their_keys_and_the_last_of_several_counts(path):
    assert read(path) == {}
    rows = [{"key": "a", "x": 0.1}, {"key": "b", "x": float("inf")}, {"key": "a", "x": 1 / 3}]
    for row in rows:
        append(path, row)
    assert read(path) == {"a": rows[2], "b": rows[1]}
    assert path.read_text().count("\n") == 3


def test_a_line_that_was_cut_off_counts_as_missing_and_is_replaced(path):
    append(path, {"key": "a"})
    append(path, {"key": "b"})
    path.write_bytes(path.read_bytes()[:-3])
    assert list(read(path)) == ["a"]
    append(path, {"key": "c"})
    assert path.read_text() == '{"key":"a"}\n{"key":"c"}\n'
    path.write_bytes(b'{"key":')  # the first row
    append(path, {"key": "a"})
    assert list(read(path)) == ["a"]


def test_any_other_line_that_is_no_row_is_refused(path):
    append(path, {"key": "a"})
    path.write_text('{"name": "a"}\n' + path.read_text())
    with pytest.raises(UserError, match=r"quick.jsonl, line 1 is no row of results. Fix: remove the line"):
        read(path)


def test_processes_take_turns(path):
    """While the file is locked nothing is appended."""
    append(path, {"key": "a"})
    thread = threading.Thread(target=append, args=(path, {"key": "b"}))
    with FileLock(path.with_name(".quick.jsonl.lock")):
        thread.start()
        thread.join(0.3)
        assert list(read(path)) == ["a"]
    thread.join()
    assert list(read(path)) == ["a", "b"]


def runner(cell):
    """Fails for one cell."""
    if cell == "bad":
        raise RuntimeError("no luck")
    return {"value": 0.5, "threads": torch.get_num_threads(), "process": os.getpid()}


@pytest.mark.parametrize("count", [1, 2])
def test_a_failing_cell_is_named_and_the_others_go_on(path, count, capsys):
    """Each on one thread, alone in this process or in others."""
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    with pytest.raises(UserError, match=r"1 cells failed: bad\. Fix: run one alone"):
        workers.run_missing({"x": "bad", "y": "good", "z": "better"}, 5, path, runner, count)
    assert torch.get_num_threads() == 2
    torch.set_num_threads(threads)
    rows = read(path)
    assert rows.keys() == {"y", "z"}
    assert {row["threads"] for row in rows.values()} == {1}
    assert (os.getpid() in {row["process"] for row in rows.values()}) == (count == 1)
    printed = capsys.readouterr().out
    assert "2 of 5 cells are done, 3 to run" in printed
    assert "bad: failed with RuntimeError: no luck" in printed
    assert "[3/3, about 0 min left]" in printed


SLOW = """
import sys, time
from pathlib import Path
from experiments import workers

def run(cell):
    time.sleep(cell)
    return {"slept": cell}

if __name__ == "__main__":
    workers.run_missing({"a": 0.0, "b": 60.0}, 2, Path(sys.argv[1]), run, 2)
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_what_is_finished_is_kept_when_the_work_is_stopped(path, tmp_path, how):
    """And no worker outlives it."""
    script = tmp_path / "slow.py"
    script.write_text(SLOW)
    environment = os.environ | {"PYTHONPATH": str(provenance.ROOT)}
    process = subprocess.Popen(
        [sys.executable, str(script), str(path)],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        until = time.monotonic() + 60
        while "a" not in read(path) and time.monotonic() < until:
            time.sleep(0.1)
        process.send_signal(how) if how == signal.SIGKILL else os.killpg(process.pid, how)
        process.wait(20)
        until = time.monotonic() + 20
        while _alive(process.pid) and time.monotonic() < until:
            time.sleep(0.1)
        assert not _alive(process.pid)
    finally:
        if _alive(process.pid):
            os.killpg(process.pid, signal.SIGKILL)
    assert list(read(path)) == ["a"]


def _alive(group):
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_code_that_was_changed_is_seen_and_no_page_is_made_of_it(tmp_path, monkeypatch):
    """New and changed files of code count; results, pages and parameters do not."""

    def git(*arguments):
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments], cwd=tmp_path, check=True)

    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    study = tmp_path / "experiments" / "one"
    for file in (tmp_path / "pipeline" / "a.py", study / "more.py", study / "params.yaml"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("1")
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "first")
    clean = provenance.commit()
    assert len(clean) >= 7
    (study / "params.yaml").write_text("2")
    (study / "results.jsonl").write_text("{}")
    provenance.require_clean()
    assert provenance.commit() == clean
    (study / "more.py").write_text("2")
    (tmp_path / "pipeline" / "b.py").write_text("new")
    assert provenance.commit() == f"{clean}-dirty"
    with pytest.raises(UserError, match=r"page is not made, .*\(experiments/one/more.py, pipeline/b.py\).* Fix: com"):
        provenance.require_clean()
