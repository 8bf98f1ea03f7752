"""1797 real handwritten digits, which scikit-learn brings along."""

from __future__ import annotations

from typing import Any

import numpy as np

from pipeline.data.raw import RawDataset
from pipeline.data.sets.base import Contents, Dataset, DatasetInfo
from pipeline.seeds import numpy_generator


def read(contents: Contents, settings: Any) -> RawDataset:
    """8x8 pixels of 0..16, brought to 28x28; a fifth of the images, always the same, is the test set."""
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


DIGITS = Dataset(
    name="digits",
    summary="embedded, no download",
    read=read,
    info=DatasetInfo(10, 1, 28, 1438, (0.3057,), (0.3249,)),
    origin="scikit-learn's embedded handwritten digits, bilinear 8x8 to 28x28",
    place="scikit-learn",
)
