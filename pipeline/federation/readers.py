"""From a site's files to samples. A reader of your own is any function (path, **options) -> (X, y, names)."""

from __future__ import annotations

import csv
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.config import own_code
from pipeline.data.arrays import require_finite
from pipeline.errors import UserError
from pipeline.federation.settings import Reader

Table = tuple[np.ndarray, np.ndarray, list[str]]
"""X [m, ...], labels y [m] from 0 on, and what identifies the columns: all participants must have the same."""


def reading(settings: Reader) -> Callable[[Path], Table]:
    """The reader that the settings name, with its options. UserError for options that it does not have, and for
    anything but a table."""
    reader: Any = own_code.found_at("data.reader", settings.reader, None, "function", " (path, **options)")
    try:
        inspect.signature(reader).bind(Path(), **settings.options)
    except TypeError as error:
        raise UserError(
            f"data.options = {settings.options}: {settings.reader} has {error}. Fix: its options."
        ) from None

    def read(path: Path) -> Table:
        table = reader(path, **settings.options)
        try:
            X, y, names = table
            return np.asarray(X), np.asarray(y), [str(name) for name in names]
        except (TypeError, ValueError):
            raise UserError(
                f"data.reader = {settings.reader!r} returned {type(table).__name__}. Fix: (X, y, names of the columns)."
            ) from None

    return read


def csv_file(path: Path, label: str = "label") -> Table:
    """A CSV file with a header; every column but the label is a numeric feature. Raises UserError."""
    if not path.is_file():
        raise UserError(f"{path} does not exist. Fix: put the data there, or name the file in `data`.")
    with path.open(newline="", encoding="utf-8") as file:
        header, *rows = list(csv.reader(file)) or [[]]
    if label not in header or not rows:
        raise UserError(f"{path}: no column {label!r}, or no rows; columns are {header}. Fix: data.options: label.")
    try:
        table = np.array([[float(cell or "nan") for cell in row] for row in rows if row])
    except ValueError as error:
        raise UserError(f"{path}: {error}. Fix: numbers in all columns.") from None
    at = header.index(label)
    X = np.delete(table, at, axis=1).astype(np.float32)
    require_finite(str(path), X)
    return X, table[:, at], [name for name in header if name != label]


def npz_file(path: Path) -> Table:
    """NumPy arrays X (vectors [m, f], or images [m, H, W] or [m, C, H, W]) and y. Raises UserError."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return arrays["X"], arrays["y"], []
    except (OSError, KeyError, ValueError) as error:
        raise UserError(f"{path}: {error}. Fix: numpy.savez(path, X=..., y=...).") from None
