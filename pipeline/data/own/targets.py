"""What is to be predicted: classes with names, or numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from pipeline.data.own.columns import LARGEST, endless
from pipeline.errors import UserError

MOST_CLASSES = 20
"""Whole numbers with more values than this are numbers to predict, unless `data.task` says otherwise."""


def described(key: str, values: np.ndarray, task: str) -> dict[str, Any]:
    """The record of the targets: {"classes": [names]} or {"classes": []}.

    key: what a complaint calls them. values: all there are, [M]. task: `data.task`. UserError for missing targets, and
    texts that are to be numbers.
    """
    missing = is_missing(values)
    if missing.any():
        raise UserError(
            f"{key}: {missing.sum()} of {len(values)} samples have no value there, the first in row"
            f" {int(missing.argmax()) + 1}. Fix: remove them from the data."
        )
    distinct = np.unique(values.astype(str) if values.dtype.kind == "O" else values)
    if task == "auto":
        whole = values.dtype.kind in "iu" or (values.dtype.kind == "f" and bool((values == np.round(values)).all()))
        few = values.dtype.kind not in "iuf" or (whole and len(distinct) <= MOST_CLASSES)
        task = "classification" if few else "regression"
    if task == "regression":
        if values.dtype.kind not in "iufb":
            raise UserError(
                f"{key}: it holds texts, such as {values[0]!r}, and data.task is regression. Fix: data.task: auto."
            )
        if endless(values.astype(np.float64)):
            raise UserError(f"{key}: it holds infinite numbers, or some beyond {LARGEST:g}. Fix: remove those samples.")
        if len(distinct) < 2:
            raise UserError(f"{key}: it is {distinct[0]} throughout. Fix: name the column to predict.")
        return {"classes": []}
    if len(distinct) < 2:
        raise UserError(
            f"{key}: there is only one class, {class_name(distinct[0])!r}. Fix: data of at least two classes."
        )
    if len(distinct) > max(1000, len(values) // 2):
        raise UserError(
            f"{key}: nearly every sample has a class of its own ({len(distinct)} classes, {len(values)} samples)."
            " Fix: name the column to predict, or data.task: regression."
        )
    return {"classes": [class_name(value) for value in distinct]}


def encoded(record: dict[str, Any], values: np.ndarray, key: str) -> np.ndarray:
    """int64 classes by the record, or float64 numbers, [M]; UserError for a class it does not know."""
    if not record["classes"]:
        return values.astype(np.float64)
    number = {name: i for i, name in enumerate(record["classes"])}
    distinct, which = np.unique(values.astype(str) if values.dtype.kind == "O" else values, return_inverse=True)
    names = [class_name(value) for value in distinct]
    strange = [name for name in names if name not in number]
    if strange:
        raise UserError(f"{key}: class {strange[0]!r} is not among {', '.join(map(repr, number))}. Fix: correct it.")
    return np.array([number[name] for name in names], dtype=np.int64)[which.reshape(-1)]


def class_name(value: Any) -> str:
    """1.0 is 1."""
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    return str(value)


def is_missing(values: np.ndarray) -> np.ndarray:
    """[M] bool."""
    if values.dtype.kind == "f":
        return np.isnan(values)
    if values.dtype.kind == "O":
        return np.array([value is None or value != value or value == "" for value in values], dtype=bool)
    return np.zeros(len(values), dtype=bool)
