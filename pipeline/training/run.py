"""From parameters and a problem to a trained model: the module, the trainer, the record, the fit."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.utilities.exceptions import SIGTERMException

from pipeline import models
from pipeline.config import own_code
from pipeline.data.sets.registry import TOY
from pipeline.errors import UserError
from pipeline.params import Resolved
from pipeline.params.decides import of_run
from pipeline.problems.base import Problem
from pipeline.sharing import Share
from pipeline.training import saves
from pipeline.training.allocator import keep_freed_memory
from pipeline.training.callbacks import Progress, Recorder, ToDisk
from pipeline.training.history import History, Row
from pipeline.training.module import FederatedBilevel, NotFinite
from pipeline.training.precision import use_tensor_cores
from pipeline.training.processes import Processes, gone
from pipeline.training.resume import ResumeFolder, files_version, fingerprint
from pipeline.training.setup import build_context
from pipeline.training.tasks import Task

HALVINGS = 3
"""How often a run that diverges halves its main step size before it ends."""


def build_module(params: Resolved, problem: Problem, share: Share | None = None) -> FederatedBilevel:
    """The method named in params.yaml on the problem, at round 0."""
    share = share or Share()
    context = build_context(params, problem, share)
    return FederatedBilevel(params.method, context, params.train.rounds, share)


def run_fingerprint(params: Resolved, task: Task) -> str:
    """Names the run by everything that decides what it computes and records."""
    code = [*_own_files(params.algorithm), *_own_files(params.problem)]
    if params.data.name != TOY:
        code += models.source_files(params.model.name)
    return fingerprint(
        of_run(params)
        | {
            "data hash": task.data_hash,
            "partition hash": task.partition_hash,
            "own code": files_version([Path(file) for file in code]),
            "device": task.device.type,
        }
    )


def _own_files(path: str) -> list[Path]:
    """The files of a method or problem of one's own."""
    return own_code.source_files(path) if "." in path else []


def train(
    params: Resolved,
    task: Task,
    folder: ResumeFolder,
    *,
    on_rows: Callable[[list[Row]], None] = lambda rows: None,
    callbacks: tuple[pl.Callback, ...] = (),
    progress: bool = True,
    share: Share | None = None,
    recover: bool = False,
) -> tuple[FederatedBilevel, History]:
    """Train to the last round, going on from the folder's checkpoint if there is one; `kept` of the module is then what
    to save and serve.

    recover: a run that diverges goes on from its last save with half the main step size, up to `HALVINGS` times, and
    then ends there (`diverged` of the module). Otherwise, and where no round was saved, it raises NotFinite (a
    UserError). A termination signal ends the process with code 143, so that a half-trained model does not pass for a
    finished one. share: this process among those of the run; only the first writes. UserError when another one is gone.
    """
    share = share or Share()
    recover = recover and share.ranks == 1
    for halvings in range(HALVINGS + 1):
        module = build_module(params, task.problem, share)
        module.halvings = halvings
        if module.context.screen and share.rank == 0:
            module.context.screen.notice = lambda line: print(f"train: {line}", file=sys.stderr)
        scalars = [*module.algorithm.reports, *module.algorithm.measures]
        history = History(folder.path, task.clean, task.measures, scalars, task.digits)
        recorder = Recorder(
            history,
            task.measure,
            folder,
            eval_every=params.train.eval_every,
            checkpoint_every=params.train.checkpoint_every,
            on_rows=on_rows,
            writes=share.rank == 0,
            recovers=recover,
        )
        shown = [Progress(recorder)] if progress and share.rank == 0 else []
        try:
            _fit(params, task, folder, module, history, recorder, (*shown, *callbacks), share)
        except NotFinite as error:
            if share.rank:
                raise
            if not recover:
                raise NotFinite(f"{error} What was recorded is in {folder.give_up()}.") from None
            kept = folder.keep_record()
            if halvings < HALVINGS:
                main = f"{module.context.hyper.main_step_size} halved"
                print(f"train: {_first(error)} Going on from the last save with {main}.", file=sys.stderr)
            elif not _end_at_last_save(module, history, recorder, folder):
                raise NotFinite(f"{error} What was recorded is in {kept}.") from None
            else:
                print(f"train: {_first(error)} The run ends with the model of its last save.", file=sys.stderr)
                return module, history
        else:
            break
    if module.round < params.train.rounds:
        raise UserError(f"train: stopped after round {module.round} of {params.train.rounds}. Fix: run it again.")
    return module, history


def _fit(
    params: Resolved,
    task: Task,
    folder: ResumeFolder,
    module: FederatedBilevel,
    history: History,
    recorder: Recorder,
    callbacks: tuple[pl.Callback, ...],
    share: Share,
) -> None:
    """From the last save, or from the start, to the last round. Raises NotFinite."""
    prepare_processor(task.device, params.train.precision)
    trainer = quiet_trainer(
        params,
        callbacks=[recorder, *callbacks],
        accelerator="gpu" if task.device.type == "cuda" else "cpu",
        share=share,
    )
    try:
        if share.ranks > 1:
            trainer.strategy.setup_environment()  # now already, so that all agree on where to go on from
        recorder.fresh = not share.first(share.rank == 0 and folder.last_good(history.restore))
        if recorder.fresh and share.rank == 0:
            history.start()
        trainer.fit(
            module,
            range(params.train.rounds),
            ckpt_path=None if recorder.fresh else str(folder.checkpoint),
        )
        module.to(task.device)  # Lightning leaves it on the CPU, whatever it was trained on
        module.put_together()
        module.kept = recorder.best.served(module.round, module.served)
    except RuntimeError as error:
        if share.ranks > 1 and _undelivered(error):
            raise gone(error) from None
        raise
    except SIGTERMException:
        print(
            "train: stopped by a termination signal; the next run goes on from the last save.",
            file=sys.stderr,
        )
        sys.exit(143)


def _end_at_last_save(module: FederatedBilevel, history: History, recorder: Recorder, folder: ResumeFolder) -> bool:
    """The module of a run that diverged as it was when it was last saved; False if that was before the first round."""
    diverged = module.round + 1
    if not folder.last_good(history.restore):
        return False
    save = saves.read_tensors(folder.checkpoint)
    module.on_load_checkpoint(save)
    module.load_state_dict(save["state_dict"])
    recorder.load_state_dict(next(state for state in save["callbacks"].values() if "best" in state))
    module.kept, module.diverged = recorder.best.served(module.round, module.served), diverged
    return module.round > 0


def _first(error: NotFinite) -> str:
    """What went wrong, without the fix."""
    return str(error).split(" Fix:")[0]


def prepare_processor(device: torch.device, precision: str) -> None:
    """How it multiplies, and what makes training faster on it."""
    use_tensor_cores(precision)
    if device.type == "cpu":
        keep_freed_memory()


def _undelivered(error: RuntimeError) -> bool:
    """Whether it is a message between processes that failed."""
    words = str(error).lower()
    return isinstance(error, torch.distributed.DistBackendError) or any(
        word in words for word in ("gloo", "connection closed", "connection reset", "nccl", "timed out")
    )


def quiet_trainer(params: Resolved, *, callbacks: list[pl.Callback], accelerator: str, share: Share) -> pl.Trainer:
    """A Trainer that prints nothing of its own."""
    for name in ("pytorch_lightning", "lightning_fabric"):
        for child in (name, f"{name}.utilities.rank_zero"):
            logging.getLogger(child).setLevel(logging.ERROR)
    for message in (
        r".*LeafSpec.*deprecated.*",
        r".*number of training batches.*",
        r".*torch\.jit\.script.*",
        r".*resuming from a checkpoint that ended before the epoch ended.*",  # a range(rounds) goes on exactly
    ):
        warnings.filterwarnings("ignore", message=message)
    options: dict[str, Any] = {
        "accelerator": accelerator,
        "devices": params.train.devices,
        "num_nodes": params.train.nodes,
        "plugins": [ToDisk()],
        "strategy": Processes() if share.ranks > 1 else "auto",
        # Mixed precision is the network's own affair: what a method computes with vectors stays exact.
        "precision": "64-true" if params.train.precision == "64-true" else "32-true",
        "max_epochs": 1,
        "callbacks": callbacks,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    return pl.Trainer(**options)
