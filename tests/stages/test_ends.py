"""Signals, full disks and secrets: a stage ends in a line, leaves nothing half-written, and writes no credential."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.stages.project import ROUNDS

pytestmark = pytest.mark.slow
SECRET = "-".join(("hunter2", "and", "more"))  # the copy of the project holds this file


def start(project, stage, limit=None):
    """The stage's process, its files no longer than the limit."""
    return subprocess.Popen(
        [sys.executable, "-m", f"stages.{stage}"],
        cwd=project.folder,
        env=project.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=limit and (lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))),
    )


def training(project):
    """A training that has saved something."""
    project.edit(f"rounds: {ROUNDS}", "rounds: 100000")
    assert project.python("-m", "stages.check").returncode == 0
    process, deadline = start(project, "train"), time.monotonic() + 100
    while not list(project.folder.glob(".resume/*/previous.ckpt")) and time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    return process


@pytest.mark.parametrize(
    ("signals", "code", "why"),
    [
        ([signal.SIGTERM], 143, "a termination signal"),
        ([signal.SIGINT], 130, "Ctrl-C"),
        ([signal.SIGINT, signal.SIGINT], 130, "Ctrl-C"),
    ],
)
def test_a_signal_ends_a_training_within_seconds_in_a_line(project, signals, code, why):
    process, begun = training(project), time.monotonic()
    for each in signals:
        process.send_signal(each)
        time.sleep(0.05)
    _, said = process.communicate(timeout=60)
    busy = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))  # processes that wait for each processor
    assert time.monotonic() - begun < 5.5 * busy
    assert process.returncode == code
    assert f"train: stopped by {why}; the next run goes on from the last save." in said
    assert "Traceback" not in said


@pytest.mark.parametrize("delay", [0, 0.2, 0.5, 0.8])
def test_ctrl_c_while_a_stage_is_being_imported(project, delay):
    process, termination = start(project, "evaluate"), 1 << (signal.SIGTERM - 1)
    status = Path(f"/proc/{process.pid}/status")
    while not int(status.read_text().split("SigCgt:")[1].split()[0], 16) & termination:  # as soon as we listen
        assert process.poll() is None, process.communicate()
    time.sleep(delay)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in said
    assert "evaluate: stopped by Ctrl-C; the next run starts this stage again." in said


@pytest.mark.parametrize(
    ("stage", "limit"), [("check", 100), ("download", 2000), ("partition", 2000), ("train", 20_000), ("evaluate", 2000)]
)
def test_a_disk_that_takes_no_more_is_named_in_a_line(project, stage, limit):
    before = {path: path.read_bytes() for path in (project.folder / "results").glob("*.*") if path.is_file()}
    _, said = (process := start(project, stage, limit)).communicate(timeout=100)
    assert process.returncode == 1, said
    complaint = [line for line in said.splitlines() if line.startswith("error:")]
    assert len(complaint) == 1, said
    assert "File too large. Fix: raise the limit" in complaint[0]
    assert "Traceback" not in said
    assert not [path for path in project.folder.rglob("*.partial") if path.is_file() and path.stat().st_size == limit]
    assert all(path.read_bytes() in (content, b"") or path.stat().st_size for path, content in before.items())


def test_no_credential_is_written_or_printed(project):
    """A tracker and a mirror with passwords in their addresses, both dead: files, outs, notes, logs and errors."""
    address = f"http://alice:{SECRET}@127.0.0.1:9"
    project.edit("uri: null", f"uri: {address}/", "mirror: null", f"mirror: {address}/data?token={SECRET}")
    output = []
    for stage in ("check", "train", "evaluate"):
        done = project.python("-m", f"stages.{stage}")
        assert done.returncode == 0, done.stderr
        output.append(done.stdout + done.stderr)
    done = project.python("-m", "pipeline.tracking")
    output.append(done.stdout + done.stderr)
    project.edit("name: digits", "name: mnist")
    done = project.python("-m", "stages.download")
    assert done.returncode == 1
    assert "***@127.0.0.1:9" in done.stderr
    output.append(done.stdout + done.stderr)
    assert SECRET not in "".join(output)
    assert "***@127.0.0.1" in (project.folder / "results" / "mlflow_run.json").read_text()
    for path in project.folder.rglob("*"):
        if path.is_file() and path.name != "params.yaml" and ".git/" not in str(path) and not path.is_symlink():
            assert SECRET.encode() not in path.read_bytes(), path
