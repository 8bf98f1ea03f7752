"""From raw samples to features, by a record that is plain JSON.

| kind | record | raw samples |
|---|---|---|
| table | columns (`pipeline.data.own.columns`) | a pandas DataFrame with these columns, in any order |
| images | size, channels | a list of PIL images, or of arrays [H, W] or [H, W, C] of uint8 |
| arrays | shape, dtype, unit; mean, deviation and "missing" of every feature of vectors | an array [M, ...] |

Every record also has `target` (`pipeline.data.own.targets`): names of the classes, none for a number. Numbers lie
within `features.LIMIT` deviations, or within their `limit` (`pipeline.federation.model`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pipeline.data.own import features
from pipeline.data.raw import row_hashes
from pipeline.errors import UserError

UNLIMITED = 1e30
"""Within float32."""


def apply(record: dict[str, Any], samples: Any, *, known: bool = False) -> np.ndarray:
    """Features [M, C, H, W] of raw samples: uint8 for images, else float32. UserError for samples of another form.

    known: refuse categories that no client has; else they count as none.
    """
    try:
        if record["kind"] == "table":
            return features.of_table(record, samples, known=known)[:, :, None, None]
        return features.of_arrays(record, samples) if record["kind"] == "arrays" else _images(record, samples)
    except ValueError as error:
        raise UserError(str(error)) from None


def keys(record: dict[str, Any], samples: Any, X: np.ndarray) -> np.ndarray:
    """uint64 [M], equal for equal samples. X: their features, whose limit makes some alike that are not."""
    found = row_hashes(X)
    rows = np.flatnonzero(np.abs(X).max(axis=(1, 2, 3)) >= features.LIMIT) if X.dtype == np.float32 else found[:0]
    if not len(rows) or record.get("unit") == "images":
        return found
    columns = [column | {"limit": UNLIMITED} for column in record.get("columns", [])]
    cut = samples.iloc[rows] if columns else np.asarray(samples)[rows]
    found[rows] = row_hashes(apply(record | {"limit": UNLIMITED, "columns": columns}, cut))
    return found


def feature_names(record: dict[str, Any]) -> list[str]:
    """Of a table's features."""
    return [name for column in record["columns"] for name in features.names(column)]


def _images(record: dict[str, Any], images: Sequence[Any]) -> np.ndarray:
    from PIL import Image

    from pipeline.data.own.images import pixels

    def opened(image: Any) -> Any:
        return image if isinstance(image, Image.Image) else Image.fromarray(np.squeeze(np.asarray(image)))

    pictures = map(opened, images)
    return np.stack([pixels(picture, record["size"], record["channels"]) for picture in pictures])
