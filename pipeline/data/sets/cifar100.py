"""Small colour photographs of a hundred classes (Krizhevsky, 2009): 50,000 training and 10,000 test images."""

from __future__ import annotations

from typing import Any

from pipeline.data.originals import cifar
from pipeline.data.originals.fetching import OriginalFile, Source
from pipeline.data.raw import RawDataset
from pipeline.data.sets.base import Contents, Dataset, DatasetInfo


def read(contents: Contents, settings: Any) -> RawDataset:
    (archive,) = contents.values()
    train, test = (cifar.batches(archive, [f"cifar-100-python/{part}"], "fine_labels") for part in ("train", "test"))
    return RawDataset("cifar100", 100, *train, *test)


CIFAR100 = Dataset(
    name="cifar100",
    summary="colour photographs",
    read=read,
    # Means and deviations of the a_fedpd specification, section 4.1.
    info=DatasetInfo(100, 3, 32, 50_000, (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)),
    source=Source(
        "cifar100",
        (OriginalFile("cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85"),),
        public="CIFAR100",
    ),
)
