"""From raw samples to features, by a record that is plain JSON.

| kind | record | raw samples |
|---|---|---|
| table | columns (`pipeline.data.own.columns`) | a pandas DataFrame with these columns, in any order |
| images | size, channels | a list of PIL images, or of arrays [H, W] or [H, W, C] of uint8 |
| arrays | shape, unit; mean, deviation and "missing" of every feature of vectors | an array [M, ...] |

Every record also has `target` (`pipeline.data.own.targets`): names of the classes, none for a number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pipeline.data.own import columns
from pipeline.errors import UserError


def apply(record: dict[str, Any], samples: Any) -> np.ndarray:
    """Features [M, C, H, W] of raw samples: uint8 for images, else float32. UserError for samples of another form."""
    functions = {"table": _table, "images": _images, "arrays": _arrays}
    return functions[record["kind"]](record, samples)


def feature_names(record: dict[str, Any]) -> list[str]:
    """Of a table's features."""
    return [name for column in record["columns"] for name in columns.features(column)]


def _table(record: dict[str, Any], frame: Any) -> np.ndarray:
    absent = [column["name"] for column in record["columns"] if column["name"] not in frame.columns]
    if absent:
        raise UserError(f"data: there is no column {absent[0]!r}. Fix: add it; its cells may be empty.")
    widths = [len(columns.features(column)) for column in record["columns"]]
    out = np.zeros((len(frame), sum(widths)), dtype=np.float32)
    start = 0
    for column, width in zip(record["columns"], widths, strict=True):
        columns.encoded(column, frame[column["name"]], out[:, start : start + width])
        start += width
    return out[:, :, None, None]


def _images(record: dict[str, Any], images: Sequence[Any]) -> np.ndarray:
    from PIL import Image

    from pipeline.data.own.images import pixels

    def opened(image: Any) -> Any:
        return image if isinstance(image, Image.Image) else Image.fromarray(np.squeeze(np.asarray(image)))

    pictures = map(opened, images)
    return np.stack([pixels(picture, record["size"], record["channels"]) for picture in pictures])


def _arrays(record: dict[str, Any], samples: Any) -> np.ndarray:
    X = np.asarray(samples)
    if list(X.shape[1:]) != record["shape"]:
        raise UserError(f"X: samples have the shape {list(X.shape[1:])}, not {record['shape']}. Fix: reshape them.")
    if record["unit"] == "pixels":
        return channels_first(X)
    if record["unit"] == "images":
        scaled = (channels_first(X).astype(np.float64) - record["mean"][0]) / record["deviation"][0]
        return np.clip(scaled, -columns.LIMIT, columns.LIMIT).astype(np.float32)
    mean, deviation, said = (np.array(record[name]) for name in ("mean", "deviation", "missing"))
    X = X.astype(np.float64)
    missing = np.isnan(X)
    scaled = np.clip((X - mean) / np.where(deviation > 0, deviation, 1.0), -columns.LIMIT, columns.LIMIT)
    kept = deviation > 0
    parts = [np.nan_to_num(scaled[:, kept], nan=0.0), missing[:, said.astype(bool)]]
    return np.concatenate(parts, axis=1).astype(np.float32)[:, :, None, None]


def channels_first(X: np.ndarray) -> np.ndarray:
    """[M, H, W], [M, H, W, C] or [M, C, H, W] as [M, C, H, W]."""
    if X.ndim == 3:
        return X[:, None]
    return np.moveaxis(X, 3, 1) if X.shape[3] in (1, 3) and X.shape[1] not in (1, 3) else X
