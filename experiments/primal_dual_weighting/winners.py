"""Step sizes by accuracy on the selection set, which no method sees; never by f_0, which is training data of the
bilevel methods, and never on the test set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from experiments.cells import Result, read
from experiments.primal_dual_weighting.grid import Plan, Winners, search_cells


def trials(plan: Plan, folder: Path) -> list[dict[str, Any]]:
    """One row per trial: method, step sizes, state, and selection accuracy (None if it diverged or was not run)."""
    rows = []
    for cell in search_cells(plan):
        prefix = f"algorithms.{cell.row}."
        steps = {name.removeprefix(prefix): v for name, v in cell.settings.items() if name.startswith(prefix)}
        found = read(cell, folder)
        rows.append({"method": cell.row, **steps, "state": _state(found), "selection_accuracy": _selection(found)})
    return rows


def choose(plan: Plan, folder: Path) -> Winners:
    """The best trial of each method; of equals the first, that is the smallest steps. {} for a method never tried."""
    winners: Winners = {}
    best: dict[str, float] = {}
    for row in trials(plan, folder):
        method, score = row["method"], row["selection_accuracy"]
        if score is not None and score > best.get(method, -1.0):
            best[method] = score
            winners[method] = {name: row[name] for name in plan.grids[method]}
    return winners


def _state(found: Result | None) -> str:
    return "not run" if found is None else "diverged" if "failed" in found else "done"


def _selection(found: Result | None) -> float | None:
    return found["outcome"]["selection_accuracy"] if found and "outcome" in found else None
