"""A data set in memory: training and test images with their labels."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from pipeline.errors import not_allowed

if TYPE_CHECKING:
    from pipeline.data.settings import Subset

ARRAYS = ("train_images", "train_labels", "test_images", "test_labels")


@dataclass(frozen=True, eq=False)
class RawDataset:
    """Images uint8 [M, C, H, W] and labels int64 [M] in 0..classes-1; test likewise.

    Raises ValueError if they do not fit together.
    """

    name: str
    classes: int
    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray

    def __post_init__(self) -> None:
        for part in ("train", "test"):
            images, labels = getattr(self, f"{part}_images"), getattr(self, f"{part}_labels")
            if images.dtype != np.uint8 or images.ndim != 4:
                raise ValueError(f"{part}_images must be uint8 [M, C, H, W], got {images.dtype} {list(images.shape)}")
            if labels.dtype != np.int64 or labels.shape != images.shape[:1]:
                raise ValueError(
                    f"{part}_labels must be int64 [{len(images)}], one per image,"
                    f" got {labels.dtype} {list(labels.shape)}"
                )
            if len(labels) == 0 or labels.min() < 0 or labels.max() >= self.classes:
                raise ValueError(f"{part}_labels must be some numbers in 0..{self.classes - 1}")
        if self.train_images.shape[1:] != self.test_images.shape[1:]:
            raise ValueError("training and test images must have one shape")

    def first(self, subset: Subset) -> RawDataset:
        """Only the first training and test images; UserError if there are fewer than asked."""
        counts = {}
        for part in ("train", "test"):
            wanted, held = getattr(subset, part), len(getattr(self, f"{part}_labels"))
            counts[part] = held if wanted == "all" else wanted
            if counts[part] > held:
                raise not_allowed(
                    f"subset.{part}", wanted, f"at most {held}, the images of {self.name}", f"subset.{part}: all"
                )
        if (counts["train"], counts["test"]) == (len(self.train_labels), len(self.test_labels)):
            return self
        cut = {name: getattr(self, name)[: counts[name.split("_")[0]]] for name in ARRAYS}
        return RawDataset(self.name, self.classes, **cut)

    @cached_property
    def hash(self) -> str:
        """sha256 over name, classes and content."""
        parts = [self.name, str(self.classes), *(digest(getattr(self, name)) for name in ARRAYS)]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def digest(array: np.ndarray) -> str:
    """sha256 of the values in row-major, little-endian order."""
    little = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    return hashlib.sha256(little.data).hexdigest()
