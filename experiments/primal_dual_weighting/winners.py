"""Step sizes by accuracy on the selection set, which no method sees; never by f_0, which is training data of the
bilevel methods, and never on the test set."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from experiments import former
from experiments.cells import Result, read
from experiments.primal_dual_weighting.grid import Plan, Winners, search_cells


def trials(plan: Plan, folder: Path) -> list[dict[str, Any]]:
    """One row per trial: method, steps, state, and accuracy and loss on the selection set (None if it diverged or was
    not run)."""
    rows = []
    for cell in search_cells(plan):
        prefix = f"algorithms.{cell.row}."
        steps = {name.removeprefix(prefix): v for name, v in cell.settings.items() if name.startswith(prefix)}
        found = read(cell, folder)
        outcome = (found or {}).get("outcome", {})
        score = {name: outcome.get(name) for name in ("selection_accuracy", "selection_loss")}
        rows.append({"method": cell.row, "steps": steps, "state": _state(found), **score})
    return rows


def choose(plan: Plan, folder: Path) -> Winners:
    """The most accurate trial of each method; of equals the former default, else the one of smallest loss. A method
    without any that ended is left out."""
    ended = [row for row in trials(plan, folder) if row["selection_accuracy"] is not None]
    winners: Winners = {}
    for method in plan.sizes.grids:
        own = [row for row in ended if row["method"] == method]
        if own:
            top = max(row["selection_accuracy"] for row in own)
            equals = [row for row in own if row["selection_accuracy"] == top]
            shipped = dataclasses.asdict(getattr(former.parameters({}).algorithms, method))
            default = [row for row in equals if row["steps"].items() <= shipped.items()]
            winners[method] = min(default or equals, key=lambda row: row["selection_loss"])["steps"]
    return winners


def _state(found: Result | None) -> str:
    return "not run" if found is None else "diverged" if "failed" in found else "done"
