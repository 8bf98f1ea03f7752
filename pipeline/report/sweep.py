"""A sweep's runs side by side: a file with all of them, and a table of means over the seeds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from pipeline.report.tables import spread
from pipeline.report.writing import write_rows
from pipeline.text import aligned, short_names

SHOWN = (
    "test_accuracy",
    "selection_accuracy",
    "test_rmse",
    "test_r2",
    "clean_weight",
    "weight_error",
    "upper_value",
    "stationarity",
)
"""Figures of the terminal's table; those that the runs have."""


class Swept(Protocol):
    """A run of a sweep. name: of its folder. varied: what is its own, dotted name -> value; values: but for the
    seed."""

    @property
    def name(self) -> str: ...

    @property
    def varied(self) -> dict[str, Any]: ...

    @property
    def values(self) -> dict[str, Any]: ...


def write_summary(runs: Sequence[Swept], folder: Path) -> None:
    """summary.csv, a row per run: its name, what was varied, whether it finished or diverged, its metrics.json."""
    rows = []
    for run in runs:
        found = metrics(folder / run.name)
        own = {"run": run.name, **run.varied, "outcome": "finished" if found else "diverged"}
        rows.append(own | {name: value for name, value in found.items() if name not in own})
    write_rows(folder / "summary.csv", rows)


def table(runs: Sequence[Swept], folder: Path) -> str:
    """One line per combination of values: mean ± standard deviation over the seeds of the runs that did not diverge."""
    found = {run.name: metrics(folder / run.name) for run in runs}
    shown = [name for name in SHOWN if any(figures.get(name) is not None for figures in found.values())]
    rows = [[*short_names(list(runs[0].values)), "seeds", "diverged", *(name.replace("_", " ") for name in shown)]]
    for same in by_values(runs).values():
        finished = [found[run.name] for run in same if found[run.name]]
        cells = [spread([figures[name] for figures in finished if figures.get(name) is not None]) for name in shown]
        values = [str(value) for value in same[0].values.values()]
        rows.append([*values, str(len(same)), str(len(same) - len(finished)), *cells])
    return aligned(rows)


def by_values(runs: Sequence[Swept]) -> dict[str, list[Swept]]:
    """Runs that differ in the seed alone, together."""
    together: dict[str, list[Swept]] = {}
    for run in runs:
        together.setdefault(repr(run.values), []).append(run)
    return together


def metrics(folder: Path) -> dict[str, Any]:
    """Of a finished run; empty for one that diverged."""
    file = folder / "metrics.json"
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
