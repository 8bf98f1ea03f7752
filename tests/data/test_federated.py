"""All clients' samples as tensors: a batch holds exactly the samples asked for."""

import dataclasses

import numpy as np
import pytest
import torch

from pipeline.data.federated import FederatedData
from pipeline.data.partition import Partition, make_partition
from pipeline.data.raw import RawDataset
from pipeline.data.schemes.lead import Lead
from pipeline.data.schemes.mixed import Mixed
from pipeline.errors import UserError
from pipeline.params import PartitionSettings as Settings

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def raw() -> RawDataset:
    """Images whose every pixel gives their row: row m is filled with m mod 256."""
    labels = np.arange(200) % 4
    images = np.broadcast_to((np.arange(200) % 256)[:, None, None, None], (200, 3, 5, 6)).astype(np.uint8)
    return RawDataset("digits", 4, images, labels, images[:40], labels[:40])


@pytest.fixture(scope="module")
def partition(raw) -> Partition:
    lead = Lead(groups=[[0, 1], [2], [3]], noise_clients=2, noise_samples=30)
    settings = Settings("lead", validation_per_label=3, selection_per_label=2, client_validation=0.1, lead=lead)
    return make_partition(raw.train_labels, raw.name, raw.classes, settings, 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_batches_equal_a_plain_look_up(raw, partition, dtype):
    data = FederatedData.build(raw, partition, CPU, dtype)
    clients = torch.tensor([4, 0, 2])
    positions = torch.tensor([[0, 5, 26, 5], [1, 0, 80, 7], [3, 2, 1, 0]])
    X, y = data.batch(clients, positions)
    assert X.shape == (3, 4, 3, 5, 6)
    assert X.dtype == dtype
    for a, i in enumerate(clients.tolist()):
        for b, j in enumerate(positions[a].tolist()):
            s = partition.offsets[i] + j
            expected = torch.full((3, 5, 6), partition.indices[s] / 255, dtype=dtype)
            torch.testing.assert_close(X[a, b], expected)
            assert y[a, b] == partition.labels[s]


def test_a_shuffled_client_s_pixels_are_in_one_other_order(raw):
    """The same order for every image and channel of that client; other clients' pixels stay."""
    labels = np.arange(200) % 4
    images = np.random.default_rng(0).integers(0, 256, (200, 3, 5, 6)).astype(np.uint8)
    raw = RawDataset("digits", 4, images, labels, images[:40], labels[:40])
    mixed = Mixed([[0, 1], [2], [3]], bad_samples=20, small_samples=3)
    settings = Settings("mixed", validation_per_label=3, selection_per_label=2, client_validation=0.0, mixed=mixed)
    partition = make_partition(labels, "digits", 4, settings, 0)
    data = FederatedData.build(raw, partition, CPU, torch.float64)
    shuffled = partition.kinds.index("shuffled")
    X, _ = data.batch(torch.tensor([0, shuffled]), torch.tensor([[2, 0, 1], [4, 1, 4]]))
    stored = [
        [images[partition.indices[partition.offsets[i] + p]] for p in at]
        for i, at in ((0, (2, 0, 1)), (shuffled, (4, 1, 4)))
    ]
    np.testing.assert_array_equal(X[0], np.stack(stored[0]) / 255)
    flat, original = X[1].reshape(9, 30).numpy(), np.stack(stored[1]).reshape(9, 30) / 255
    assert not np.array_equal(flat, original)
    order = data.pixel_orders[shuffled].numpy()
    assert sorted(order) == list(range(30))
    np.testing.assert_array_equal(flat, original[:, order])


def test_every_position_is_within_the_clients_own_part(raw, partition):
    data = FederatedData.build(raw, partition, CPU, torch.float64)
    for i in range(data.clients):
        X, y = data.batch(torch.tensor([i]), torch.arange(int(data.sizes[i]))[None])
        rows = (X[0, :, 0, 0, 0] * 255).round().long()
        held = partition.indices[partition.offsets[i] : partition.offsets[i + 1]]
        assert rows.tolist() == held.tolist()
        if data.kinds[i] == "clean":
            assert torch.equal(y[0], rows % 4)


def test_the_servers_sets_and_the_test_set(raw, partition):
    data = FederatedData.build(raw, partition, CPU, torch.float32)
    X, y = data.validation_batch(None)
    assert X.shape == (12, 3, 5, 6)
    torch.testing.assert_close(X[:, 0, 0, 0], torch.tensor(partition.server_validation / 255).float())
    assert torch.equal(y, torch.tensor(partition.server_validation % 4))
    some_X, some_y = data.validation_batch(torch.tensor([7, 7, 1]))
    assert torch.equal(some_X, X[[7, 7, 1]])
    assert torch.equal(some_y, y[[7, 7, 1]])
    assert data.selection_images.dtype == data.test_images.dtype == torch.uint8
    assert torch.equal(data.selection_images[:, 0, 0, 0].long(), torch.tensor(partition.server_selection))
    assert torch.equal(data.selection_labels, torch.tensor(partition.server_selection % 4))
    assert data.test_images.shape == (40, 3, 5, 6)
    torch.testing.assert_close(data.scaled(data.test_images)[:, 0, 0, 0], torch.arange(40) / 255)


def test_what_else_it_tells(raw, partition):
    data = FederatedData.build(raw, partition, CPU, torch.float64)
    assert (data.clients, data.classes, data.device, data.dtype) == (5, 4, CPU, torch.float64)
    assert data.kinds == ["clean"] * 3 + ["noisy"] * 2
    torch.testing.assert_close(data.oracle_weights, torch.tensor([0.5, 0.25, 0.25, 0, 0]).double())


def test_scaling_leaves_the_stored_images_alone(raw, partition):
    data = FederatedData.build(raw, partition, CPU, torch.float32)
    before = data.test_images.clone()
    scaled = data.scaled(data.test_images)
    assert torch.equal(data.test_images, before)
    assert (scaled.min(), scaled.max()) == (0.0, torch.tensor(39 / 255))


@pytest.mark.parametrize("change", [{"dataset": "mnist"}, {"classes": 5}, {"indices": 200}])
def test_a_partition_of_other_data_is_refused(raw, partition, change):
    if "indices" in change:
        change = {"indices": np.where(partition.indices == partition.indices[0], 200, partition.indices)}
    with pytest.raises(UserError, match=r"made of other data.* Fix: run dvc repro"):
        FederatedData.build(raw, dataclasses.replace(partition, **change), CPU, torch.float32)


VALIDATION = np.array([[0.0, 5.0, 0.0], [2.0, 5.0, 0.0], [4.0, 5.0, 0.0], [6.0, 5.0, 3.0]])
"""Means 3, 5, 3/4; mean squares about them 5, 0, 27/16."""
CLIENT = np.array([[3.0, 5.0, 0.0], [13.0, 6.0, 3.0], [-3000.0, -1.0, 0.75]])


def from_arrays(factor=1.0, client=CLIENT, validation=VALIDATION, **options) -> FederatedData:
    """Two clients with the same features; two classes."""
    server = (validation * factor, np.array([0, 1, 0, 1]))
    mine = (client * factor, np.array([0, 1, 1]))
    options = {"classes": 2, "kinds": ["clean", "noisy"], "dtype": torch.float64} | options
    return FederatedData.from_arrays([mine, mine], server, server, **options)


def test_features_are_standardised_by_the_validation_samples_alone():
    """Feature 1 is constant there: only to which side a sample differs is kept. -3000 lies beyond the limit of 10."""
    data = from_arrays()
    X, y = data.batch(torch.tensor([1]), torch.tensor([[0, 1, 2]]))
    third = 3**0.5
    expected = [[0, 0, -1 / third], [10 / 5**0.5, 1, third], [-10, -1, 0]]
    torch.testing.assert_close(X, torch.tensor(expected, dtype=torch.float64)[None, :, :, None, None])
    assert y.tolist() == [[0, 1, 1]]
    torch.testing.assert_close(data.validation_images.mean(0).flatten(), torch.zeros(3).double())
    assert data.validation_images[:, 2].flatten().tolist() == pytest.approx([-1 / third] * 3 + [third])
    torch.testing.assert_close(data.scaled(data.test_images), data.validation_images)


@pytest.mark.parametrize("factor", [1000.0, 0.001, np.array([1.0, 1e6, 1e-6])])
def test_the_unit_of_a_feature_does_not_matter(factor):
    one, other = (from_arrays(f).batch(torch.tensor([0]), torch.arange(3)[None])[0] for f in (1.0, factor))
    torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
    images = np.random.default_rng(0).normal(size=(4, 2, 3))
    scaled = (from_arrays(f, images[:3], images) for f in (1.0, 1000.0))
    one, other = (data.scaled(data.images) for data in scaled)
    torch.testing.assert_close(one, other, rtol=1e-12, atol=0)
    torch.testing.assert_close(one[:3, 0], torch.tensor(images[:3] / np.abs(images).max()))


def test_a_client_cannot_move_another_ones_samples():
    """Whatever client 1 holds, client 0 is scaled as before."""
    server = (VALIDATION, np.array([0, 1, 0, 1]))
    spoilt = [((CLIENT, np.array([0, 1, 1])), (CLIENT * factor, np.array([0, 1, 1]))) for factor in (1.0, -1e9)]
    both = [
        FederatedData.from_arrays(clients, server, server, classes=2, kinds=["clean", "noisy"]) for clients in spoilt
    ]
    one, other = (data.batch(torch.tensor([0, 1]), torch.arange(3).expand(2, 3))[0] for data in both)
    assert torch.equal(one[0], other[0])
    assert other.abs().max() <= 10


def test_uint8_images_are_divided_by_255_as_ever():
    images = np.arange(4 * 6, dtype=np.uint8).reshape(4, 2, 3)
    data = from_arrays(1, images[:3], images, dtype=torch.float32)
    assert data.scaling is None
    assert data.images.dtype == torch.uint8
    assert torch.equal(data.scaled(data.test_images)[:, 0], torch.tensor(images) / 255)


def test_what_arrays_tell_of_the_clients():
    selection = (VALIDATION[:1], np.array([1]))
    data = from_arrays(selection=selection, true_labels=[np.array([0, 1, 1]), np.array([1, 1, 0])])
    assert data.images.shape == (6, 3, 1, 1)
    assert (data.starts.tolist(), data.sizes.tolist()) == ([0, 3], [3, 3])
    assert data.wrong.tolist() == [False, False, False, True, False, True]
    assert data.oracle_weights.tolist() == [1, 0]
    assert data.selection_labels.tolist() == [1]
    assert data.selection_images.shape == (1, 3, 1, 1)
    assert data.client_labels == [[0, 1], [0, 1]]
    assert from_arrays().selection_images.shape == (0, 3, 1, 1)
    assert not from_arrays().wrong.any()


def _with(at, value):
    X = VALIDATION.copy()
    X[at] = value
    return X


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"validation": _with((2, 1), np.nan)}, r"validation: X\[2, 1\] = nan .* finite number. Fix: fill in missing"),
        ({"client": _with((0, 0), np.inf)[:3]}, r"client 0: X\[0, 0\] = inf"),
        ({"client": CLIENT[:, :2]}, r"client 0: shape of X = \(3, 2\) .* of shape \(3,\)"),
        ({"client": CLIENT[:2]}, r"client 0: 2 samples have labels of shape \(3,\). Fix: one label per sample"),
        ({"classes": 1}, r"validation: label = 1 .* 0..0. Fix: number the classes"),
        ({"kinds": ["clean"]}, r"2 clients have 1 kinds. Fix"),
        ({"validation": np.zeros((4, 2, 2)), "client": np.ones((3, 2, 2))}, r"largest absolute pixel = 0.0"),
    ],
)
def test_arrays_that_cannot_be_used_are_refused(change, message):
    with pytest.raises(UserError, match=message):
        from_arrays(**change)


@pytest.mark.gpu
def test_on_a_gpu(raw, partition):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    here, there = (FederatedData.build(raw, partition, torch.device(d), torch.float32) for d in ("cpu", "cuda"))
    clients, positions = torch.tensor([3, 1]), torch.tensor([[0, 4], [9, 9]])
    torch.cuda.set_sync_debug_mode("error")
    try:
        X, y = there.batch(clients.cuda(non_blocking=True), positions.cuda(non_blocking=True))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for a, b in zip((X, y), here.batch(clients, positions), strict=True):
        assert torch.equal(a.cpu(), b)
