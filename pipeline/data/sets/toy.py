"""The data set that is none: the toy problem draws its clients from the seed."""

from __future__ import annotations

from typing import Any

from pipeline.data.raw import RawDataset
from pipeline.data.sets.base import Contents, Dataset


def read(contents: Contents, settings: Any) -> RawDataset:
    raise ValueError("the toy problem has no samples to read")


TOY_DATA = Dataset(name="toy", summary="closed forms, no images", read=read, problem="toy")
