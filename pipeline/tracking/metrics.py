"""From columns of history.csv to metrics of the tracker: names, and how many points of each."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, TypeGuard

from pipeline.report.history import thin

Point = tuple[str, float, int]
"""Metric name, value, step."""

_COSTS = ("seconds", "communication_rounds", "floats_up", "floats_down", "gradients", "hvps")
_PLAIN = (
    "test_accuracy",
    "test_r2",
    "test_rmse",
    "selection_accuracy",
    "selection_r2",
    "validation_loss",
    "upper_value",
    "stationarity",
)
_WEIGHT = "client_weight_"


def metric_name(column: str, columns: Iterable[str]) -> str:
    """The metric of a history column. Prefixes become sections of the run's page, sorted by name within:
    client numbers are padded with zeros."""
    if column in _PLAIN:
        return column
    if column in _COSTS:
        return f"cost/{column}"
    if not column.startswith(_WEIGHT):
        return f"train/{column}"
    client = column.removeprefix(_WEIGHT)
    if not client.isdecimal():
        return f"client_weight/{client}"
    last = max(int(tail) for c in columns if (tail := c.removeprefix(_WEIGHT)).isdecimal())
    return f"client_weight/{client.zfill(max(2, len(str(last))))}"


def points(rows: Iterable[Mapping[str, Any]], rounds: int) -> list[Point]:
    """Metrics of the rows worth sending: every `thin(rounds)`-th, every evaluation, the last. Empty cells
    (None, nan) and infinities are left out."""
    stride, result = thin(rounds), []
    names: dict[str, str] = {}
    for row in rows:
        step = int(row["round"])
        if step % stride and step != rounds and not _finite(row.get("validation_loss")):
            continue
        for column in sorted(row.keys() - {"round"}, key=_rank):
            if column not in names:
                names[column] = metric_name(column, row)
            value = row[column]
            if _finite(value):
                result.append((names[column], float(value), step))
    return result


def _rank(column: str) -> tuple[int, int, str]:
    """The run's page lists metrics in the order in which they first came: what matters most comes first."""
    if column in _PLAIN:
        return 0, _PLAIN.index(column), column
    if column.startswith(_WEIGHT):
        tail = column.removeprefix(_WEIGHT)
        return 1, int(tail) if tail.isdecimal() else 0, column
    return (3 if column in _COSTS else 2), 0, column


def final_points(metrics: Mapping[str, Any], rounds: int) -> list[Point]:
    """The numbers of metrics.json, as of the last round; as of the one after it where another round's model is served,
    since the curves end with figures of the last round's model."""
    at = rounds + (metrics.get("served_round", rounds) != rounds)
    return [
        (name, float(value), at)
        for name, value in metrics.items()
        if name not in ("seed", "rounds") and not isinstance(value, bool | str) and _finite(value)
    ]


def _finite(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and math.isfinite(value)
