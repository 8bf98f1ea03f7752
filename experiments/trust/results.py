"""Cells as rows of one file: a row is appended as its cell ends, so whatever is stopped goes on where it was."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from experiments.cells import machine, prepare_worker
from experiments.trust.federations import federation
from experiments.trust.plan import Cell
from experiments.trust.record import Federation
from experiments.trust.running import run
from pipeline.errors import UserError

Row = dict[str, Any]
"""The cell, its key, what `running.run` measured, and where, when and with which code."""
EVERY = 10.0
"""Seconds between two lines on how far a run has come."""


def read(path: Path) -> dict[str, Row]:
    """Rows by their keys; of several with one key the last. A last line that was cut off counts as missing.

    Raises UserError for any other line that is no row.
    """
    found: dict[str, Row] = {}
    lines = path.read_text().split("\n") if path.is_file() else [""]
    for number, line in enumerate(lines[:-1], 1):
        try:
            row = json.loads(line)
            found[row["key"]] = row
        except (ValueError, KeyError, TypeError):
            raise UserError(f"{path}, line {number} is no row of results. Fix: remove the line.") from None
    return found


def append(path: Path, row: Row) -> None:
    """One more line, in place of one that was cut off."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:
        file.seek(0)
        held = file.read()
        file.truncate(held.rfind(b"\n") + 1)
        file.write(json.dumps(row).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def run_missing(cells: Sequence[Cell], path: Path, workers: int, again: bool = False) -> None:
    """Run the cells without a row, in processes of one thread each. again: those with one too."""
    done = {} if again else read(path)
    missing = [cell for cell in cells if cell.key not in done]
    print(f"{len(cells) - len(missing)} of {len(cells)} cells are done, {len(missing)} to run", flush=True)
    if not missing:
        return
    about = machine("cpu") | {"threads": 1}
    about["dirty"] = about["commit"].endswith("-dirty")
    about["commit"] = about["commit"].removesuffix("-dirty")
    start = shown = time.monotonic()
    broken = []
    for count, (cell, row) in enumerate(_outcomes(missing, workers), 1):
        if isinstance(row, BaseException):
            broken.append(f"{cell} ({type(row).__name__}: {row})")
        else:
            append(path, _flat(cell) | row | about)
        if time.monotonic() - shown > EVERY or count == len(missing):
            shown = time.monotonic()
            left = (shown - start) / count * (len(missing) - count)
            print(f"[{count}/{len(missing)}, about {left / 60:.0f} min left] {cell}", flush=True)
    if broken:
        raise UserError(f"{len(broken)} cells failed, the first is {broken[0]}. Fix: run that one alone with --only.")


def _outcomes(cells: Sequence[Cell], workers: int) -> Iterator[tuple[Cell, Row | BaseException]]:
    """Each cell with its row, or what it raised, as they end. A single worker is this process."""
    if workers == 1:
        torch.set_num_threads(1)
        for cell in cells:
            try:
                row: Row | BaseException = outcome(cell)
            except Exception as error:
                row = error
            yield cell, row
        return
    # Forked children would inherit torch's threads and locks.
    pool = ProcessPoolExecutor(workers, get_context("spawn"), initializer=prepare_worker, initargs=(os.getpid(),))
    try:
        futures = {pool.submit(outcome, cell): cell for cell in cells}
        for future in as_completed(futures):
            yield futures[future], future.exception() or future.result()
    finally:
        pool.shutdown(cancel_futures=True)


def outcome(cell: Cell) -> Row:
    """Run one cell."""
    made = _held(cell.federation, cell.seed)
    row = run(made, cell.method, cell.rounds, cell.participation, cell.seed, cell.batch_size, **dict(cell.options))
    return {"wrong": made.wrong, **row}


@lru_cache(maxsize=4)
def _held(name: str, seed: int) -> Federation:
    return federation(name, seed)


def _flat(cell: Cell) -> Row:
    return {"key": cell.key} | dataclasses.asdict(cell) | {"options": dict(cell.options)}
