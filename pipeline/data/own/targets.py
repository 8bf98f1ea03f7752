"""What is to be predicted: classes with names, or numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from pipeline.data.own.columns import LARGEST, endless
from pipeline.errors import UserError

MOST_CLASSES = 20
"""Whole numbers with more values than this are numbers to predict, unless `data.task` says otherwise."""


def described(key: str, values: np.ndarray, task: str) -> dict[str, Any]:
    """The record of the targets: {"classes": [names], "given": booleans, numbers or texts}; no classes of numbers to
    predict.

    key: what a complaint calls them. values: all there are, [M]. task: `data.task`. UserError for texts that are to be
    numbers.
    """
    distinct = np.unique(values.astype(str) if values.dtype.kind == "O" else values)
    if task == "auto":
        _require_no_stray_text(key, values, distinct)
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
        return {"classes": [], "given": "numbers"}
    if len(distinct) < 2:
        raise UserError(
            f"{key}: there is only one class, {class_name(distinct[0])!r}. Fix: data of at least two classes."
        )
    many = MOST_CLASSES if fractions(values) else 1000
    if len(distinct) > max(many, len(values) // 2):
        raise UserError(
            f"{key}: nearly every sample has a class of its own ({len(distinct)} classes, {len(values)} samples)."
            " Fix: name the column to predict, or data.task: regression."
        )
    kind = "booleans" if values.dtype.kind == "b" else "numbers" if values.dtype.kind in "iuf" else "texts"
    return {"classes": [class_name(value) for value in distinct], "given": kind}


def fractions(values: np.ndarray) -> bool:
    """Whether they are numbers, not all of them whole."""
    return values.dtype.kind == "f" and bool((values != np.round(values)).any())


def _require_no_stray_text(key: str, values: np.ndarray, distinct: np.ndarray) -> None:
    """UserError for many numbers among which a few texts lie: they would be as many classes."""
    if values.dtype.kind in "biuf" or len(distinct) <= MOST_CLASSES:
        return
    numbers = _as_numbers(distinct)
    strange = np.isnan(numbers)
    if strange.sum() > len(distinct) / 2:
        return
    if not strange.any():
        raise UserError(
            f"{key}: it holds numbers written as texts, such as {distinct[0]!r}. Fix: store numbers, or data.task:"
            " classification."
        )
    first = int((values.astype(str) == distinct[strange.argmax()]).argmax())
    raise UserError(
        f"{key}: {values[first]!r} is no number, and {len(distinct) - strange.sum()} of {len(distinct)} other"
        " values are. Fix: correct it, or data.task: classification."
    )


def _as_numbers(texts: np.ndarray) -> np.ndarray:
    import pandas as pd

    return pd.to_numeric(pd.Series(texts.astype(str)), errors="coerce").to_numpy(dtype=np.float64)


def one_kind(key: str, y: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Targets of each set, numbers everywhere or texts everywhere: where one file writes 1 and another "1", or numbers
    are the names of classes. UserError if a set's are texts and another's numbers that are no such names."""
    texts = {part: values for part, values in y.items() if values.dtype.kind not in "biuf"}
    numbers = {part: values for part, values in y.items() if part not in texts}
    if not texts or not numbers:
        return y
    parsed = {part: _as_numbers(values) for part, values in texts.items()}
    if not any(np.isnan(values).any() for values in parsed.values()):
        return {part: parsed.get(part, values) for part, values in y.items()}
    as_texts = {part: np.array([class_name(v) for v in values], dtype=object) for part, values in y.items()}
    known = {name for part in texts for name in as_texts[part]}
    for part in numbers:
        if not known.issuperset(as_texts[part]):
            other = next(part for part, values in parsed.items() if np.isnan(values).any())
            first = int(np.isnan(parsed[other]).argmax())
            what = "true and false" if numbers[part].dtype.kind == "b" else "numbers"
            raise UserError(
                f"{key}: it is {texts[other][first]!r} in row {first + 1} of {other}, and {part} holds {what}, such as"
                f" {class_name(numbers[part][0])}. Fix: one kind everywhere."
            )
    return as_texts


def require_present(key: str, values: np.ndarray, part: str) -> None:
    """UserError for missing targets. part: the set that they are of."""
    missing = is_missing(values)
    if missing.any():
        raise UserError(
            f"{key}: {missing.sum()} of {len(values)} samples ({part}) have no value there, the first in row"
            f" {int(missing.argmax()) + 1}. Fix: remove them from the data."
        )


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
