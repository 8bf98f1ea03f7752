"""Which runs the table and the figures consist of."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from experiments.cells import Cell

HERE = Path(__file__).parent
PRIMAL_DUAL, AS_PRINTED = "primal_dual", "primal_dual, as printed"
SEARCHED = ("primal_dual", "rfho", "fednest", "sustain")
BASELINES = ("afl", "average", "validation_only", "oracle_weights")
ROWS = (PRIMAL_DUAL, AS_PRINTED, "rfho", "fednest", "sustain", *BASELINES)

# The listing: constant steps, absent clients scaled by N/n, the hypergradient on the gradient's minibatch, no damping;
# step sizes of the specification's trial (the paper prints grids, no winners).
LISTING: dict[str, Any] = {
    "algorithms.primal_dual.schedule": "constant",
    "algorithms.primal_dual.estimator": "paper",
    "algorithms.primal_dual.hypergradient_batch": "gradient",
    "algorithms.primal_dual.dual_damping": 0.0,
    "algorithms.primal_dual.dual_radius": 10.0,
    "algorithms.primal_dual.gamma": 1.0,
    "algorithms.primal_dual.eta_w": 0.1,
    "algorithms.primal_dual.eta_x": 0.01,
}

Winners = dict[str, dict[str, float]]
"""Per method: its step sizes."""


@dataclass(frozen=True)
class Plan:
    """params.yaml: sizes of a profile (quick or full) and the grids."""

    profile: str
    sizes: dict[str, dict[str, Any]]
    grids: dict[str, dict[str, list[float]]]

    @classmethod
    def load(cls, profile: str) -> Plan:
        tree = YAML(typ="safe").load((HERE / "params.yaml").read_text())
        return cls(profile, tree[profile], tree["grids"])


def search_cells(plan: Plan) -> list[Cell]:
    """Every grid, at full participation."""
    size = plan.sizes["search"]
    cells = []
    for method, grid in plan.grids.items():
        for values in itertools.product(*grid.values()):
            steps = dict(zip(grid, values, strict=True))
            settings = _settings(size, 1.0, size["seed"], method) | _steps(method, steps)
            cells.append(Cell(f"{plan.profile}-search", method, settings))
    return cells


def table_cells(plan: Plan, table: str, winners: Winners) -> list[Cell]:
    """Every row at every participation and seed; those of the smallest seeds come first, so that what is finished early
    is a whole table."""
    size = plan.sizes[table]
    cells = []
    for seed, participation, row in itertools.product(size["seeds"], size["participation"], ROWS):
        method = row.split(",")[0]
        settings = _settings(size, participation, seed, method)
        settings |= LISTING if row == AS_PRINTED else _steps(method, winners.get(method, {}))
        cells.append(Cell(f"{plan.profile}-{table}", row, settings))
    return cells


def _settings(size: dict[str, Any], participation: float, seed: int, method: str) -> dict[str, Any]:
    return {
        "data.name": size["data"],
        "seed": seed,
        "federation.participation": participation,
        "algorithm": method,
        "train.rounds": size["rounds"],
        "train.eval_every": size.get("eval_every", size["rounds"]),
        "train.checkpoint_every": 100,
        "partition.scheme": size.get("scheme", "lead"),
    }


def _steps(method: str, steps: dict[str, float]) -> dict[str, Any]:
    """As dotted parameters."""
    return {f"algorithms.{method}.{name}": value for name, value in steps.items()}
