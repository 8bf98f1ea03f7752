"""Samples handed over as arrays: checked, and as tensors [m, C, H, W]."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pipeline.errors import UserError, not_allowed

Samples = tuple[np.ndarray, np.ndarray]
"""Features or images X, labels y."""


@dataclass(frozen=True, eq=False)
class Stored:
    """X [m, C, H, W], uint8 or float, and y int64 [m], of each of some sets of samples."""

    images: list[Tensor]
    labels: list[Tensor]
    vectors: bool


def stored(sets: dict[str, Samples], classes: int) -> Stored:
    """Vectors X [m, f] as f channels of one pixel; images [m, H, W] or [m, C, H, W] as they are. uint8 images stay
    uint8 if all are; float32 stays float32 if all is; other numbers become float64.

    sets: by what a complaint calls them. Raises UserError for shapes that do not fit together, what is not a finite
    number, and labels outside 0..classes-1.
    """
    arrays = {name: np.asarray(X) for name, (X, _) in sets.items()}
    first, shape = next((name, array.shape[1:]) for name, array in arrays.items())
    if len(shape) not in (1, 2, 3):
        allowed = "[m, f] for vectors, [m, H, W] or [m, C, H, W] for images"
        raise not_allowed(f"{first}: shape of X", arrays[first].shape, allowed, "reshape it")
    for name, array in arrays.items():
        if array.dtype.kind not in "biuf":
            raise not_allowed(f"{name}: dtype of X", str(array.dtype), "a number", "encode categories as 0/1 columns")
        if array.shape[1:] != shape or not len(array):
            allowed = f"at least one sample of shape {shape}, as the {first} samples have"
            raise not_allowed(f"{name}: shape of X", array.shape, allowed, "give all samples the same features")
        require_finite(name, array)
    dtype = _common(list(arrays.values()), vectors=len(shape) == 1)
    full = {1: (-1, *shape, 1, 1), 2: (-1, 1, *shape), 3: (-1, *shape)}[len(shape)]
    images = [torch.tensor(array.astype(dtype).reshape(full)) for array in arrays.values()]
    labels = [_labels(name, y, len(arrays[name]), classes) for name, (_, y) in sets.items()]
    return Stored(images, labels, len(shape) == 1)


def require_finite(name: str, X: np.ndarray) -> None:
    """UserError with the place of the first number that is missing or infinite."""
    wrong = ~np.isfinite(X)
    if wrong.any():
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise not_allowed(
            f"{name}: X{list(at)}", float(X[at]), "a finite number", "fill in missing values, or drop the sample"
        )


def _common(arrays: Sequence[np.ndarray], vectors: bool) -> np.dtype:
    kinds = {array.dtype for array in arrays}
    keep = (np.float32,) if vectors else (np.float32, np.uint8)
    return next((np.dtype(kind) for kind in keep if kinds == {np.dtype(kind)}), np.dtype(np.float64))


def _labels(name: str, y: np.ndarray, count: int, classes: int) -> Tensor:
    y = np.asarray(y)
    if y.shape != (count,):
        raise UserError(
            f"{name}: {count} samples have labels of shape {y.shape}. Fix: one label per sample, [{count}]."
        )
    whole = y.astype(np.int64) if y.dtype.kind in "biuf" and np.isfinite(y).all() else None
    if whole is None or (whole != y).any() or whole.min() < 0 or whole.max() >= classes:
        wrong = y[0] if whole is None else y[(whole != y) | (whole < 0) | (whole >= classes)][0]
        shown = wrong.item() if isinstance(wrong, np.generic) else wrong
        fix = f"number the classes from 0 to {classes - 1}"
        raise not_allowed(f"{name}: label", shown, f"a whole number in 0..{classes - 1}", fix)
    return torch.tensor(whole)
