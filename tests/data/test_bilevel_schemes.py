"""Wrong labels with clean validation parts, imbalanced classes, and the first images of a data set."""

import numpy as np
import pytest
import torch

from pipeline.data.federated import FederatedData
from pipeline.data.partition import make_partition
from pipeline.data.raw import RawDataset
from pipeline.data.schemes.cleaning import Cleaning
from pipeline.data.schemes.iid import Iid
from pipeline.data.schemes.longtail import Longtail, longtail_counts
from pipeline.data.schemes.shards import Shards
from pipeline.errors import UserError
from pipeline.params import PartitionSettings as Settings
from pipeline.params import Subset
from tests.data.dealing import LABELS, make, part, part_labels

MNIST = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
"""Training images of each class of MNIST."""


def mnist_labels() -> np.ndarray:
    return np.random.default_rng(0).permutation(np.repeat(np.arange(10), MNIST))


def dealt(scheme: str, client_validation: float = 0.0, **sections):
    """The MNIST labels without any set of the server."""
    settings = Settings(scheme, 0, 0, client_validation, **sections)
    return make_partition(mnist_labels(), "mnist", 10, settings, 0)


def own(partition, i):
    return partition.validation_indices[partition.validation_offsets[i] : partition.validation_offsets[i + 1]]


# ------------------------------------------------------------------ the specification's partitions


def test_a_hundred_equal_clients_of_mnist():
    """300 training and 300 validation images each, all 60,000 used once."""
    p = dealt("iid", 0.5, iid=Iid(100))
    assert p.sizes.tolist() == p.validation_sizes.tolist() == [300] * 100
    assert len(np.unique(np.concatenate([p.indices, p.validation_indices]))) == 60_000


def test_two_hundred_shards_of_mnist():
    """Two shards of 300 each: 480 training and 120 validation images, 1 to 4 labels, most exactly 2."""
    p = dealt("shards", 0.2, shards=Shards(100, 2))
    assert p.sizes.tolist() == [480] * 100
    assert p.validation_sizes.tolist() == [120] * 100
    assert len(np.unique(np.concatenate([p.indices, p.validation_indices]))) == 60_000
    counts = [len(labels) for labels in p.client_labels]
    assert set(counts) <= {1, 2, 3, 4}
    assert 70 <= counts.count(2) <= 95


def test_nine_shards_of_mnist_hold_two_labels():
    """Class sizes are no multiples of 300: with one shard per client, exactly nine clients hold two labels."""
    p = dealt("shards", shards=Shards(200, 1))
    assert p.sizes.tolist() == [300] * 200
    assert sorted(len(labels) for labels in p.client_labels) == [1] * 191 + [2] * 9


def test_the_imbalanced_counts_of_mnist():
    counts = longtail_counts(mnist_labels(), 10, 0.01)
    assert counts.tolist() == [5923, 3597, 2157, 1293, 775, 465, 279, 167, 101, 61]
    assert counts.sum() == 14_818


def test_imbalanced_clients_of_mnist():
    """148 each: halved at random, or 118 and 30 of two shards of 74, which leaves the last 18 of class 9 unused."""
    p = dealt("longtail", 0.5, longtail=Longtail(100, 0.01))
    assert p.sizes.tolist() == p.validation_sizes.tolist() == [74] * 100
    p = dealt("longtail", 0.2, longtail=Longtail(100, 0.01, 2))
    assert p.sizes.tolist() == [118] * 100
    assert p.validation_sizes.tolist() == [30] * 100
    rows = np.concatenate([p.indices, p.validation_indices])
    assert len(np.unique(rows)) == 14_800
    assert np.bincount(mnist_labels()[rows])[9] == 43
    assert set(p.kinds) == {"clean"}


def test_a_class_keeps_its_first_images():
    p = make("longtail", imbalance=0.1, clients=1, validation=0, selection=0)
    for c in range(10):
        rows = np.flatnonzero(c == LABELS)
        kept = np.sort(part(p, 0)[part_labels(p, 0) == c])
        assert kept.tolist() == rows[: len(kept)].tolist()
    assert len(part(p, 0)) == longtail_counts(LABELS, 10, 0.1).sum()


# -------------------------------------------------------------------------------------- cleaning


@pytest.mark.parametrize("validation", ["iid", "one_class"])
def test_cleaning_replaces_labels_of_the_training_parts_alone(validation):
    p = make("cleaning", clients=12, samples=50, rate=0.4, validation_samples=10, validation_labels=validation)
    assert p.sizes.tolist() == [50] * 12
    assert p.validation_sizes.tolist() == [10] * 12
    assert len(np.unique(np.concatenate([p.indices, p.validation_indices]))) == 720
    assert np.array_equal(p.validation_labels, LABELS[p.validation_indices])
    assert set(p.kinds) == {"flipped"}
    wrong = p.labels != LABELS[p.indices]
    # 20 of 50 labels of each client are replaced, and one in ten of these is right again.
    assert abs(wrong.sum() - 0.9 * 240) < 4 * np.sqrt(240 * 0.09)
    for i in range(12):
        assert wrong[p.offsets[i] : p.offsets[i + 1]].sum() <= 20
        if validation == "one_class":
            assert set(LABELS[own(p, i)]) == {i % 10}
        else:
            assert len(set(LABELS[own(p, i)])) > 2


def test_cleaning_without_noise_is_clean():
    p = make("cleaning", rate=0.0)
    assert set(p.kinds) == {"clean"}
    assert np.array_equal(p.labels, LABELS[p.indices])


@pytest.mark.parametrize(
    ("scheme", "changes", "said"),
    [
        ("cleaning", {"samples": 500}, r"partition\.cleaning\.samples = 500 .* at most 168.* Fix"),
        (
            "cleaning",
            {"validation_samples": 100, "samples": 10, "validation_labels": "one_class"},
            r"partition\.cleaning\.validation_samples = 100 .* at most 94 .*class 0.* Fix",
        ),
        ("longtail", {"clients": 800}, r"partition\.longtail\.clients = 800 .* at most \d+.* Fix"),
        (
            "longtail",
            {"clients": 300, "shards_per_client": 2},
            r"partition\.longtail\.clients x shards_per_client = 600 .* Fix",
        ),
    ],
)
def test_what_the_pool_cannot_serve_is_refused(scheme, changes, said):
    with pytest.raises(UserError, match=said):
        make(scheme, **changes)


# ------------------------------------------------------------------------- on the device, and cut


@pytest.fixture
def raw() -> RawDataset:
    """Row m is filled with m."""
    labels = np.arange(200) % 4
    images = np.broadcast_to(np.arange(200)[:, None, None, None], (200, 1, 4, 4)).astype(np.uint8)
    return RawDataset("digits", 4, images, labels, images[:40], labels[:40])


def test_the_clients_own_validation_parts_reach_the_device(raw):
    cleaning = Cleaning(clients=3, samples=20, rate=1.0, validation_samples=8)
    settings = Settings("cleaning", 2, 1, 0.0, cleaning=cleaning)
    p = make_partition(raw.train_labels, "digits", 4, settings, 0)
    data = FederatedData.build(raw, p, torch.device("cpu"), torch.float64)
    X, y = data.batch(torch.tensor([2, 0]), torch.tensor([[7, 0], [3, 3]]), data.own_validation)
    rows = torch.tensor([[own(p, 2)[7], own(p, 2)[0]], [own(p, 0)[3], own(p, 0)[3]]])
    assert torch.equal((X[:, :, 0, 0, 0] * 255).round().long(), rows)
    assert torch.equal(y, rows % 4)
    assert data.own_validation.sizes.tolist() == [8, 8, 8]
    assert data.own_validation.owners.tolist() == [0] * 8 + [1] * 8 + [2] * 8
    assert torch.equal(data.wrong, torch.tensor(p.labels != p.indices % 4))
    assert 0 < int(data.wrong.sum()) < 60  # some replaced labels are right again
    assert data.client_labels == [[0, 1, 2, 3]] * 3


def test_the_first_images_alone(raw):
    cut = raw.first(Subset(train=30, test=10))
    assert np.array_equal(cut.train_images, raw.train_images[:30])
    assert np.array_equal(cut.test_labels, raw.test_labels[:10])
    assert cut.hash != raw.hash
    assert raw.first(Subset()) is raw
    with pytest.raises(
        UserError, match=r"subset\.test = 41 .* at most 40, the images of digits.* Fix: subset\.test: all"
    ):
        raw.first(Subset(test=41))
