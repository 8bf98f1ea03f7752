"""CIFAR's archives: pickles of Python 2 in a tar file, of which only arrays and plain types are admitted."""

from __future__ import annotations

import io
import pickle
import tarfile
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pipeline.errors import UserError


def batches(content: bytes, members: Sequence[str], labels: str) -> tuple[np.ndarray, np.ndarray]:
    """Images uint8 [M, 3, 32, 32] and labels int64 [M] of the archive's members, one after another; nothing is
    unpacked on disk. labels: the key they stand under."""
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as archive:
        found = [_unpickle(archive, member) for member in members]
    images = np.concatenate([batch["data"] for batch in found]).reshape(-1, 3, 32, 32)
    return images, np.concatenate([np.asarray(batch[labels], dtype=np.int64) for batch in found])


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
