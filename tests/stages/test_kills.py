"""kill -9 at random: 24 times in one training, 12 times elsewhere; the same command again, the same results."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.nightly import NIGHTLY
from tests.stages.project import ROUNDS, Project

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not NIGHTLY, reason="`make nightly` runs it")]
KILLS = 24


def start(project: Project, stage: str) -> subprocess.Popen[bytes]:
    command, quiet = [sys.executable, "-m", f"stages.{stage}"], subprocess.DEVNULL
    return subprocess.Popen(command, cwd=project.folder, env=project.environment(), stdout=quiet, stderr=quiet)


def test_a_training_killed_again_and_again_ends_as_if_it_had_not_been(project: Project) -> None:
    rounds, generator, killed_at = 1500, random.Random(0), []
    project.edit(f"rounds: {ROUNDS}", f"rounds: {rounds}", "checkpoint_every: 5", "checkpoint_every: 10")
    assert project.python("-m", "stages.check").returncode == 0

    def recorded() -> int:
        return sum(file.read_bytes().count(b"\n") for file in project.folder.glob(".resume/*/history.csv"))

    for _ in range(KILLS):
        process, least = start(project, "train"), recorded() + generator.randrange(60)
        while recorded() <= least and process.poll() is None:
            time.sleep(0.005)
        time.sleep(generator.random() / 50)  # anywhere within a round, or a save
        process.kill()
        assert process.wait() == -9
        killed_at.append(recorded())
    done = project.python("-m", "stages.train")
    assert done.returncode == 0, done.stderr
    assert "going on from the last save" in done.stderr
    print("killed at", killed_at)
    resumed, model = project.rows("history.csv"), (project.folder / "models" / "model.pt").read_bytes()
    assert not list(project.folder.glob(".resume/*/state.ckpt"))
    assert project.python("-m", "stages.train").returncode == 0
    assert (project.folder / "models" / "model.pt").read_bytes() == model
    for a, b in zip(resumed, project.rows("history.csv"), strict=True):
        assert a | {"seconds": ""} == b | {"seconds": ""}


@pytest.mark.parametrize("stage", ["check", "download", "partition", "evaluate"])
def test_a_stage_that_is_killed_runs_again_to_the_same_files(project: Project, stage: str) -> None:
    generator, kills = random.Random(stage), 0
    made = {"check": "data/checked.txt", "download": "data/raw", "partition": "data/federated", "evaluate": "results"}
    out, history = project.folder / made[stage], project.folder / "results" / "history.csv"
    assert history.exists()
    begun = time.monotonic()
    assert start(project, stage).wait() == 0
    takes, good = time.monotonic() - begun, _files(out)
    assert good
    while kills < KILLS // 8:
        if stage != "evaluate":  # whose folder holds what training left
            shutil.rmtree(out) if out.is_dir() else out.unlink()
        process = start(project, stage)
        time.sleep(takes * generator.uniform(0.2, 1))
        process.kill()
        kills += process.wait() == -9
        assert start(project, stage).wait() == 0
        assert _files(out) == good


def _files(out: Path) -> dict[str, bytes]:
    """Without pages and pictures, which say when they were made, and what the tracker calls the run."""
    files = sorted(out.rglob("*")) if out.is_dir() else [out]
    return {
        path.name: path.read_bytes()
        for path in files
        if path.suffix in {".csv", ".json", ".npy", ".npz", ".txt"} and path.name != "mlflow_run.json"
    }
