"""What happens around a round: the record, evaluations, saves, and the line a person watches."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.plugins.io import TorchCheckpointIO
from tqdm import tqdm

from pipeline import interruption
from pipeline.training import saves
from pipeline.training.best import Best, selection_of
from pipeline.training.history import History, Row
from pipeline.training.loop import NotFinite, evaluates, row_of
from pipeline.training.module import FederatedBilevel
from pipeline.training.resume import ResumeFolder
from pipeline.training.tasks import Measure


class Recorder(pl.Callback):
    """Writes the history, evaluates every `eval_every` rounds and saves every `checkpoint_every`.

    A save is: history first, checkpoint second (atomically, with the history's checksum), then the listener is called.
    A run killed at any instant goes on from the last save. folder: holds the last two. on_rows: receives the rows of
    each save. writes: False in all but the first process of a run, which take part in saves and write nothing. fresh:
    nothing is saved yet, not even round 0. latest: the newest value of every column. best: the best evaluation so far,
    saved with the rest. recovers: rounds that led to a divergence are taken again, so the listener does not see them.
    """

    def __init__(
        self,
        history: History,
        measure: Measure,
        folder: ResumeFolder,
        *,
        eval_every: int,
        checkpoint_every: int,
        on_rows: Callable[[list[Row]], None] = lambda rows: None,
        writes: bool = True,
        recovers: bool = False,
    ) -> None:
        self.writes, self.fresh, self.recovers = writes, True, recovers
        self.history, self.measure, self.folder = history, measure, folder
        self.eval_every, self.checkpoint_every, self.on_rows = eval_every, checkpoint_every, on_rows
        self.latest: Row = {}
        self.best = Best()
        self._spent, self._since = 0.0, 0.0

    def state_dict(self) -> dict[str, Any]:
        return {"seconds": self.seconds, "latest": self.latest, "best": self.best.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._spent, self.latest = state_dict["seconds"], state_dict["latest"]
        self.best = Best(**state_dict["best"])

    @property
    def seconds(self) -> float:
        """Training time so far, evaluations included, over all the parts of an interrupted run."""
        return self._spent + time.perf_counter() - self._since

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        interruption.reinstall()  # Lightning has put its own handler, which waits for the end of the round
        self._since = time.perf_counter()
        assert isinstance(pl_module, FederatedBilevel)
        if self.fresh:
            self._record(pl_module)
            self._save(trainer)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        assert isinstance(pl_module, FederatedBilevel)
        self._record(pl_module)
        if pl_module.round % self.checkpoint_every == 0 or pl_module.round == pl_module.rounds:
            self._save(trainer)

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """A diverged run keeps its record up to the last finite round, for the eye; it is not to be resumed."""
        if isinstance(exception, NotFinite) and self.writes:
            rows = self.history.flush()
            if not self.recovers:
                self.on_rows(rows)

    def _record(self, module: FederatedBilevel) -> None:
        due = evaluates(module, self.eval_every)
        variables = module.served if due else module.state.variables
        if not self.writes:
            return
        row, weights = row_of(module, variables, self.seconds, self.measure if due else None)
        self.history.append(row, weights)
        self.best.see(module.round, selection_of(row), variables)
        self.latest |= {name: value for name, value in row.items() if value is not None}
        if weights is not None and 0 < self.history.clean.sum() < len(weights):
            self.latest["clean_weight"] = float(weights[self.history.clean].sum())

    def _save(self, trainer: pl.Trainer) -> None:
        rows = self.history.flush() if self.writes else []
        partial = self.folder.note("next.ckpt")
        trainer.save_checkpoint(partial)
        if self.writes:
            self.folder.keep(partial)
            self.on_rows(rows)

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        checkpoint["record"] = self.history.state()


class ToDisk(TorchCheckpointIO):
    """Writes a save straight to its file, where Lightning builds it in memory first and so takes the state twice; with
    its checksum, which is looked at when the save is read."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        saves.write(Path(path), lambda file: torch.save(checkpoint, file))

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        """Tensors and plain values only, whatever is asked for."""
        return saves.read_tensors(Path(path))


class Progress(pl.Callback):
    """One line: round, rate, time left, validation loss, accuracy, weight of the clean clients.

    On a terminal it moves; in a file or a pipe it is a fresh line every ten seconds or so.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        assert isinstance(pl_module, FederatedBilevel)
        live = sys.stderr.isatty()
        self._bar = tqdm(
            total=pl_module.rounds,
            initial=pl_module.round,
            unit="round",
            desc="training",
            mininterval=0.2 if live else 10.0,
            maxinterval=10.0,
            dynamic_ncols=live,
            ascii=not live,
            file=None if live else _Lines(),
            bar_format=None if live else "{desc}: {n_fmt}/{total_fmt} rounds, {rate_fmt}, {remaining} left{postfix}",
        )

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        latest = self.recorder.latest
        measures = (name for name in self.recorder.history.measures if name in latest)
        shown = {name.replace("_", " "): f"{latest[name]:.4g}" for name in measures}
        if "clean_weight" in latest:
            shown["clean weight"] = f"{latest['clean_weight']:.3f}"
        assert isinstance(pl_module, FederatedBilevel)
        screen = pl_module.context.screen
        if screen and screen.left_out:
            shown["left out"] = screen.named(screen.left_out, most=3)
        self._bar.set_postfix(shown, refresh=False)
        self._bar.update()

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._bar.close()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        if hasattr(self, "_bar"):
            self._bar.close()


class _Lines:
    """A stream that turns tqdm's carriage returns into lines."""

    def write(self, text: str) -> int:
        line = text.strip("\r\n ")
        if line:
            sys.stderr.write(line + "\n")
        return len(text)

    def flush(self) -> None:
        sys.stderr.flush()


class StopWhenOrphaned(pl.Callback):
    """Ends training when the process that started it is gone.

    A killed `dvc repro` leaves its stage running; a second `dvc repro` would then train beside it. Only used under DVC.
    parent: process id read as early as possible, since the parent may be gone before training starts.
    """

    def __init__(self, parent: int) -> None:
        self._parent = parent

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.check()

    def check(self) -> None:
        """Raises SystemExit once that process is gone."""
        if os.getppid() != self._parent:
            raise SystemExit("train: the dvc process that started this training is gone; stopping (it can be resumed).")
