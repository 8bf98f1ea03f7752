"""Partitions of made-up labels, for tests."""

import dataclasses

import numpy as np

from pipeline.data.partition import Partition, make_partition
from pipeline.data.schemes.cleaning import Cleaning
from pipeline.data.schemes.dirichlet import Dirichlet
from pipeline.data.schemes.duplicates import Duplicates
from pipeline.data.schemes.few_shot import FewShotTasks
from pipeline.data.schemes.lead import Lead
from pipeline.data.schemes.longtail import Longtail
from pipeline.data.schemes.mixed import Mixed
from pipeline.params import PartitionSettings as Settings

GROUPS = [[0, 1, 2, 3, 4], [5, 6, 7], [8, 9]]
SECTIONS = {
    "lead": Lead(groups=GROUPS, noise_samples=100),
    "duplicates": Duplicates(groups=GROUPS),
    "dirichlet": Dirichlet(concentration=1.0),
    "mixed": Mixed(groups=GROUPS, bad_samples=100),
    "cleaning": Cleaning(clients=5, samples=100, validation_samples=20),
    "longtail": Longtail(imbalance=0.1),
    "few_shot": FewShotTasks(clients=2, shots=10, queries=5),
}


def true_labels(per_label: int = 100, classes: int = 10, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).permutation(np.repeat(np.arange(classes), per_label))


LABELS = true_labels()


def settings(scheme: str, validation=4, selection=2, client_validation=0.0, **changes) -> Settings:
    base = Settings(
        scheme=scheme,
        validation_per_label=validation,
        selection_per_label=selection,
        client_validation=client_validation,
        **SECTIONS,
    )
    return dataclasses.replace(base, **{scheme: dataclasses.replace(getattr(base, scheme), **changes)})


def make(scheme: str, labels=LABELS, classes=10, seed=0, **more) -> Partition:
    return make_partition(labels, "digits", classes, settings(scheme, **more), seed)


def part(partition: Partition, i: int) -> np.ndarray:
    return partition.indices[partition.offsets[i] : partition.offsets[i + 1]]


def part_labels(partition: Partition, i: int) -> np.ndarray:
    return partition.labels[partition.offsets[i] : partition.offsets[i + 1]]
