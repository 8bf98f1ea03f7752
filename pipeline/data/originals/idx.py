"""MNIST's file format: a big-endian header (type, dimensions), then bytes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from pipeline.data.originals.fetching import OriginalFile


def files(*md5: str) -> tuple[OriginalFile, ...]:
    """The four files, by the md5 of each unpacked: training images and labels, test images and labels."""
    names = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    return tuple(OriginalFile(f"{name}-ubyte.gz", value) for name, value in zip(names, md5, strict=True))


Part = tuple[np.ndarray, np.ndarray]


def train_and_test(contents: Mapping[str, bytes]) -> list[Part]:
    """Images uint8 [M, 1, H, W] and labels int64 [M] for training, and for the test."""

    def read(stem: str, dimensions: int) -> np.ndarray:
        data = contents[f"{stem}-idx{dimensions}-ubyte.gz"]
        header = 4 + 4 * dimensions
        shape = np.frombuffer(data, dtype=">u4", count=dimensions, offset=4)
        return np.frombuffer(data, dtype=np.uint8, offset=header).reshape(*shape.tolist())

    return [
        (read(f"{part}-images", 3)[:, None], read(f"{part}-labels", 1).astype(np.int64)) for part in ("train", "t10k")
    ]
