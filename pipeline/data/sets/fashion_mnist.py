"""Pictures of clothes (Xiao et al., 2017): 60,000 + 10,000 images of 28 x 28 grey pixels, ten classes."""

from __future__ import annotations

from typing import Any

from pipeline.data.originals import idx
from pipeline.data.originals.fetching import Source
from pipeline.data.raw import RawDataset
from pipeline.data.sets.base import Contents, Dataset, DatasetInfo


def read(contents: Contents, settings: Any) -> RawDataset:
    train, test = idx.train_and_test(contents)
    return RawDataset("fashion-mnist", 10, *train, *test)


FASHION_MNIST = Dataset(
    name="fashion-mnist",
    summary="pictures of clothes",
    read=read,
    info=DatasetInfo(10, 1, 28, 60_000, (0.2860,), (0.3530,)),
    source=Source(
        "fashion-mnist",
        idx.files(
            "f4a8712d7a061bf5bd6d2ca38dc4d50a",
            "9018921c3c673c538a1fc5bad174d6f9",
            "8181f5470baa50b63fa0f6fddb340f0a",
            "15d484375f8d13e6eb1aabb0c3f46965",
        ),
        public="FashionMNIST",
        system=("/usr/share/datasets/fashion-mnist", "dataset-fashion-mnist"),
    ),
)
