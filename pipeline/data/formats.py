"""From original files, or from nothing, to a data set in memory: one reader per format."""

from __future__ import annotations

import io
import pickle
import tarfile
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from pipeline.data import characters
from pipeline.data.catalog import CATALOG
from pipeline.data.raw import RawDataset
from pipeline.errors import UserError
from pipeline.seeds import numpy_generator


def digits() -> RawDataset:
    """1797 real 8x8 digits, pixels 0..16; a fifth of them, always the same, is the test set."""
    from sklearn.datasets import load_digits

    found = load_digits()
    images = upsample(found.images.astype(np.int64), 28, top=16)[:, None]
    labels = found.target.astype(np.int64)
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
    "omniglot": characters.omniglot,
}
"""How each data set that is fetched is read from its original files."""

EMBEDDED: dict[str, tuple[Callable[[], RawDataset], str, str]] = {
    "digits": (digits, "scikit-learn", "scikit-learn's embedded handwritten digits, bilinear 8x8 to 28x28"),
    "glyphs": (characters.glyphs, "its generator", "random strokes, bent and tilted; see pipeline/data/characters.py"),
}
"""Data sets that need no download: function, where they come from, what they are."""
