"""Which runs the table and the figures consist of."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments import former
from experiments.cells import Cell
from experiments.primal_dual_weighting.params import Experiments, Profile, Runs, Table
from pipeline.errors import UserError, not_allowed
from pipeline.params import Params

HERE = Path(__file__).parent
PRIMAL_DUAL, AS_PRINTED = "primal_dual", "primal_dual, as printed"
BASELINES = ("afl", "average", "validation_only", "oracle_weights")
ROWS = (PRIMAL_DUAL, AS_PRINTED, "rfho", "fednest", "sustain", *BASELINES)
TABLES = ("table", "fashion", "bad_clients")

# The listing: constant steps, absent clients scaled by N/n, the hypergradient on the gradient's minibatch, neither
# damping nor clipping; step sizes of the specification's trial (the paper prints grids, no winners).
LISTING: dict[str, Any] = {
    "algorithms.primal_dual.schedule": "constant",
    "algorithms.primal_dual.estimator": "paper",
    "algorithms.primal_dual.hypergradient_batch": "gradient",
    "algorithms.primal_dual.dual_damping": 0.0,
    "algorithms.primal_dual.clip_norm": 0.0,
    "algorithms.primal_dual.dual_radius": 10.0,
    "algorithms.primal_dual.gamma": 1.0,
    "algorithms.primal_dual.eta_w": 0.1,
    "algorithms.primal_dual.eta_x": 0.01,
}

Winners = dict[str, dict[str, float]]
"""Per method: its step sizes."""


@dataclass(frozen=True)
class Plan:
    """A profile, quick or full, and its sizes."""

    profile: str
    sizes: Profile

    @classmethod
    def load(cls, profile: str, path: Path = HERE / "params.yaml") -> Plan:
        """From params.yaml; UserError for whatever cannot be run, before anything is."""
        from pipeline.config.loading import load

        experiments = load(Experiments, path)
        plan = cls(profile, getattr(experiments, profile))
        plan.check(path.name)
        return plan

    def check(self, name: str) -> None:
        """Every cell holds parameters that the library admits."""
        from pipeline.config.loading import checked
        from pipeline.params.rules import check_rules

        for method, grid in self.sizes.grids.items():
            if method not in ROWS:
                raise not_allowed(
                    f"{name}: {self.profile}.grids.{method}",
                    grid,
                    f"of one of {', '.join(ROWS)}",
                    "rename or remove it",
                )
            for step, values in grid.items():
                if not values:
                    raise not_allowed(
                        f"{name}: {self.profile}.grids.{method}.{step}", values, "at least one number", "add one"
                    )
        for cell in itertools.chain(search_cells(self), *(table_cells(self, table, {}) for table in TABLES)):
            part = cell.table.removeprefix(f"{self.profile}-")
            where = f"{name}: {self.profile}.{'grids' if part == 'search' else f'{part}.variants'}.{cell.row}"
            try:
                params = former.parameters(cell.settings)
            except KeyError as error:
                raise UserError(f"{where}: {error.args[0]}. Fix: rename or remove it.") from None
            params = checked(Params, dataclasses.asdict(params), f"{name}, {cell.table}, {cell.row}")
            try:
                check_rules(params)
            except UserError as error:
                raise UserError(f"{where}: {error}") from None


def search_cells(plan: Plan) -> list[Cell]:
    """Every grid, at full participation."""
    size = plan.sizes.search
    cells = []
    for method, grid in plan.sizes.grids.items():
        for values in itertools.product(*grid.values()):
            steps = dict(zip(grid, values, strict=True))
            settings = _settings(size, method) | _steps(method, steps)
            cells.append(Cell(f"{plan.profile}-search", method, {**settings, "seed": size.seed}))
    return cells


def table_cells(plan: Plan, table: str, winners: Winners) -> list[Cell]:
    """Every row at every participation and seed; those of the first seeds come first, so that what is finished early is
    a whole table."""
    size: Table = getattr(plan.sizes, table)
    cells = []
    rows = dict.fromkeys((*ROWS, *size.variants))
    for seed, participation, row in itertools.product(size.seeds, size.participation, rows):
        method = row.split(",")[0]
        settings = _settings(size, method)
        settings |= {"seed": seed, "federation.participation": participation, "partition.scheme": size.scheme}
        steps = winners.get(method, {}) | size.variants.get(row, {})
        settings |= LISTING if row == AS_PRINTED else _steps(method, steps)
        cells.append(Cell(f"{plan.profile}-{table}", row, settings))
    return cells


def rows_of(cells: Sequence[Cell]) -> list[str]:
    """Their rows, in the table's order."""
    return list(dict.fromkeys(cell.row for cell in cells))


def _settings(size: Runs, method: str) -> dict[str, Any]:
    return {
        "data.name": size.data,
        "model.name": size.model,
        "algorithm": method,
        "train.rounds": size.rounds,
        "train.eval_every": size.eval_every,
        "train.checkpoint_every": 100,
    }


def _steps(method: str, steps: Mapping[str, float | str]) -> dict[str, Any]:
    """As dotted parameters."""
    return {f"algorithms.{method}.{name}": value for name, value in steps.items()}
