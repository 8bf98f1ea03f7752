"""Cells to rows of a results file, which are flat: the cell, what `running.run` measured, where and with which code."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from experiments import provenance
from experiments.results import Row, read
from experiments.trust.federations import federation
from experiments.trust.plan import PlannedRun
from experiments.trust.record import Federation
from experiments.trust.running import run
from experiments.workers import run_missing


def run_cells(cells: Sequence[PlannedRun], path: Path, workers: int, again: bool = False) -> None:
    """Run the cells without a row, or with one by changed code that is committed by now. again: those with one too."""
    about, rows = about_code(), {} if again else read(path)
    done = {key for key, row in rows.items() if about["dirty"] or not row.get("dirty")}
    missing = {cell.key: cell for cell in cells if cell.key not in done}
    run_missing(missing, len(cells), path, partial(outcome, about=about), workers)


def about_code() -> dict[str, Any]:
    """Machine, date, commit, and whether code was changed since."""
    about = provenance.machine("cpu", provenance.commit())
    dirty = about["commit"].endswith(provenance.CHANGED)
    return about | {"dirty": dirty, "commit": about["commit"].removesuffix(provenance.CHANGED)}


def outcome(cell: PlannedRun, about: dict[str, Any]) -> Row:
    """Run one cell."""
    made = held(cell.federation, cell.seed)
    row = run(made, cell.method, cell.rounds, cell.participation, cell.seed, cell.batch_size, **dict(cell.options))
    return dataclasses.asdict(cell) | {"options": dict(cell.options), "wrong": made.wrong} | row | about


@lru_cache(maxsize=4)
def held(name: str, seed: int) -> Federation:
    """The federation, made once for several cells in a row."""
    return federation(name, seed)
