"""Labelled images in a parquet file, as Hugging Face lays them out: `image: {bytes, path}` and `label`."""

from __future__ import annotations

import io

import numpy as np


def unpacked(file: bytes) -> bytes:
    """A byte for the label, then the pixels, channel by channel: image after image, as CIFAR's binary form. However the
    images are compressed, the content is the same.

    Raises ValueError for a file of another layout.
    """
    import pyarrow.parquet as pq
    from PIL import Image

    try:
        table = pq.read_table(io.BytesIO(file), columns=["image", "label"])
        labels, images = table["label"].to_pylist(), table["image"].to_pylist()
        parts = []
        for label, image in zip(labels, images, strict=True):
            with Image.open(io.BytesIO(image["bytes"])) as picture:
                pixels = np.asarray(picture)
            parts += [bytes([label]), np.moveaxis(pixels.reshape(*pixels.shape[:2], -1), 2, 0).tobytes()]
    except (KeyError, TypeError, OSError) as error:  # pyarrow's own are ValueError, KeyError and OSError
        raise ValueError(f"not a table of labelled images: {error}") from None
    return b"".join(parts)


def images_and_labels(content: bytes, channels: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Images uint8 [M, channels, size, size] and labels int64 [M] of what `unpacked` made."""
    rows = np.frombuffer(content, dtype=np.uint8).reshape(-1, 1 + channels * size * size)
    return rows[:, 1:].reshape(-1, channels, size, size), rows[:, 0].astype(np.int64)
