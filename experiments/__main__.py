"""The commands of `make experiments`:

    python -m experiments STUDY run quick|full [--part NAME] [--only TEXT] [--workers N]     the cells that are missing
    python -m experiments STUDY page quick|full                                              tables, figures, tracker
    python -m experiments STUDY plan quick|full                                              what waits, for how long

A study with a commands.py of its own (trust) performs them itself, `search`, `coverage` and `changes` too.

On a machine with a GPU the same commands run the cells there; append its rows to results/<profile>.jsonl here and make
the page. Stopped (Ctrl-C, kill -9), they go on where they were. While code has uncommitted changes no page is made, and
what it runs is run again once it is committed.
"""

from __future__ import annotations

import argparse
import importlib

from experiments import command, provenance, workers
from experiments.cells import Cell, read, require_one, run_all, selected
from experiments.params import Part
from experiments.study import MORE, PROFILES, ROOT, Study, load_study, studies
from pipeline.errors import UserError, not_allowed

WITHOUT_PROFILE = ("search", "coverage", "changes")
"""Commands of studies with a commands.py of their own, for both profiles together."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments")
    parser.add_argument("study", choices=[*studies(), *independent()])
    parser.add_argument("what", choices=["run", "page", "plan", *WITHOUT_PROFILE])
    parser.add_argument("profile", choices=PROFILES, nargs="?")
    parser.add_argument("--part", help="one part only")
    parser.add_argument("--again", action="store_true", help="of trust: run finished cells again too")
    command.run(parser, perform)


def independent() -> list[str]:
    """Folders of studies with commands of their own."""
    return sorted(path.parent.name for path in ROOT.glob("*/commands.py"))


def perform(arguments: argparse.Namespace) -> None:
    """One command."""
    own = arguments.study in independent()
    if arguments.what in WITHOUT_PROFILE and not own:
        raise not_allowed("the command", arguments.what, "run, page or plan: `run` searches too", "name one of them")
    if arguments.profile is None and arguments.what not in WITHOUT_PROFILE:
        raise UserError(f"`{arguments.what}` needs a profile. Fix: add {' or '.join(PROFILES)}.")
    if own:
        importlib.import_module(f"experiments.{arguments.study}.commands").perform(arguments)
        return
    study = load_study(arguments.study, arguments.profile)
    if arguments.what != "run" and (arguments.part or arguments.only):
        raise UserError(
            f"--part and --only belong to `run`; `{arguments.what}` is of the whole study. Fix: leave them out."
        )
    if arguments.what == "plan":
        announce(study)
    elif arguments.what == "run":
        parts = parts_of(study)
        if arguments.part not in (None, *parts):
            raise not_allowed("--part", arguments.part, f"one of {', '.join(parts)}", "name one of them")
        wanted = [part for part in parts if arguments.part in (None, part)]
        require_one((cell for part in wanted for cell in cells_of(study, part)), arguments.only)
        for part in wanted:
            run(study, part, arguments.only, workers.count(arguments.workers))
    else:
        page(study)


def parts_of(study: Study) -> list[str]:
    """The declared ones, and `more` if the study has cells that are no runs on data."""
    return [*study.parts, *([MORE] if hasattr(study.extras, "cells") else [])]


def run(study: Study, part: str, only: str, count: int) -> None:
    """The trials, then the table with their winners: every row whose trials are done."""
    data = study.folder / "data"
    if part == MORE:
        run_all(selected(study.extras.cells(study), only), study.results, count, data, study.extras.run)
        return
    for searched in dict.fromkeys((study.searched(part), part)):
        run_all(selected([slot.cell for slot, _ in study.trials(searched)], only), study.results, count, data)
    waiting = study.waiting(part)
    ready = [slot.cell for slot in study.table(part) if slot.row not in waiting]
    run_all(selected(ready, only), study.results, count, data)


def page(study: Study) -> None:
    """Tables and figures, and all cells into the tracker."""
    from experiments.report import write_page
    from experiments.tracking import publish

    provenance.require_clean()
    print(getattr(study.extras, "write_page", write_page)(study))
    cells = [cell for part in parts_of(study) for cell in cells_of(study, part)]
    publish(cells, study.results, study.page, f"{study.name} {study.profile}", provenance.ROOT)


def cells_of(study: Study, part: str) -> list[Cell]:
    """The trials and the table."""
    if part == MORE:
        found: list[Cell] = study.extras.cells(study)
        return found
    return [*(slot.cell for slot, _ in study.trials(part)), *(slot.cell for slot in study.table(part))]


def announce(study: Study) -> None:
    """How many cells wait, and about how long they take on this machine."""
    if provenance.changes():
        print(
            "Code was changed since the last commit: what it runs is run again, and a page made, once it is committed."
        )
    total = 0.0
    for name in parts_of(study):
        cells = cells_of(study, name)
        done = [found["machine"]["seconds"] / 60 for cell in cells if (found := read(cell, study.results))]
        each = sum(done) / len(done) if done else study.parts.get(name, Part()).minutes
        total += each * (len(cells) - len(done))
        print(f"{name}: {len(cells) - len(done)} of {len(cells)} cells to run, about {each:.1f} core-minutes each")
    processes = workers.count(None)
    print(f"about {total / processes:.0f} minutes with {processes} processes (on a GPU far less)")


if __name__ == "__main__":
    main()
