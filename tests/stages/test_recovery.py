"""Mistakes, damage and death in the middle of a run."""

from __future__ import annotations

import os
import signal
import subprocess
import time

import pytest

from tests.stages.project import BIN, ROUNDS, ran

pytestmark = pytest.mark.slow


def test_a_killed_training_goes_on_where_it_was_saved(project):
    """kill -9 of everything in the middle of train, then a plain `dvc repro`."""
    rounds = 400
    project.edit(f"rounds: {ROUNDS}", f"rounds: {rounds}", "checkpoint_every: 5", "checkpoint_every: 10")
    process = subprocess.Popen(
        [str(BIN / "dvc"), "repro"],
        cwd=project.folder,
        env=project.environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    resume, deadline = project.folder / ".resume", time.monotonic() + 120
    while time.monotonic() < deadline:
        saved = list(resume.glob("*/history.csv"))
        if saved and len(saved[0].read_text().splitlines()) > 40:
            break
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert not (project.folder / "results" / "history.csv").exists()
    output = project.dvc("repro")
    assert "going on from the last save" in output
    resumed = project.rows("history.csv")
    assert [int(row["round"]) for row in resumed] == list(range(rounds + 1))
    assert not list(resume.glob("*/state.ckpt"))
    output = project.dvc("repro", "--force", "--single-item", "train")
    assert "starting afresh" in output
    whole = project.rows("history.csv")
    for a, b in zip(resumed, whole, strict=True):
        assert {k: v for k, v in a.items() if k != "seconds"} == {k: v for k, v in b.items() if k != "seconds"}


@pytest.mark.parametrize(
    ("pair", "parts"),
    [
        ((f"rounds: {ROUNDS}", f"roundz: {ROUNDS}"), ["train.roundz", "Did you mean train.rounds?"]),
        (("algorithm: primal_dual", "algorithm: primal"), ["algorithm", "primal_dual"]),
        (("validation_per_label: auto", "validation_per_label: 500"), ["partition.validation_per_label", "500"]),
        (("name: linear", "name: no.such.network"), ["model.name", "no.such.network"]),
        (
            ("curvature_limit: 2.0", "curvature_limit: 0.0", "eta_w: 0.4", "eta_w: 1.0e+38"),
            ["no longer finite", "eta_w", "recorded"],
        ),
    ],
)
def test_mistakes_are_answered_in_a_few_lines(project, pair, parts):
    project.edit(*pair)
    output = project.dvc("repro", ok=False)
    complaint = [line for line in output.splitlines() if line.startswith("error:")]
    assert complaint, output
    for part in parts:
        assert part in output
    assert "Traceback" not in output


def test_damaged_data_is_named_and_mended_by_the_next_repro(project):
    labels = project.folder / "data" / "raw" / "digits" / "train_labels.npy"
    labels.chmod(0o644)
    content = bytearray(labels.read_bytes())
    content[-8] ^= 1
    labels.unlink()
    labels.write_bytes(content)
    done = project.python("-m", "stages.partition")
    assert done.returncode == 1
    assert "train_labels.npy is damaged" in done.stderr
    assert "Traceback" not in done.stderr
    output = project.dvc("repro")
    assert "download" in ran(output) or "checking out outputs" in output
    assert project.python("-m", "stages.partition").returncode == 0
