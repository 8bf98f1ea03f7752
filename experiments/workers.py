"""Running what is missing: cells in worker processes of one thread each.

One thread per cell: on two cores two cells side by side take about half the time of one after the other with two
threads each, since a round's tensors are too small to share.
"""

from __future__ import annotations

import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from experiments.results import Row, append
from pipeline.errors import UserError

Runner = Callable[[Any], Row]
"""A cell -> its row without the key. Must be a function that another process can import, or a partial of one."""
EVERY = 10.0
"""Seconds between two lines on how far the work has come."""


def run_missing(missing: Mapping[str, Any], total: int, path: Path, runner: Runner, workers: int) -> None:
    """Run the cells and append each one's row to the file as it ends. A cell that raises is named and the others go on.

    missing: key -> cell, whose `str` is its name for people. total: how many cells there are, those with a row too.
    Raises UserError if any cell failed.
    """
    print(f"{total - len(missing)} of {total} cells are done, {len(missing)} to run", flush=True)
    start = shown = time.monotonic()
    broken = []
    for done, (key, result) in enumerate(_results(missing, partial(_run, path, runner), workers), 1):
        cell = missing[key]
        if isinstance(result, Exception):
            broken.append(str(cell))
            print(f"{cell}: failed with {type(result).__name__}: {result}", flush=True)
        if time.monotonic() - shown > EVERY or done == len(missing):
            shown = time.monotonic()
            left = (shown - start) / done * (len(missing) - done) / 60
            said = "" if isinstance(result, Exception) else f" {cell}: {result}"
            print(f"[{done}/{len(missing)}, about {left:.0f} min left]{said}", flush=True)
    if broken:
        raise UserError(
            f"{len(broken)} cells failed: {', '.join(broken)}. Fix: run one alone with `--only` to see why."
        )


def _run(path: Path, runner: Runner, key: str, cell: Any) -> str:
    """Run one cell to its row in the file; returns what came out, in short."""
    row = runner(cell)
    append(path, {"key": key} | row)
    figures = [(name, value) for name, value in (row | row.get("outcome", {})).items() if isinstance(value, float)]
    return str(row.get("failed") or ", ".join(f"{name} {value:.4g}" for name, value in figures[:6]) or "done")


def _results(
    cells: Mapping[str, Any], run: Callable[[str, Any], str], workers: int
) -> Iterator[tuple[str, str | Exception]]:
    """Each key with what `run` returned or raised, as they end. A single worker is this process."""
    if workers == 1:
        with one_thread():
            for key, cell in cells.items():
                try:
                    result: str | Exception = run(key, cell)
                except Exception as error:
                    result = error
                yield key, result
        return
    # Forked children would inherit torch's threads and locks.
    pool = ProcessPoolExecutor(workers, get_context("spawn"), initializer=prepare_worker, initargs=(os.getpid(),))
    try:
        futures = {pool.submit(run, key, cell): key for key, cell in cells.items()}
        for future in as_completed(futures):
            try:
                result = future.result()
            except BrokenProcessPool:
                raise UserError(
                    "a worker process was killed (out of memory?); what is finished is kept. Fix: fewer --workers."
                ) from None
            except Exception as error:
                result = error
            yield futures[future], result
    finally:
        pool.shutdown(cancel_futures=True)


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread for the mathematics of this process, and no warnings, as in a worker."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.set_num_threads(before)


def prepare_worker(parent: int) -> None:
    """One thread for the mathematics; a worker ends at once with Ctrl-C, or when its parent is gone."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    signal.signal(signal.SIGINT, signal.SIG_DFL)
    threading.Thread(target=watch, daemon=True).start()
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")


def count(asked: int | None) -> int:
    """One process per core, or one for a GPU."""
    import torch

    if asked:
        return asked
    return 1 if torch.cuda.is_available() else max(1, len(os.sched_getaffinity(0)))
