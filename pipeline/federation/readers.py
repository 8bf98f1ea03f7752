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
from pipeline.errors import UserError, not_allowed
from pipeline.federation.settings import Reader

Table = tuple[np.ndarray, np.ndarray, list[str]]
"""X [m, ...], labels y [m] from 0 on, and what identifies the columns: all participants must have the same."""


def reading(settings: Reader) -> Callable[[Path], Table]:
    """The reader that the settings name, with its options. UserError for options that it does not have, and for
    anything but a table."""
    reader: Any = own_code.found_at("data.reader", settings.reader, None, "function", " (path, **options)")
    signature = inspect.signature(reader)
    try:
        signature.bind(Path(), **settings.options)
    except TypeError as error:
        known = f"options of {settings.reader}: {', '.join(list(signature.parameters)[1:]) or 'none'}"
        raise not_allowed("data.options", settings.options, known, f"correct them ({error})") from None

    def read(path: Path) -> Table:
        try:
            table = reader(path, **settings.options)
        except UserError:
            raise
        except Exception as error:
            said = own_code.cause(error)
            raise UserError(f"data.reader = {settings.reader!r} failed on {path} ({said}). Fix: correct it.") from error
        try:
            X, y, names = table
            found = np.asarray(X), np.asarray(y), [str(name) for name in names]
        except (TypeError, ValueError):
            raise UserError(
                f"data.reader = {settings.reader!r} returned {type(table).__name__}. Fix: (X, y, names of the columns)."
            ) from None
        _require_labels(path, found[1])
        return found

    return read


def _require_labels(path: Path, y: np.ndarray) -> None:
    """UserError unless they are whole numbers from 0 on. How many classes there are, the server knows."""
    whole = y.dtype.kind in "biuf" and bool(np.isfinite(y).all() and (y >= 0).all() and (y % 1 == 0).all())
    if not whole:
        wrong = y[0] if y.dtype.kind not in "biuf" else y[~(np.isfinite(y) & (y >= 0) & (y % 1 == 0))][0]
        raise not_allowed(f"{path}: label", str(wrong), "a whole number from 0 on", "number the classes 0, 1, ...")


def csv_file(path: Path, label: str = "label") -> Table:
    """A CSV file with a header; every column but the label is a numeric feature. Raises UserError."""
    if not path.is_file():
        raise UserError(f"{path} does not exist. Fix: put the data there, or name the file in `data`.")
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = list(csv.reader(file))
    except UnicodeDecodeError:
        raise UserError(f"{path} is no UTF-8 text. Fix: save it as CSV in UTF-8.") from None
    header, *rows = lines or [[]]
    if label not in header or not any(rows):
        raise UserError(f"{path}: no column {label!r}, or no rows; columns are {header}. Fix: data.options: label.")
    if ragged := [number for number, row in enumerate(rows, 2) if row and len(row) != len(header)]:
        cells = len(rows[ragged[0] - 2])
        raise UserError(f"{path}, line {ragged[0]}: {cells} cells, not {len(header)}. Fix: one cell for each column.")
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
