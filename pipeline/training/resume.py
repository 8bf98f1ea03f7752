"""Where an interrupted run lies until it is finished: one folder per fingerprint of everything the run depends on.

A checkpoint is only ever continued by a run with the same parameters in use, data, partition, code and device; any
other run starts afresh. The folder is no DVC out (DVC deletes outs before a stage) and is removed when training ends.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

import pipeline
from pipeline.errors import UserError
from pipeline.training import saves

MATHEMATICS = ("data", "methods", "models", "oracles", "problems", "training")
"""Rooms whose code decides what a run computes, besides the modules at the top of the package."""


def fingerprint(depends_on: dict[str, Any]) -> str:
    """A short name for everything that decides what a run computes: the caller's facts, the code, torch's version."""
    facts = depends_on | {"code": _code_version(), "torch": torch.__version__}
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _code_version() -> str:
    root = Path(pipeline.__file__).parent
    files = sorted([*root.glob("*.py"), *(f for room in MATHEMATICS for f in (root / room).rglob("*.py"))])
    return files_version(files)


def files_version(files: list[Path]) -> str:
    """Hash of the contents of some source files."""
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.name.encode() + file.read_bytes())
    return digest.hexdigest()


class ResumeFolder:
    """A context manager: one process at a time holds it. `found`: whether a checkpoint waits inside."""

    def __init__(self, root: Path, name: str, wait: float = 15.0) -> None:
        self.path = root / name
        self._wait = wait

    @property
    def checkpoint(self) -> Path:
        return self.path / "state.ckpt"

    @property
    def previous(self) -> Path:
        """The save before the last one."""
        return self.path / "previous.ckpt"

    @property
    def found(self) -> bool:
        return self.checkpoint.is_file() or self.previous.is_file()

    def keep(self, partial: Path) -> None:
        """A finished save becomes the last one, and the last one the one before."""
        if self.checkpoint.is_file():
            os.replace(self.checkpoint, self.previous)
        os.replace(partial, self.checkpoint)

    def last_good(self, usable: Callable[[dict[str, Any]], str]) -> bool:
        """Whether there is a save to go on from; it then is `checkpoint`, and its record is in order. A damaged one is
        named and set aside, and the one before it taken. usable: what is wrong with a save's record, or nothing."""
        for path in (self.checkpoint, self.previous):
            if not path.is_file():
                continue
            try:
                save = saves.read_tensors(path)
                wrong, after = usable(save["record"]), f" after round {save['federated']['round']}"
            except saves.Damaged as error:
                wrong, after = str(error), ""
            if not wrong:
                if path == self.previous:
                    os.replace(path, self.checkpoint)
                    print(f"train: going on from the save before it,{after}", file=sys.stderr)
                return True
            print(f"train: cannot go on from the save{after}: {wrong}", file=sys.stderr)
            os.replace(path, path.with_suffix(".damaged"))
        if self.found or any(self.path.glob("*.damaged")):
            print("train: starting afresh", file=sys.stderr)
        return False

    def forget(self) -> None:
        """No save to go on from any more."""
        self.checkpoint.unlink(missing_ok=True)
        self.previous.unlink(missing_ok=True)

    def story(self) -> str:
        """One line for the person who waits: does this run go on or start, and why."""
        if self.found:
            return f"train: going on from the last save in {self.path}"
        others = [p.name for p in self.path.parent.glob("*/state.ckpt") if p.parent != self.path]
        if others:
            return (
                f"train: starting afresh; the interrupted run in {self.path.parent} has other parameters, data or code"
            )
        return "train: starting afresh"

    def note(self, name: str) -> Path:
        """A small file that outlives an interruption, such as the tracker's run id."""
        return self.path / name

    def __enter__(self) -> ResumeFolder:
        deadline = time.monotonic() + self._wait
        while not self._locked():
            if time.monotonic() > deadline:
                lock = self.path / "lock"
                owner = (lock.read_text().strip() if lock.is_file() else "") or "?"
                raise UserError(
                    f"train: process {owner} is training with the same parameters. Fix: wait until it ends, or stop it."
                )
            time.sleep(0.2)
        self._lock.truncate(0)
        self._lock.write(str(os.getpid()))
        self._lock.flush()
        return self

    def _locked(self) -> bool:
        """Take the lock, unless another process has it, or had it and has deleted the folder meanwhile."""
        self.path.mkdir(parents=True, exist_ok=True)
        lock = (self.path / "lock").open("a+")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(lock.fileno()).st_ino == (self.path / "lock").stat().st_ino:
                self._lock = lock
                return True
        except (BlockingIOError, FileNotFoundError):
            pass
        lock.close()
        return False

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.close()

    def discard(self) -> None:
        """The run is complete: nothing to resume."""
        shutil.rmtree(self.path, ignore_errors=True)

    @property
    def failed(self) -> Path:
        """Where the record of a run lies that was given up."""
        return self.path.parent / "failed" / f"{self.path.name}-history.csv"

    def keep_record(self) -> Path:
        """A copy of a record that ends in divergence, for the eye. Returns where it is."""
        self.failed.parent.mkdir(exist_ok=True)
        shutil.copyfile(self.path / "history.csv", self.failed)
        return self.failed

    def give_up(self) -> Path:
        """The run can never be completed (it diverged): no checkpoint to go on from, but the record stays.

        Returns where the record is.
        """
        self.failed.parent.mkdir(exist_ok=True)
        os.replace(self.path / "history.csv", self.failed)
        self.discard()
        return self.failed
