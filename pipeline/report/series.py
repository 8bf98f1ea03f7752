"""A run's per-round record, read back for curves."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import numpy as np

Rows = list[dict[str, float | None]]
HISTORY, WEIGHTS = "history.csv", "client_weights_history.npz"
_POINTS = 250


def thin(rounds: int) -> int:
    """Every how many rounds a curve takes a point: it needs no more than about 250."""
    return max(1, math.ceil(rounds / _POINTS))


def read_history(path: Path) -> Rows:
    """history.csv as rows; empty cells are None."""
    if not path.is_file():
        return []
    with path.open(newline="") as file:
        return [{k: float(v) if v else None for k, v in row.items()} for row in csv.DictReader(file)]


def evaluations(rows: Rows) -> Rows:
    """Those that hold an evaluation."""
    return [row for row in rows if row["validation_loss"] is not None]


def column(rows: Rows, name: str) -> np.ndarray:
    """[R] float64; nan where a row has no such number."""
    return np.array([np.nan if (value := row.get(name)) is None else value for row in rows], dtype=float)


def read_weights(results: Path) -> dict[str, np.ndarray]:
    """client_weights_history.npz: round [R], weights [R, N], replicates [B, N], pull [N] (empty where the method has
    none). All are empty if there is no such file."""
    none, no_rows = np.zeros(0), np.zeros((0, 0))
    found: dict[str, np.ndarray] = {"round": none.astype(int), "weights": no_rows, "replicates": no_rows, "pull": none}
    path = results / WEIGHTS
    if path.is_file():
        with np.load(path) as saved:
            found |= {name: saved[name] for name in saved.files}
    return found
