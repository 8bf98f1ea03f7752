"""A copy of the project as a user has it after `make setup`, and what a person types in it."""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
ROUNDS = 24


class Project:
    """A copy of the work tree with its own git history, tracker and DVC cache; runs commands and keeps their output."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def fresh(cls, folder: Path) -> Project:
        """From the work tree: no results, a small quick model, few rounds."""
        listed = subprocess.run(
            ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
        )
        for name in listed.stdout.splitlines():
            if name != "dvc.lock" and not name.startswith("results/") and (ROOT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, folder / name)
        (folder / ".venv").symlink_to(BIN.parent)
        project = cls(folder)
        project.edit("rounds: 500", f"rounds: {ROUNDS}", "eval_every: 25", "eval_every: 8")
        project.edit("checkpoint_every: 50", "checkpoint_every: 5", "name: auto #", "name: linear #")
        project.git("init", "-q", "-b", "main")
        project.commit()
        return project

    def copy(self, folder: Path, store: Path) -> Project:
        """The same with an empty tracker of its own (a tracker's records hold absolute paths)."""
        shutil.copytree(self.folder, folder, symlinks=True, ignore=shutil.ignore_patterns("mlflow.db*", "mlartifacts"))
        shutil.copyfile(store, folder / "mlflow.db")
        return Project(folder)

    def git(self, *arguments: str) -> str:
        command = ["git", "-c", "user.name=test", "-c", "user.email=test@example.org", *arguments]
        return subprocess.run(command, cwd=self.folder, check=True, capture_output=True, text=True).stdout

    def commit(self) -> None:
        self.git("add", "-A")
        self.git("commit", "-qm", "as it is")

    def edit(self, *pairs: str) -> None:
        """Replace old by new, in params.yaml, pair by pair."""
        path = self.folder / "params.yaml"
        text = path.read_text()
        for old, new in zip(pairs[::2], pairs[1::2], strict=True):
            assert old in text, old
            text = text.replace(old, new, 1)
        path.write_text(text)

    def environment(self, **more: str) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("DVC_", "MLFLOW_", "PYTEST_", "PYTHONDONT"))}
        return kept | {"DVC_NO_ANALYTICS": "1", "OMP_NUM_THREADS": "1", "MLFLOW_DISABLE_TELEMETRY": "true"} | more

    def run(self, *command: str, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, cwd=self.folder, env=self.environment(**more), capture_output=True, text=True, timeout=300
        )

    def python(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.run(sys.executable, *arguments)

    def dvc(self, *arguments: str, ok: bool = True, **more: str) -> str:
        """Both streams of a dvc command that is expected to end well, or not."""
        done = self.run(str(BIN / "dvc"), *arguments, **more)
        output = done.stdout + done.stderr
        assert (done.returncode == 0) == ok, output
        return output

    def changed(self) -> list[str]:
        """The stages that the next `dvc repro` would run because of what they read, in its order (not what follows)."""
        return list(json.loads(self.dvc("status", "--json").splitlines()[-1]))

    def rows(self, name: str) -> list[dict[str, str]]:
        with (self.folder / "results" / name).open(newline="") as file:
            return list(csv.DictReader(file))

    def json(self, name: str) -> dict:
        return json.loads((self.folder / name).read_text())


def ran(output: str) -> list[str]:
    """The stages that were run."""
    return [line.split("'")[1] for line in output.splitlines() if line.startswith("Running stage")]
