"""From columns of history.csv to metrics of the tracker: names, and how many points of each."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeGuard

from pipeline.report.series import thin

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
FIRST = {
    "test_accuracy": "accuracy/test",
    "selection_accuracy": "accuracy/selection",
    "test_r2": "accuracy/test_r2",
    "selection_r2": "accuracy/selection_r2",
}
"""The same once more: sections of curves, and columns of the list, come by name, and weights would be first."""
_WEIGHT = "client_weight_"


def metric_name(column: str, columns: Iterable[str], clients: Sequence[str] = ()) -> str:
    """The metric of a history column. Prefixes become sections of the run's page, sorted by name within:
    client numbers are padded with zeros. clients: their own names, if they have any."""
    if column in _PLAIN:
        return column
    if column in _COSTS:
        return f"cost/{column}"
    if not column.startswith(_WEIGHT):
        return f"train/{column}"
    client = column.removeprefix(_WEIGHT)
    if not client.isdecimal():
        return f"client_weight/{client}"
    if clients:
        return f"client_weight/{_key(int(client), clients)}"
    last = max(int(tail) for c in columns if (tail := c.removeprefix(_WEIGHT)).isdecimal())
    return f"client_weight/{client.zfill(max(2, len(str(last))))}"


def _key(client: int, clients: Sequence[str]) -> str:
    """A client's name with the characters that MLflow takes; with its number where another one's would be the same."""
    keys = [re.sub(r"[^\w.\- ]", "_", name).strip()[:200] or "_" for name in clients]
    key = keys[client]
    return key if sum(other.casefold() == key.casefold() for other in keys) == 1 else f"{key} {client}"


def points(rows: Iterable[Mapping[str, Any]], rounds: int, clients: Sequence[str] = ()) -> list[Point]:
    """Metrics of the rows worth sending: every `thin(rounds)`-th, every evaluation, the last. Empty cells
    (None, nan) and infinities are left out. Accuracies are there a second time, for the page of curves."""
    stride, result = thin(rounds), []
    names: dict[str, str] = {}
    for row in rows:
        step = int(row["round"])
        if step % stride and step != rounds and not _finite(row.get("validation_loss")):
            continue
        for column in sorted(row.keys() - {"round"}, key=_rank):
            if column not in names:
                names[column] = metric_name(column, row, clients)
            value = row[column]
            if _finite(value):
                result.append((names[column], float(value), step))
                if column in FIRST:
                    result.append((FIRST[column], float(value), step))
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
    found = {
        name: float(value)
        for name, value in metrics.items()
        if name not in ("seed", "rounds") and not isinstance(value, bool | str) and _finite(value)
    }
    found |= {first: found[name] for name, first in FIRST.items() if name in found}
    return [(name, value, at) for name, value in found.items()]


def _finite(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and math.isfinite(value)
