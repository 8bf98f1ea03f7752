"""The canonical form of a data set: four arrays and a description in one folder, whatever the original.

    train_images.npy  uint8 [M, C, H, W]      train_labels.npy  int64 [M]
    test_images.npy   uint8 [T, C, H, W]      test_labels.npy   int64 [T]
    meta.json         name, classes, source, counts, and shape and sha256 of each array

The folder's bytes depend on the content only, not on the place it was fetched from: machines with different
mirrors agree on every hash downstream.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import os
import pickle
import shutil
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.data.catalog import CATALOG
from pipeline.data.sources import SOURCES, Source, fetch
from pipeline.errors import UserError, not_allowed
from pipeline.params import Subset
from pipeline.seeds import numpy_generator

ARRAYS = ("train_images", "train_labels", "test_images", "test_labels")
META = "meta.json"

_log = logging.getLogger(__name__)


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
        """The first training and test images alone; UserError if there are not so many."""
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
        parts = [self.name, str(self.classes), *(_digest(getattr(self, name)) for name in ARRAYS)]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _digest(array: np.ndarray) -> str:
    """sha256 of the values in row-major, little-endian order."""
    little = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    return hashlib.sha256(little.data).hexdigest()


# --------------------------------------------------------------------------------- prepare and load


def prepare(name: str, folder: Path, mirror: str | None = None, source: Source | None = None) -> str:
    """Write the canonical form into `folder`, which is replaced as a whole or left as it was.

    Returns one line on what it is and where it came from.

    mirror: see `pipeline.data.sources`. source: instead of the built-in record, for archives of the same
    form. Raises UserError if the data cannot be had.
    """
    if name not in CATALOG:
        raise not_allowed("data.name", name, f"one of {', '.join(CATALOG)}", "data.name: digits")
    if name == "digits":
        raw, places = _digits(), ["scikit-learn"]
        label = "scikit-learn's embedded handwritten digits, bilinear 8x8 to 28x28"
    else:
        source = source or SOURCES[name]
        fetched = fetch(source, mirror)
        for trouble in fetched.skipped:
            _log.warning("%s: passed over: %s", name, trouble)
        raw = READERS[name](name, fetched.contents)
        label = "original files, md5 " + ", ".join(f"{file.name} {file.md5}" for file in source.files)
        places = fetched.places
    _write(raw, label, folder)
    counts = f"{len(raw.train_labels)} training and {len(raw.test_labels)} test images"
    return f"{name}: {counts} from {', '.join(places)}"


def _write(raw: RawDataset, source: str, folder: Path) -> None:
    """Into a folder beside it, then renamed: a killed process leaves nothing half-written under the name."""
    folder = Path(folder)
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        meta: dict[str, Any] = {
            "name": raw.name,
            "classes": raw.classes,
            "source": source,
            "counts": {"train": len(raw.train_labels), "test": len(raw.test_labels)},
            "arrays": {},
        }
        for name in ARRAYS:
            array = getattr(raw, name)
            np.save(partial / f"{name}.npy", array, allow_pickle=False)
            meta["arrays"][name] = {"shape": list(array.shape), "sha256": _digest(array)}
        (partial / META).write_text(json.dumps(meta, indent=2) + "\n", encoding="utf-8")
        if folder.exists():
            shutil.rmtree(folder)
        os.replace(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def load(folder: Path) -> RawDataset:
    """The canonical form back, every array verified. Raises UserError naming the damaged or missing file."""
    folder = Path(folder)

    def damaged(file: str, what: str) -> UserError:
        return UserError(
            f"{folder / file} is damaged: {what}. Fix: delete the folder {folder} and run dvc repro again."
        )

    if not folder.is_dir():
        raise UserError(f"{folder} does not exist: the data set was not prepared. Fix: run dvc repro.")
    try:
        meta = json.loads((folder / META).read_text(encoding="utf-8"))
        name, classes, recorded = str(meta["name"]), int(meta["classes"]), meta["arrays"]
        expected = {array: (tuple(recorded[array]["shape"]), recorded[array]["sha256"]) for array in ARRAYS}
    except FileNotFoundError:
        raise damaged(META, "it is missing") from None
    except (ValueError, KeyError, TypeError):
        raise damaged(META, "it is not the description that was written") from None
    arrays = {}
    for array, (shape, sha256) in expected.items():
        file = f"{array}.npy"
        try:
            arrays[array] = np.load(folder / file, allow_pickle=False)
        except FileNotFoundError:
            raise damaged(file, "it is missing") from None
        except (ValueError, EOFError, OSError) as error:
            raise damaged(file, f"it cannot be read ({error})") from None
        if arrays[array].shape != shape:
            raise damaged(file, f"its shape is {list(arrays[array].shape)} instead of {list(shape)}")
        if _digest(arrays[array]) != sha256:
            raise damaged(file, f"its content is not what {META} records (sha256)")
    try:
        return RawDataset(name, classes, **arrays)
    except ValueError as error:
        raise damaged(META, str(error)) from None


# ------------------------------------------------------------------------------------------- formats


def _digits() -> RawDataset:
    """1797 real 8x8 digits, pixels 0..16; a fifth of them, always the same, is the test set."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = upsample(digits.images.astype(np.int64), 28, top=16)[:, None]
    labels = digits.target.astype(np.int64)
    order = numpy_generator(0, "digits-test-split").permutation(len(labels))
    test, train = np.split(order, [round(0.2 * len(labels))])
    return RawDataset("digits", 10, images[train], labels[train], images[test], labels[test])


def upsample(images: np.ndarray, size: int, top: int) -> np.ndarray:
    """Bilinear (pixel centres, edges repeated): [M, s, s] of 0..top to [M, size, size] uint8 of 0..255.

    In whole numbers, rounding halves up, so that every machine gets the same bytes: with weights in units of
    1/(2 size) all sums are exact.
    """
    s = images.shape[-1]
    unit = 2 * size
    # Centre of output pixel i in input coordinates, (i + 1/2) s / size - 1/2, kept inside, times `unit`.
    centre = np.clip((2 * np.arange(size) + 1) * s - size, 0, (s - 1) * unit)
    low, share = np.divmod(centre, unit)
    weights = np.zeros((size, s), dtype=np.int64)
    rows = np.arange(size)
    np.add.at(weights, (rows, low), unit - share)
    np.add.at(weights, (rows, np.minimum(low + 1, s - 1)), share)
    total = weights @ images @ weights.T  # [M, size, size], in 0..top unit^2
    whole = top * unit**2
    return ((2 * 255 * total + whole) // (2 * whole)).astype(np.uint8)


def _idx_dataset(name: str, contents: Mapping[str, bytes]) -> RawDataset:
    """The four files of MNIST's format: a big-endian header (type, dimensions), then bytes."""

    def read(stem: str, dimensions: int) -> np.ndarray:
        data = contents[f"{stem}-idx{dimensions}-ubyte.gz"]
        header = 4 + 4 * dimensions
        shape = np.frombuffer(data, dtype=">u4", count=dimensions, offset=4)
        return np.frombuffer(data, dtype=np.uint8, offset=header).reshape(*shape.tolist())

    arrays = [
        array
        for part in ("train", "t10k")
        for array in (read(f"{part}-images", 3)[:, None], read(f"{part}-labels", 1).astype(np.int64))
    ]
    return RawDataset(name, CATALOG[name].classes, *arrays)


def _cifar_dataset(name: str, contents: Mapping[str, bytes]) -> RawDataset:
    """CIFAR's archive of pickles, read in memory: only arrays and plain types pass, nothing is unpacked."""
    if name == "cifar10":
        base, key = "cifar-10-batches-py", "labels"
        members = {"train": [f"data_batch_{i}" for i in range(1, 6)], "test": ["test_batch"]}
    else:
        base, key = "cifar-100-python", "fine_labels"
        members = {"train": ["train"], "test": ["test"]}
    (content,) = contents.values()
    arrays = []
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as archive:
        for part in ("train", "test"):
            batches = [_unpickle(archive, f"{base}/{member}") for member in members[part]]
            arrays.append(np.concatenate([batch["data"] for batch in batches]).reshape(-1, 3, 32, 32))
            arrays.append(np.concatenate([np.asarray(batch[key], dtype=np.int64) for batch in batches]))
    return RawDataset(name, CATALOG[name].classes, *arrays)


def _unpickle(archive: tarfile.TarFile, member: str) -> dict[str, Any]:
    file = archive.extractfile(member)
    if file is None:
        raise UserError(f"{member} in the archive is not a file. Fix: use the original archive.")
    with file:
        try:
            # latin1: the archives hold Python 2's strings, which are bytes; arrays survive it unchanged.
            return _ArraysOnly(file, encoding="latin1").load()
        except pickle.UnpicklingError as error:
            raise UserError(f"{member} in the archive is refused: {error}. Fix: use the original archive.") from None


def _dtype(spec: str, *_: object) -> np.dtype[Any]:
    """What a pickled dtype calls. Its other arguments are dropped: numpy warns of the 0 and 1 of Python 2."""
    dtype = np.dtype(spec, copy=True)  # a copy, as the state that follows is set on it
    if dtype.hasobject:
        raise pickle.UnpicklingError("an array of Python objects")
    return dtype


def _latin1(text: str, encoding: str) -> bytes:
    """Python 3 writes bytes in old pickle protocols as text and this call."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"text in the encoding {encoding}")
    return text.encode("latin1")


_RECONSTRUCT = np.zeros(0).__reduce__()[0]
"""numpy's array constructor for pickles, wherever this numpy keeps it."""


class _ArraysOnly(pickle.Unpickler):
    """Admits what a numpy array of numbers needs, and plain types, which need nothing."""

    ADMITTED: Mapping[tuple[str, str], Any] = {
        ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
        ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): _dtype,
        ("_codecs", "encode"): _latin1,
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.ADMITTED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, and only arrays and plain types are admitted")
        return self.ADMITTED[module, name]


READERS: dict[str, Callable[[str, Mapping[str, bytes]], RawDataset]] = {
    "mnist": _idx_dataset,
    "fashion-mnist": _idx_dataset,
    "cifar10": _cifar_dataset,
    "cifar100": _cifar_dataset,
}
"""How each data set that is fetched is read from its original files."""
