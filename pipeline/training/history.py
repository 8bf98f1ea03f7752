"""The per-round record of a run, on disk first.

Rows are buffered and appended to `history.csv` in the resume folder at every save; the full weights go beside it as
raw numbers. Both are cut back to the last save when a run is resumed, so an interrupted run's record equals an
uninterrupted one's (but for the seconds).
"""

from __future__ import annotations

import csv
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np

COSTS = ("communication_rounds", "floats_up", "floats_down", "gradients", "hvps")
QUANTILES = {"q05": 0.05, "q25": 0.25, "q50": 0.5, "q75": 0.75, "q95": 0.95}
MANY_CLIENTS = 100

Row = dict[str, float | int | None]


class History:
    """Rows of one run. clean: which clients are clean, [N] bool. measures: what evaluations yield, empty between them.
    reports: names of the method's own scalars."""

    def __init__(
        self, folder: Path, clean: np.ndarray, measures: Sequence[str], reports: Sequence[str], digits: int
    ) -> None:
        self.csv, self.raw = folder / "history.csv", folder / "client_weights.raw"
        self.clean, self.measures, self.digits = clean, tuple(measures), digits
        self.columns = ["round", "seconds", *COSTS, *measures]
        self.columns += weight_columns(len(clean)) + list(reports)
        self._rows: list[Row] = []
        self._weights: list[np.ndarray] = []

    def start(self) -> None:
        """An empty record."""
        with self.csv.open("w", newline="") as file:
            csv.writer(file).writerow(self.columns)
        self.raw.write_bytes(b"")

    def restore(self, rounds: int) -> bool:
        """Cut the record back to that round; False if it does not reach so far (damaged files)."""
        if not (self.csv.is_file() and self.raw.is_file()):
            return False
        lines = self.csv.read_bytes().splitlines(keepends=True)[: rounds + 2]
        complete = len(lines) == rounds + 2 and lines[-1].endswith(b"\n") and lines[-1].startswith(b"%d," % rounds)
        if not complete:
            return False
        first = weight_columns(len(self.clean))[0]
        weighted = lines[-1].split(b",")[self.columns.index(first)] != b""  # a method without weights has no such cells
        weights = (rounds + 1) * len(self.clean) * 4 if weighted else 0
        if self.raw.stat().st_size < weights:
            return False
        os.truncate(self.csv, sum(map(len, lines)))
        os.truncate(self.raw, weights)
        return True

    def append(self, row: Row, weights: np.ndarray | None) -> None:
        """One round. weights: [N], or None for a method without any."""
        if weights is not None:
            row = row | weight_cells(weights, self.clean)
            self._weights.append(weights.astype("<f4"))
        self._rows.append(row)

    def flush(self) -> list[Row]:
        """Write the buffered rows and return them."""
        rows, self._rows = self._rows, []
        with self.csv.open("a", newline="") as file:
            csv.writer(file).writerows([[self._text(row.get(name)) for name in self.columns] for row in rows])
        with self.raw.open("ab") as file:
            file.write(b"".join(w.tobytes() for w in self._weights))
        self._weights = []
        return rows

    def export(self, results: Path, replicates: np.ndarray | None = None, pull: np.ndarray | None = None) -> None:
        """history.csv and client_weights_history.npz (round, weights, replicates, pull) into the results folder.

        replicates: the weights of further runs, [R, N]. pull: what moved the weights in the last quarter of the rounds,
        [N], of methods that keep it (`pipeline.methods.client_weighting.common.steps`).
        """
        results.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(self.csv, results / "history.csv")
        weights = np.fromfile(self.raw, dtype="<f4").reshape(-1, len(self.clean))
        further = np.zeros((0, len(self.clean))) if replicates is None else replicates
        np.savez_compressed(
            results / "client_weights_history.npz",
            round=np.arange(len(weights)),
            weights=weights,
            replicates=further,
            pull=np.zeros(0) if pull is None else pull,
        )

    def _text(self, value: float | None) -> str:
        if value is None:
            return ""
        return str(value) if isinstance(value, int) else format(value, f".{self.digits}g")


def weight_columns(clients: int) -> list[str]:
    """One column per client, or a summary for many."""
    if clients <= MANY_CLIENTS:
        return [f"client_weight_{i}" for i in range(clients)]
    return [f"client_weight_{name}" for name in ("min", *QUANTILES, "max", "clean")]


def weight_cells(weights: np.ndarray, clean: np.ndarray) -> Row:
    """The cells of `weight_columns` for one round."""
    if len(weights) <= MANY_CLIENTS:
        return dict(zip(weight_columns(len(weights)), weights.tolist(), strict=True))
    values = [
        weights.min(),
        *np.quantile(weights, list(QUANTILES.values())),
        weights.max(),
        weights[clean].sum(),
    ]
    return dict(zip(weight_columns(len(weights)), map(float, values), strict=True))
