"""Stage 4: train the model and learn the weights; goes on from the last save if an earlier attempt was interrupted."""

import os
import sys
from dataclasses import replace
from typing import Any

from pipeline.command import PARENT, Paths, run
from pipeline.config.spec import dotted
from pipeline.data.datasets import load
from pipeline.params import Params, Resolved
from pipeline.params.resolve import resolve
from pipeline.report.record import checksums, describe
from pipeline.sharing import Share
from pipeline.tracking.live import live_run
from pipeline.training.callbacks import StopWhenOrphaned
from pipeline.training.processes import companions, only_the_first_speaks, share_of
from pipeline.training.replicates import replicate_weights
from pipeline.training.resume import ResumeFolder
from pipeline.training.run import run_fingerprint, train
from pipeline.training.saves import save_variables
from pipeline.training.setup import device_for
from pipeline.training.tasks import load_task


def train_stage(params: Params, paths: Paths) -> None:
    share = share_of(params.train)
    with companions(share):
        train_share(resolved(params, paths), paths, share)


def resolved(params: Params, paths: Paths) -> Resolved:
    """Without any `auto`; of a user's own data that takes a look at them."""
    if params.data.dataset.info or params.data.dataset.problem:
        return resolve(params)
    found = resolve(params, load(paths.raw(params.data.name)).info)
    if params.model.name == "auto":
        print(f"train: model.name: auto = {found.model.name}", file=sys.stderr)
    return found


def train_share(params: Resolved, paths: Paths, share: Share) -> None:
    device = device_for(params.train.accelerator, params.train.devices)
    task = load_task(params, paths.raw(params.data.name), paths.partition, device)
    if share.rank:
        with only_the_first_speaks():
            train(params, task, ResumeFolder(paths.resume, run_fingerprint(params, task)), share=share)
        return
    record = describe(dotted(params), task.data_hash, task.partition_hash, str(task.device), task.names)
    watch = (StopWhenOrphaned(PARENT),) if "DVC_STAGE" in os.environ else ()

    with ResumeFolder(paths.resume, run_fingerprint(params, task)) as folder:
        print(folder.story(), file=sys.stderr)
        with live_run(params.tracking, paths.root, record, folder.note("run.json")) as live:
            module, history = train(
                params, task, folder, on_rows=live.report, callbacks=watch, share=share, recover=True
            )
            replicates = None
            if params.train.replicates:
                problem: Any = task.problem
                replicates = replicate_weights(params, problem, folder, *(each.check for each in watch))
        save_variables(paths.model, module.kept.variables)
        pull = module.state.memory.get("pull")
        history.export(paths.results, replicates, None if pull is None else pull.double().cpu().numpy())
        screen = module.context.screen
        left_out = screen.by_name if screen else {}
        served = replace(record, run=live.info, served_round=module.kept.round, left_out=left_out)
        replace(served, diverged=module.diverged, files=checksums(paths.results)).save(paths.training)
        folder.discard()


if __name__ == "__main__":
    run(train_stage)
