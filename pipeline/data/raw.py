"""A data set in memory: training and test samples with their targets, and facts about them."""

from __future__ import annotations

import hashlib
import struct
import tokenize
import zipfile
import zlib
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.errors import UserError, not_allowed

if TYPE_CHECKING:
    from pipeline.data.settings import Subset

ARRAYS = ("train_images", "train_labels", "test_images", "test_labels")
FURTHER = ("owners", "groups")
"""Arrays that only a user's own data have."""
UNREADABLE = (
    *(OSError, EOFError, ValueError, ArithmeticError, MemoryError, RuntimeError, SyntaxError),
    *(zipfile.BadZipFile, zlib.error, struct.error, tokenize.TokenError),
)
"""What numpy raises for a damaged .npy or .npz file."""
VALIDATION, SELECTION = -1, -2
"""Owners of training rows that are the server's."""


@dataclass(frozen=True)
class DatasetInfo:
    """What the samples are.

    classes: 0 where targets are numbers. size: images are size x size pixels; 1 for vectors, whose features are the
    channels. images: number of training samples in the files, whatever `subset` keeps of them. means, deviations: of
    each channel, for normalisation. few_shot: the test's classes are not among the training classes. clients: they
    come with clients of their own.
    """

    classes: int
    channels: int
    size: int
    images: int
    means: tuple[float, ...]
    deviations: tuple[float, ...]
    few_shot: bool = False
    clients: bool = False


@dataclass(frozen=True, eq=False)
class RawDataset:
    """Samples [M, C, H, W] (images uint8, everything else float32 or int64; a vector of f features is an image of f
    channels and one pixel) and targets [M]: int64 in 0..classes-1, or float64 where `classes` is 0. Test likewise.

    Of a user's own data also:

    | field | what |
    |---|---|
    | owners | whose each training row is, int64 [M]: a client's number, or the server's VALIDATION or SELECTION |
    | client_names | of each client; none: the rows are a pool, to be dealt by a scheme |
    | groups | rows of one group never lie on both sides of a split, int64 [M]; None: every row is its own |
    | class_names | of each class; none: their numbers |
    | preprocessing | how raw samples become these (`pipeline.data.own`), to go with the served model |
    | notes | what a person should know of the data, a line each |

    Their test samples may be missing: then some of the training rows are held out. Raises ValueError if things do not
    fit together.
    """

    name: str
    classes: int
    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray
    owners: np.ndarray | None = None
    client_names: tuple[str, ...] = ()
    groups: np.ndarray | None = None
    class_names: tuple[str, ...] = ()
    preprocessing: dict[str, Any] | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        kind = np.dtype(np.int64 if self.classes else np.float64)
        for part in ("train", "test"):
            images, labels = getattr(self, f"{part}_images"), getattr(self, f"{part}_labels")
            if images.dtype not in (np.uint8, np.float32, np.int64) or images.ndim != 4:
                allowed = "uint8, float32 or int64 [M, C, H, W]"
                raise ValueError(f"{part}_images must be {allowed}, got {images.dtype} {list(images.shape)}")
            if labels.dtype != kind or labels.shape != images.shape[:1]:
                raise ValueError(
                    f"{part}_labels must be {kind} [{len(images)}], one per image,"
                    f" got {labels.dtype} {list(labels.shape)}"
                )
            if not len(labels) and part == "test" and self.own:
                continue
            if len(labels) == 0 or (self.classes and (labels.min() < 0 or labels.max() >= self.classes)):
                raise ValueError(f"{part}_labels must be some numbers in 0..{self.classes - 1}")
        if self.train_images.shape[1:] != self.test_images.shape[1:]:
            raise ValueError("training and test images must have one shape")
        for name in FURTHER:
            array = getattr(self, name)
            if array is not None and (array.dtype != np.int64 or array.shape != self.train_labels.shape):
                raise ValueError(f"{name} must be int64, one per training image")

    @property
    def own(self) -> bool:
        """Whether they are a user's own."""
        return self.owners is not None

    @cached_property
    def info(self) -> DatasetInfo:
        """What can be known of own data once they are read."""
        images = self.train_images[:10_000]
        channels, size = images.shape[1], images.shape[-1]
        unit = 255 if images.dtype == np.uint8 else 1
        means, deviations = (0.0,) * channels, (1.0,) * channels
        if size > 1:
            means = tuple((images.mean((0, 2, 3)) / unit).tolist())
            deviations = tuple(np.maximum(images.std((0, 2, 3)) / unit, 1e-3).tolist())
        rows = int((self.owners >= 0).sum()) if self.owners is not None else len(self.train_labels)
        return DatasetInfo(self.classes, channels, size, rows, means, deviations, clients=bool(self.client_names))

    def first(self, subset: Subset) -> RawDataset:
        """Only the first training and test images; UserError if there are fewer than asked."""
        if self.own and (subset.train, subset.test) != ("all", "all"):
            raise UserError(
                f"subset does not go with data.name: {self.name}: its first rows would be the first clients' alone."
                " Fix: subset.train and subset.test: all; or a smaller file."
            )
        counts = {
            part: first(f"subset.{part}", getattr(subset, part), len(getattr(self, f"{part}_labels")), self.name)
            for part in ("train", "test")
        }
        if (counts["train"], counts["test"]) == (len(self.train_labels), len(self.test_labels)):
            return self
        cut = {name: getattr(self, name)[: counts[name.split("_")[0]]] for name in ARRAYS}
        return RawDataset(self.name, self.classes, **cut)

    @cached_property
    def hash(self) -> str:
        """sha256 over name, classes and content."""
        parts = [self.name, str(self.classes), *(digest(getattr(self, name)) for name in ARRAYS)]
        parts += [digest(array) for name in FURTHER if (array := getattr(self, name)) is not None]
        return hashlib.sha256("\n".join([*parts, *self.client_names, *self.class_names]).encode()).hexdigest()


def first(key: str, wanted: int | str, held: int, name: str) -> int:
    """How many images are used; UserError for more than there are. wanted: a number or all."""
    if isinstance(wanted, str):
        return held
    if wanted > held:
        raise not_allowed(key, wanted, f"at most {held}, the images of {name}", f"{key}: all")
    return wanted


def digest(array: np.ndarray) -> str:
    """sha256 of the values in row-major, little-endian order."""
    little = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    return hashlib.sha256(little.data).hexdigest()


def row_hashes(rows: np.ndarray) -> np.ndarray:
    """uint64 [M], equal for equal samples [M, ...]: for finding the same one twice."""
    if not len(rows):
        return np.zeros(0, dtype=np.uint64)
    flat = np.ascontiguousarray(rows).reshape(len(rows), -1)
    words = flat.view(np.uint32) if flat.dtype.itemsize % 4 == 0 else flat
    random = np.random.default_rng(0).integers(1, 2**63, words.shape[1], dtype=np.uint64) | np.uint64(1)
    found = np.zeros(len(rows), dtype=np.uint64)
    with np.errstate(over="ignore"):
        for column, factor in enumerate(random):
            found += (words[:, column].astype(np.uint64) + np.uint64(1)) * factor
            found ^= found >> np.uint64(29)
    return found
