"""Columns of a table: numbers and categories, missing values, and statistics that a federation can compute.

A number's scale comes from each client's count, sum and sum of squares alone: the median over clients of their means,
and of their mean squares about it. So a client that stores metres as millimetres does not decide what everyone else's
samples look like. Inputs stay within +-`features.LIMIT` deviations. A missing number becomes the mean, and a further
feature says that it was missing; a missing category has a feature of its own. Dates are numbers, in days.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pipeline.data.own.features import is_date, is_number, numbers, parsed, texts
from pipeline.errors import UserError

LARGEST = 1e30
"""A number beyond it is a mistake; in float32 it would soon be infinite."""
DATE = r"\d{4}-\d\d-\d\d"
"""How a text that is a date begins."""
MOST_CATEGORIES = 100
"""The rarer ones of a column have no feature of their own."""


def described(
    name: str, values: Any, owners: np.ndarray, sound: Callable[[np.ndarray], np.ndarray]
) -> tuple[dict[str, Any] | None, str | None]:
    """The record of a column, None if it says nothing; and a note on it.

    values: a pandas Series, of the clients' rows; owners: whose they are, [M]. sound: numbers [M] -> which of them have
    a say in their scale, bool [M].
    """
    if is_number(values):
        found = numbers(values)
        if is_date(values):
            return _date(name, found, owners)
        record, note = _number(name, found, owners, sound)
        if len(found) > 20 and (np.diff(found) == 1).all():
            note = f"column {name!r} numbers the rows: should the model see it?"
        return record, note
    return _category(name, values, owners)


def endless(values: np.ndarray) -> bool:
    """Whether a number is infinite, or as good as infinite; missing ones (nan) are not."""
    if values.dtype == np.float16:  # in which LARGEST is infinite
        return bool(np.isinf(values).any())
    return bool((np.abs(values) > LARGEST).any())


def require_finite(place: str, values: np.ndarray, fix: str) -> None:
    """UserError naming the first number that is infinite, or as good as infinite. place: what the array is called."""
    if values.dtype.kind == "f" and endless(values):
        first = np.argwhere(np.abs(values.astype(np.float64)) > LARGEST)[0].tolist()
        at = ", ".join(map(str, first))
        allowed = "" if np.isinf(values[tuple(first)]) else f", beyond {LARGEST:g}"
        raise UserError(f"{place}[{at}] is {values[tuple(first)]:g}{allowed}. Fix: {fix}.")


def standard(values: np.ndarray, owners: np.ndarray) -> tuple[float, float]:
    """Mean and deviation of a column with missing values (nan), by the rule above; deviation 0: it is constant."""
    there = ~np.isnan(values)
    owners, values = owners[there], values[there]
    counts = np.bincount(owners)
    held = counts > 0
    if not held.any():
        return 0.0, 0.0
    middle = float(values.mean())  # sums about it: no digits are lost
    sums = np.bincount(owners, values - middle)[held] / counts[held]
    mean = float(np.median(sums))
    squares = np.bincount(owners, np.square(values - middle - mean))[held] / counts[held]
    deviation = float(np.median(squares)) ** 0.5
    if deviation <= 1e-9 * max(1.0, abs(middle)):  # most clients' are constant
        deviation = float(values.std())
    constant = values.max() == values.min()
    return middle + mean, 0.0 if constant else deviation


def _date(name: str, days: np.ndarray, owners: np.ndarray) -> tuple[dict[str, Any] | None, str | None]:
    record, note = _number(name, days, owners, lambda values: np.ones(len(values), dtype=bool))
    return (record | {"date": True} if record else None), note


def _number(
    name: str, values: np.ndarray, owners: np.ndarray, sound: Callable[[np.ndarray], np.ndarray]
) -> tuple[dict[str, Any] | None, str | None]:
    missing = np.isnan(values)
    if endless(values):
        raise UserError(
            f"data: column {name!r} holds infinite numbers, or some beyond {LARGEST:g}. Fix: leave those cells empty,"
            " or drop the column."
        )
    counted = sound(values)
    mean, deviation = standard(values[counted], owners[counted])
    if missing.all():
        return None, f"column {name!r} is empty and left out"
    if not deviation and not missing.any():
        return None, f"column {name!r} is {mean:g} throughout and left out"
    record = {"name": name, "kind": "number", "mean": mean, "deviation": deviation, "missing": bool(missing.any())}
    return record, None


def _category(name: str, values: Any, owners: np.ndarray) -> tuple[dict[str, Any] | None, str | None]:
    held = texts(values)
    counts = held.value_counts()  # without missing ones
    found, rows, missing = len(counts), int(counts.sum()), bool(values.isna().any())
    if not found:
        return None, f"column {name!r} is empty and left out"
    if found == 1 and not missing:
        return None, f"column {name!r} is {counts.index[0]!r} throughout and left out"
    odd = _odd(held, counts)
    if found > MOST_CATEGORIES and found > rows / 2:
        days, strange = parsed(values, date=True)
        if counts.index.str.match(DATE).all() and not strange.any():
            record, note = _date(name, days, owners)
            return record, note or f"column {name!r} is taken for dates"
        some = f"such as {counts.index[0]!r} ({found} of {rows})"
        return None, f"column {name!r} is left out: nearly every row has a text of its own there, {some}{odd}"
    kept = sorted(counts.index[:MOST_CATEGORIES].tolist())
    record = {"name": name, "kind": "category", "values": kept, "missing": missing}
    if found == len(kept):
        return record, f"column {name!r} is taken for categories{odd}" if odd else None
    return record | {"others": True}, f"column {name!r}: {found} texts, of which the {len(kept)} commonest count{odd}"


def _odd(held: Any, counts: Any) -> str:
    """What keeps texts that are mostly numbers from being a column of numbers; "" for other texts. held: a pandas
    Series of texts; counts: how often each occurs."""
    import pandas as pd

    words = pd.to_numeric(pd.Series(counts.index), errors="coerce").isna().to_numpy()
    rows, numbers = int(counts.sum()), int(counts[~words].sum())
    if not words.any() or numbers <= rows / 2:
        return ""
    word = counts.index[words.argmax()]
    row = int((held == word).to_numpy().argmax()) + 1
    return f": {numbers} of {rows} cells are numbers, but {word!r} in row {row} is none"
