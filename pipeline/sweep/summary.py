"""A sweep's runs side by side: a file with all of them, and a table of means over the seeds."""

from __future__ import annotations

import csv
import io
import json
import os
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.sweep.plan import Run, short_names
from pipeline.text import aligned

SHOWN = ("test_accuracy", "selection_accuracy", "clean_weight", "weight_error", "upper_value", "stationarity")
"""Figures of the terminal's table; those that the runs have."""


def write_summary(runs: Sequence[Run], folder: Path) -> None:
    """summary.csv, a row per run: its name, what was varied, whether it finished or diverged, its metrics.json."""
    rows = []
    for run in runs:
        found = metrics(folder / run.name)
        own = {"run": run.name, **run.varied, "outcome": "finished" if found else "diverged"}
        rows.append(own | {name: value for name, value in found.items() if name not in own})
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    partial = folder / ".summary.partial"
    partial.write_text(text.getvalue())
    os.replace(partial, folder / "summary.csv")


def table(runs: Sequence[Run], folder: Path) -> str:
    """One line per combination of values: mean ± standard deviation over the seeds of the runs that did not diverge."""
    found = {run.name: metrics(folder / run.name) for run in runs}
    shown = [name for name in SHOWN if any(figures.get(name) is not None for figures in found.values())]
    together: dict[str, list[Run]] = {}
    for run in runs:
        together.setdefault(repr(run.values), []).append(run)
    rows = [[*short_names(list(runs[0].values)), "seeds", "diverged", *(name.replace("_", " ") for name in shown)]]
    for same in together.values():
        finished = [found[run.name] for run in same if found[run.name]]
        cells = [_spread([figures[name] for figures in finished if figures.get(name) is not None]) for name in shown]
        values = [str(value) for value in same[0].values.values()]
        rows.append([*values, str(len(same)), str(len(same) - len(finished)), *cells])
    return aligned(rows)


def metrics(folder: Path) -> dict[str, Any]:
    """Of a finished run; empty for one that diverged."""
    file = folder / "metrics.json"
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


def _spread(values: list[float]) -> str:
    if not values:
        return "-"
    mean = f"{statistics.fmean(values):.4g}"
    return f"{mean} ± {statistics.stdev(values):.2g}" if len(values) > 1 else mean
