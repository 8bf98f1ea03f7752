"""Columns of a table: numbers and categories, missing values, and statistics that a federation can compute.

A number's scale comes from each client's count, sum and sum of squares alone: the median over clients of their means,
and of their mean squares about it. So a client that stores metres as millimetres does not decide what everyone else's
samples look like. Inputs stay within +-LIMIT deviations. A missing number becomes the mean, and a further feature says
that it was missing; a missing category has a feature of its own.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pipeline.errors import UserError

LIMIT = 10.0
"""Largest input, in standard deviations."""
LARGEST = 1e30
"""A number beyond it is a mistake; in float32 it would soon be infinite."""
MOST_CATEGORIES = 100
"""The rarer ones of a column have no feature of their own."""


def described(name: str, values: Any, owners: np.ndarray) -> tuple[dict[str, Any] | None, str | None]:
    """The record of a column, None if it says nothing; and a note on it.

    values: a pandas Series, of the clients' rows; owners: whose they are, [M].
    """
    if is_number(values):
        return _number(name, values.to_numpy(dtype=np.float64, na_value=np.nan), owners)
    return _category(name, values)


def is_number(values: Any) -> bool:
    """Whether a pandas Series holds numbers, or true and false."""
    from pandas.api.types import is_bool_dtype, is_numeric_dtype

    return bool(is_numeric_dtype(values.dtype) or is_bool_dtype(values.dtype))


def endless(values: np.ndarray) -> bool:
    """Whether a number is infinite, or as good as infinite; missing ones (nan) are not."""
    return bool((np.abs(values) > LARGEST).any())


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


def _number(name: str, values: np.ndarray, owners: np.ndarray) -> tuple[dict[str, Any] | None, str | None]:
    missing = np.isnan(values)
    if endless(values):
        raise UserError(
            f"data: column {name!r} holds infinite numbers, or some beyond {LARGEST:g}. Fix: leave those cells empty,"
            " or drop the column."
        )
    mean, deviation = standard(values, owners)
    if missing.all():
        return None, f"column {name!r} is empty and left out"
    if not deviation and not missing.any():
        return None, f"column {name!r} is {mean:g} throughout and left out"
    record = {"name": name, "kind": "number", "mean": mean, "deviation": deviation, "missing": bool(missing.any())}
    return record, None


def _category(name: str, values: Any) -> tuple[dict[str, Any] | None, str | None]:
    counts = values.astype(str).where(values.notna()).value_counts()  # without missing ones
    found, rows, missing = len(counts), int(counts.sum()), bool(values.isna().any())
    if not found:
        return None, f"column {name!r} is empty and left out"
    if found == 1 and not missing:
        return None, f"column {name!r} is {counts.index[0]!r} throughout and left out"
    if found > MOST_CATEGORIES and found > rows / 2:
        return None, f"column {name!r} is left out: nearly every row has a text of its own there ({found} of {rows})"
    kept = sorted(counts.index[:MOST_CATEGORIES].tolist())
    note = (
        f"column {name!r}: {found} texts, of which the {MOST_CATEGORIES} commonest count" if found > len(kept) else None
    )
    return {"name": name, "kind": "category", "values": kept, "missing": missing}, note if found > len(kept) else None


def features(record: dict[str, Any]) -> list[str]:
    """Names of the features that a column becomes."""
    name = record["name"]
    own = [name] if record["kind"] == "number" else [f"{name} = {value}" for value in record["values"]]
    return own + ([f"{name} is missing"] if record["missing"] else [])


def encoded(record: dict[str, Any], values: Any, out: np.ndarray) -> None:
    """Fill `out`, [M, len(features)], float32, from a pandas Series; UserError for a text where numbers belong."""
    missing = values.isna().to_numpy()
    if record["kind"] == "number":
        if not is_number(values) and not missing.all():
            raise UserError(
                f"data: column {record['name']!r} holds texts, such as {_first(values)!r}, where the clients' rows hold"
                " numbers. Fix: correct it."
            )
        numbers = values.to_numpy(dtype=np.float64, na_value=np.nan)
        scaled = (numbers - record["mean"]) / (record["deviation"] or 1.0)
        out[:, 0] = np.nan_to_num(np.clip(scaled, -LIMIT, LIMIT), nan=0.0)
    else:
        import pandas as pd

        codes = pd.Index(record["values"]).get_indexer(values.astype(str).where(~missing))
        rows = np.flatnonzero(codes >= 0)
        out[rows, codes[rows]] = 1.0
    if record["missing"]:
        out[:, -1] = missing


def _first(values: Any) -> Any:
    return values.dropna().iloc[0]
