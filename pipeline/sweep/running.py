"""Running a sweep: what is finished is left alone, the rest goes one after another or together.

Together pays where a run alone leaves the processor waiting. Five seeds of primal_dual, one thread of a busy Intel Xeon
(`python -m benchmarks batching`): a round of all five costs, over five rounds alone,

| toy | linear | mlp | lenet5 |
|---|---|---|---|
| 0.37 | 1.1 | 1.0 | 2.2 |

So `together: auto` means together for the toy, and one after another for networks on a CPU. On a GPU, where small
kernels wait for their launches, it means together as well; that is expectation, not measured yet.

A run's folder appears whole, under its name, when the run has ended, with `run.json`: the fingerprint of everything the
run depends on. A repeated sweep passes over folders with the right one. A run that was interrupted alone goes on from
its last save; runs together start again.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.command import Paths
from pipeline.config.spec import dotted
from pipeline.data.datasets import load, prepare
from pipeline.data.own_partition import partition_of
from pipeline.data.partition import Partition
from pipeline.data.raw import RawDataset
from pipeline.data.sets.registry import TOY
from pipeline.data.settings import Data, Subset
from pipeline.params import Params, Resolved
from pipeline.params.resolve import resolve
from pipeline.repetitions import Apart, Member, Repetitions, with_tensors_of
from pipeline.report.numbers import served_line, write_numbers, write_toy_numbers
from pipeline.report.record import Record, describe
from pipeline.report.series import read_history
from pipeline.report.writing import write_json
from pipeline.sharing import Share
from pipeline.sweep.plan import Run, groups
from pipeline.training.best import Best, Served, selection_of
from pipeline.training.evaluation import outcome
from pipeline.training.history import History
from pipeline.training.loop import evaluates, no_longer_finite, row_of
from pipeline.training.module import NotFinite, schedule
from pipeline.training.resume import ResumeFolder
from pipeline.training.run import prepare_processor, run_fingerprint, train
from pipeline.training.setup import build_context, build_problem, build_toy, device_for
from pipeline.training.tasks import Task, image_task, toy_task

Ended = Callable[[Path, bool], None]
"""Receives each run's folder, and whether the run diverged."""


@dataclass(frozen=True)
class Job:
    """A run with its data. folder: where its results are, or will be. partition: None on the toy."""

    run: Run
    params: Resolved
    task: Task
    partition: Partition | None
    record: Record
    fingerprint: str
    folder: Path

    @property
    def done(self) -> dict[str, str | None] | None:
        """run.json of the folder, if it is of this very run."""
        note = self.folder / "run.json"
        found = json.loads(note.read_text()) if note.is_file() else {}
        return found if found.get("fingerprint") == self.fingerprint else None


def run_all(runs: Sequence[Run], mode: str, paths: Paths, ended: Ended) -> None:
    """Every run of the plan. mode: `sweep.together`. UserError if `always` cannot be had."""

    found: dict[str, RawDataset] = {}

    def raw(data: Data, subset: Subset) -> RawDataset:
        folder, key = paths.raw(data.name), repr((data, subset))
        if key in found:
            return found[key]
        if not folder.is_dir():
            print(
                prepare(data.name, folder, paths.from_root(data.mirror), settings=paths.placed(data)), file=sys.stderr
            )
        found[key] = load(folder).first(subset)
        return found[key]

    for group in [[run] for run in runs] if mode == "never" else groups(list(runs)):
        parts = [group] if mode == "always" or _faster_together(group[0].params) else [[run] for run in group]
        for part in parts:
            jobs: list[Job] = []
            for run in part:
                jobs.append(_job(run, paths, raw, jobs[0].task.problem if jobs else None))
            for job in jobs:
                if job.done:
                    _tell(job, "was finished before")
                    ended(job.folder, job.done["diverged"] is not None)
            left = [job for job in jobs if not job.done]
            if len(left) > 1:
                try:
                    _together(left, paths, ended)
                    continue
                except Apart as error:
                    if mode == "always":
                        raise
                    print(f"sweep: one after another: {error}", file=sys.stderr)
            for job in left:
                _alone(job, paths, ended)


def _faster_together(params: Params) -> bool:
    """As measured; see above."""
    return params.data.name == TOY or device_for(params.train.accelerator).type == "cuda"


def _job(run: Run, paths: Paths, raw: Callable[[Data, Subset], RawDataset], like: Any) -> Job:
    """like: the problem of a run it goes with, whose tensors it takes where they are the same, images above all."""
    partition = None
    if run.params.data.name == TOY:
        params = resolve(run.params)
        task = toy_task(build_toy(params))
    else:
        data = raw(run.params.data, run.params.subset)
        params = resolve(run.params, data.info)
        partition = partition_of(data, params.data, params.partition, params.seed)
        problem = build_problem(params, data, partition, device_for(params.train.accelerator))
        problem = with_tensors_of(like, problem) if like else problem
        task = image_task(problem, data.hash, partition.hash)
    record = describe(dotted(params), task.data_hash, task.partition_hash, str(task.device))
    record = replace(record, name=run.name)
    return Job(run, params, task, partition, record, run_fingerprint(params, task), paths.sweep / run.name)


# --------------------------------------------------------------------------------------------- one after another


def _alone(job: Job, paths: Paths, ended: Ended) -> None:
    """As the train stage does it, from the last save if there is one."""
    with ResumeFolder(paths.resume, job.fingerprint) as folder:
        _tell(job, "goes on from its last save" if folder.found else "starts")
        try:
            module, history = train(job.params, job.task, folder)
        except NotFinite as error:
            _keep(job, folder, str(error), ended)
            return
        _finish(job, history, module.kept, ended)
        folder.discard()


# ----------------------------------------------------------------------------------------------------- together


def _together(jobs: Sequence[Job], paths: Paths, ended: Ended) -> None:
    """All of them as one computation. The seconds in each one's record are those of all."""
    params, task = jobs[0].params, jobs[0].task
    rounds, algorithm = params.train.rounds, params.method
    factor = schedule(params.hyper.schedule, rounds)
    prepare_processor(task.device, params.train.precision)
    contexts: list[Any] = [build_context(job.params, job.task.problem, Share(), screened=False) for job in jobs]
    runs = Repetitions(algorithm, contexts)
    with ExitStack() as held:
        folders = [held.enter_context(ResumeFolder(paths.resume, job.fingerprint)) for job in jobs]
        members = [Member(runs, i, rounds) for i in range(len(jobs))]
        records = [_Records(*parts) for parts in zip(jobs, folders, members, strict=True)]
        _tell(jobs[0], f"starts, together with {len(jobs) - 1} more")
        start = shown = time.perf_counter()
        for t in range(rounds + 1):
            if t:
                runs.round(factor(t - 1))
            now = time.perf_counter()
            for record in list(records):
                try:
                    record.add(now - start)
                except NotFinite as error:
                    records.remove(record)
                    kept = record.folder.give_up()
                    _keep(record.job, record.folder, f"{error} What was recorded is in {kept}.", ended)
            if now - shown > 10.0:
                shown = now
                print(f"sweep: {len(records)} runs together: round {t} of {rounds}", file=sys.stderr)
        for record in records:
            record.history.flush()
            served = record.best.served(record.member.round, record.member.served)
            _finish(record.job, record.history, served, ended)
            record.folder.discard()


class _Records:
    """The history of one of the runs that go together."""

    def __init__(self, job: Job, folder: ResumeFolder, member: Member) -> None:
        self.job, self.folder, self.member, self.best = job, folder, member, Best()
        task, algorithm = job.task, member.algorithm
        scalars = [*algorithm.reports, *algorithm.measures]
        folder.forget()  # of a run that was begun alone: its record goes with it
        self.history = History(folder.path, task.clean, task.measures, scalars, task.digits)
        self.history.start()

    def add(self, seconds: float) -> None:
        """The round just done. Raises NotFinite, the record written up to the last finite round."""
        member, train = self.member, self.job.params.train
        try:
            if member.broken:
                raise no_longer_finite(*member.broken, member.step_sizes, member.context.hyper)
            measure = self.job.task.measure if evaluates(member, train.eval_every) else None
            row, weights = row_of(member, member.served, seconds, measure)
        except NotFinite:
            self.history.flush()
            raise
        self.history.append(row, weights)
        self.best.see(member.round, selection_of(row), member.served)
        if member.round % train.checkpoint_every == 0:
            self.history.flush()


# ------------------------------------------------------------------------------------------------------ results


def _finish(job: Job, history: History, served: Served, ended: Ended) -> None:
    """The folder of a finished run: history.csv, metrics.json, client_weights.csv, all weights, and what it was."""
    job = replace(job, record=replace(job.record, served_round=served.round))
    line = ""

    def write(folder: Path) -> None:
        nonlocal line
        history.export(folder)
        problem: Any = job.task.problem
        if job.partition is None:
            found, _ = write_toy_numbers(problem, served.variables, job.record, folder)
        else:
            found, _ = write_numbers(outcome(problem, served.variables), job.partition, job.record, folder)
        line = served_line(found, read_history(folder / "history.csv"))

    _appear(job, write, diverged=None)
    _tell(job, f"is finished: {line}" if line else "is finished")
    ended(job.folder, False)


def _keep(job: Job, resume: ResumeFolder, message: str, ended: Ended) -> None:
    """The folder of a run that diverged: its record so far."""

    def write(folder: Path) -> None:
        shutil.copyfile(resume.failed, folder / "history.csv")
        none = np.zeros((0, len(job.task.kinds)), dtype="<f4")
        np.savez_compressed(folder / "client_weights_history.npz", round=np.arange(0), weights=none)

    _appear(job, write, diverged=message)
    _tell(job, f"diverged: {message}")
    ended(job.folder, True)


def _appear(job: Job, write: Callable[[Path], None], diverged: str | None) -> None:
    partial = job.folder.with_name(f".{job.folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    write(partial)
    job.record.save(partial / "training.json")
    write_json(partial / "run.json", {"fingerprint": job.fingerprint, "diverged": diverged})
    shutil.rmtree(job.folder, ignore_errors=True)
    os.replace(partial, job.folder)


def _tell(job: Job, what: str) -> None:
    print(f"sweep: {job.run.name} {what}", file=sys.stderr)
