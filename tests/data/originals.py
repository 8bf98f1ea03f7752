"""Original files in miniature: the published formats, with content of our own."""

from __future__ import annotations

import gzip
import hashlib
import io
import struct
import tarfile
from pathlib import Path

import numpy as np

from pipeline.data.originals.fetching import OriginalFile, Source


def idx(array: np.ndarray) -> bytes:
    """MNIST's format: 0, 0, type 8 (byte), dimensions, sizes (big-endian, 32 bits), then the bytes."""
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def mnist_contents(seed: int = 0) -> dict[str, bytes]:
    """The four files of a ten-class data set with 40 training and 20 test images, unpacked."""
    random = np.random.default_rng(seed)
    contents = {}
    for part, count in (("train", 40), ("t10k", 20)):
        images = random.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        contents[f"{part}-images-idx3-ubyte.gz"] = idx(images)
        contents[f"{part}-labels-idx1-ubyte.gz"] = idx((np.arange(count) % 10).astype(np.uint8))
    return contents


def mnist_source(contents: dict[str, bytes], **more: object) -> Source:
    files = tuple(OriginalFile(name, hashlib.md5(content).hexdigest()) for name, content in contents.items())
    return Source("mnist", files, **more)  # type: ignore[arg-type]


def write_packed(folder: Path, contents: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (folder / name).write_bytes(gzip.compress(content))
    return folder


def _text(value: bytes) -> bytes:
    """Python 2's str: opcode BINSTRING, length, bytes."""
    return b"T" + struct.pack("<i", len(value)) + value


def _number(value: int) -> bytes:
    return b"J" + struct.pack("<i", value)


def python2_array(array: np.ndarray) -> bytes:
    """A uint8 array as Python 2's numpy pickled it (protocol 2), opcode by opcode."""
    shape = b"".join(map(_number, array.shape))
    dtype = (
        b"cnumpy\ndtype\n" + _text(b"u1") + _number(0) + _number(1) + b"\x87R"
        b"(" + _number(3) + _text(b"|") + b"NNN" + _number(-1) + _number(-1) + _number(0) + b"tb"
    )
    return (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n" + _number(0) + b"\x85" + _text(b"b") + b"\x87R"
        b"(" + _number(1) + b"(" + shape + b"t" + dtype + b"\x89" + _text(array.tobytes()) + b"tb"
    )


def python2_batch(images: np.ndarray, labels: list[int], key: str) -> bytes:
    """One member of a CIFAR archive: {"data": uint8 [n, 3072], key: [labels]}."""
    items = b"".join(map(_number, labels))
    return b"\x80\x02}(" + _text(b"data") + python2_array(images) + _text(key.encode()) + b"](" + items + b"eu."


def archive(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def archive_source(dataset: str, name: str, content: bytes) -> Source:
    return Source(dataset, (OriginalFile(name, hashlib.md5(content).hexdigest()),))
