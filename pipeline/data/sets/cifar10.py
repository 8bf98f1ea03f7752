"""Small colour photographs of ten classes (Krizhevsky, 2009): 50,000 training and 10,000 test images.

From the original archive, or from `train.parquet` and `test.parquet` in a mirror: the same images without loss, in a
fixed order of their own, which is not the archive's. So runs on the two agree in distribution, not in their numbers.
"""

from __future__ import annotations

from typing import Any

from pipeline.data.originals import cifar, parquet
from pipeline.data.originals.fetching import OriginalFile, Source
from pipeline.data.raw import RawDataset
from pipeline.data.sets.base import Contents, Dataset, DatasetInfo

ARCHIVE = "cifar-10-python.tar.gz"


def read(contents: Contents, settings: Any) -> RawDataset:
    if ARCHIVE not in contents:
        parts = [parquet.images_and_labels(contents[f"{part}.parquet"], 3, 32) for part in ("train", "test")]
        return RawDataset("cifar10", 10, *parts[0], *parts[1])
    names = {"train": [f"data_batch_{i}" for i in range(1, 6)], "test": ["test_batch"]}
    members = {part: [f"cifar-10-batches-py/{name}" for name in names[part]] for part in names}
    train, test = (cifar.batches(contents[ARCHIVE], members[part], "labels") for part in ("train", "test"))
    return RawDataset("cifar10", 10, *train, *test)


CIFAR10 = Dataset(
    name="cifar10",
    summary="colour photographs",
    read=read,
    # Means and deviations of the a_fedpd specification, section 4.1.
    info=DatasetInfo(10, 3, 32, 50_000, (0.491, 0.482, 0.447), (0.247, 0.243, 0.262)),
    source=Source(
        "cifar10",
        (OriginalFile(ARCHIVE, "c58f30108f718f92721af3b95e74349a"),),
        public="CIFAR10",
        mirrored=(
            OriginalFile("train.parquet", "c92d6d4afcb19543c39236b0196b9e93", parquet.unpacked),
            OriginalFile("test.parquet", "ba382366a1e0238fd7cd8292df3ee577", parquet.unpacked),
        ),
    ),
)
