"""Handwritten digits (LeCun et al., 1998): 60,000 + 10,000 images of 28 x 28 grey pixels, ten classes."""

from __future__ import annotations

from typing import Any

from pipeline.data.originals import idx
from pipeline.data.originals.fetching import Source
from pipeline.data.raw import RawDataset
from pipeline.data.sets.base import Contents, Dataset, DatasetInfo


def read(contents: Contents, settings: Any) -> RawDataset:
    train, test = idx.train_and_test(contents)
    return RawDataset("mnist", 10, *train, *test)


MNIST = Dataset(
    name="mnist",
    summary="handwritten digits",
    read=read,
    info=DatasetInfo(10, 1, 28, 60_000, (0.1307,), (0.3081,)),
    source=Source(
        "mnist",
        idx.files(
            "6bbc9ace898e44ae57da46a324031adb",
            "a25bea736e30d166cdddb491f175f624",
            "2646ac647ad5339dbf082846283269ea",
            "27ae3e4e09519cfbb04c329615203637",
        ),
        public="MNIST",
    ),
)
