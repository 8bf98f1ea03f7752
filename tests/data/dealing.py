"""Partitions of made-up labels, for tests."""

import dataclasses

import numpy as np

from pipeline.data import scheme_settings as partitions
from pipeline.data.partition import Partition, make_partition
from pipeline.params import PartitionSettings as Settings

GROUPS = [[0, 1, 2, 3, 4], [5, 6, 7], [8, 9]]
SECTIONS = {
    "lead": partitions.Lead(groups=GROUPS, noise_samples=100),
    "duplicates": partitions.Duplicates(groups=GROUPS),
    "dirichlet": partitions.Dirichlet(concentration=1.0),
    "mixed": partitions.Mixed(groups=GROUPS, bad_samples=100),
    "cleaning": partitions.Cleaning(clients=5, samples=100, validation_samples=20),
    "longtail": partitions.Longtail(imbalance=0.1),
    "few_shot": partitions.FewShot(clients=2, shots=10, queries=5),
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
