"""The commands of this study, by way of `python -m experiments bad_answers`: plan, run, page, of a profile.

`run` does the search first, then the runs that are reported, with the winners.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from experiments import provenance, workers
from experiments.bad_answers.params import AnswersStudy, Profile
from experiments.bad_answers.plan import HERE, AnswersRun, cells, load, searched
from experiments.bad_answers.running import outcome
from experiments.results import read
from pipeline.errors import UserError, not_allowed

SECONDS = 0.5
"""Of a run on one core of an AMD EPYC, about."""


def perform(arguments: argparse.Namespace) -> None:
    """One command."""
    if arguments.what not in ("plan", "run", "page"):
        raise not_allowed("the command", arguments.what, "run, page or plan: `run` searches too", "name one of them")
    study = load()
    profile: Profile = getattr(study, arguments.profile)
    path, page = HERE / "results" / f"{arguments.profile}.jsonl", HERE / "pages" / arguments.profile
    if arguments.what == "plan":
        trials = missing(searched(study, profile), path)
        # Their number does not depend on who wins.
        runs = cells(study, profile, read(path) if not trials else None)
        waiting = len(trials) + len(missing(runs, path))
        print(f"{waiting} runs to do, about {SECONDS * waiting / 60:.0f} core-minutes")
    elif arguments.what == "run":
        processes = workers.count(arguments.workers)
        run_all(searched(study, profile), path, processes, arguments.only)
        run_all(reported(study, profile, path), path, processes, arguments.only)
    else:
        from experiments.bad_answers.page import write_page

        provenance.require_clean()
        print(write_page(study, profile, reported(study, profile, path), path, page))


def reported(study: AnswersStudy, profile: Profile, path: Path) -> list[AnswersRun]:
    """UserError while trials wait."""
    try:
        return cells(study, profile, read(path))
    except KeyError:
        raise UserError(
            "some trials are not done. Fix: python -m experiments bad_answers run, without --only."
        ) from None


def missing(wanted: Sequence[AnswersRun], path: Path) -> list[AnswersRun]:
    """Without a row, or with one by changed code that is committed by now; each run once."""
    dirty = bool(provenance.changes())
    done = {key for key, row in read(path).items() if dirty or not str(row.get("commit")).endswith(provenance.CHANGED)}
    return list({cell.key: cell for cell in wanted if cell.key not in done}.values())


def run_all(wanted: Sequence[AnswersRun], path: Path, processes: int, only: str) -> None:
    """Those that are missing."""
    chosen = [cell for cell in wanted if only in str(cell)]
    about = provenance.machine("cpu", provenance.commit())
    todo = {cell.key: cell for cell in missing(chosen, path)}
    workers.run_missing(todo, len(chosen), path, partial(outcome, about=about), processes)
