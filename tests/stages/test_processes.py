"""A run in two processes: the numbers of one, and what happens when one of them dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.stages.project import ROUNDS, Project

pytestmark = pytest.mark.slow
LONG = 120


def in_two_processes(project: Project) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "stages.train"],
        cwd=project.folder,
        env=project.environment(),
        stderr=subprocess.PIPE,
        text=True,
    )


def numbers(project: Project) -> list[list[float]]:
    rows = project.rows("history.csv")
    return [[float(cell) for name, cell in row.items() if name != "seconds" and cell] for row in rows]


def agree(project: Project, expected: list[list[float]]) -> None:
    """To rounding: 1e-10 in the first rounds; later the run itself magnifies what sums in another order differ by."""
    for t, (found, row) in enumerate(zip(numbers(project), expected, strict=True)):
        assert found == pytest.approx(row, rel=0, abs=1e-10 if t < 20 else 1e-6)


@pytest.mark.parametrize("algorithm", ["primal_dual", "a_fedpd"])
def test_two_processes_give_the_numbers_of_one_and_survive_a_death(project, algorithm):
    """float64, half of the clients in each round, their answers (their duals) kept by the process that simulates
    them."""
    project.edit("algorithm: primal_dual", f"algorithm: {algorithm}")
    project.edit(f"rounds: {ROUNDS}", f"rounds: {LONG}", "precision: 32-true", "precision: 64-true")
    project.edit("participation: 1.0", "participation: 0.5", "accelerator: auto", "accelerator: cpu")
    assert project.python("-m", "stages.train").returncode == 0
    expected = numbers(project)

    project.edit("devices: 1", "devices: 2")
    process = in_two_processes(project)
    history, deadline = None, time.monotonic() + 120
    while time.monotonic() < deadline and not (history and len(history[0].read_text().splitlines()) > 30):
        history = list((project.folder / ".resume").glob("*/history.csv"))
        time.sleep(0.02)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    companions = [c for c in children if b"stages.train" in Path(f"/proc/{c}/cmdline").read_bytes()]
    assert len(companions) == 1
    os.kill(int(companions[0]), signal.SIGKILL)
    _, words = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "error: another process of this run has ended" in words
    assert "goes on from the last save" in words
    assert "Traceback" not in words

    project.edit("devices: 2", "devices: 1")  # another number of processes may go on
    done = project.python("-m", "stages.train")
    assert done.returncode == 0
    assert "going on from the last save" in done.stderr
    agree(project, expected)

    project.edit("devices: 1", "devices: 2")
    done = project.python("-m", "stages.train")
    assert done.returncode == 0, done.stderr
    agree(project, expected)


def test_a_place_that_disagrees_with_the_parameters_is_refused(project):
    project.edit("devices: 1", "devices: 2")
    done = project.run(sys.executable, "-m", "stages.train", LOCAL_RANK="0", WORLD_SIZE="3")
    assert done.returncode == 1
    assert "makes 2 processes, and 3 were started" in done.stderr
    project.edit("nodes: 1", "nodes: 2")
    done = project.python("-m", "stages.train")
    assert done.returncode == 1
    assert "srun" in done.stderr
    assert "Traceback" not in done.stderr
