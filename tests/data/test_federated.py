"""Everybody's samples as tensors: a batch holds exactly the samples asked for."""

import dataclasses

import numpy as np
import pytest
import torch

from pipeline.data.federated import FederatedData
from pipeline.data.partition import Partition, make_partition
from pipeline.data.raw import RawDataset
from pipeline.errors import UserError
from pipeline.params import Partition as Settings
from pipeline.params import partitions

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def raw() -> RawDataset:
    """Images whose every pixel tells their row: row m is filled with m mod 256."""
    labels = np.arange(200) % 4
    images = np.broadcast_to((np.arange(200) % 256)[:, None, None, None], (200, 3, 5, 6)).astype(np.uint8)
    return RawDataset("digits", 4, images, labels, images[:40], labels[:40])


@pytest.fixture(scope="module")
def partition(raw) -> Partition:
    lead = partitions.Lead(groups=[[0, 1], [2], [3]], noise_clients=2, noise_samples=30)
    settings = Settings(validation_per_label=3, selection_per_label=2, client_validation=0.1, lead=lead)
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
    """The same order for every image and channel of that client; everybody else's pixels are where they were."""
    labels = np.arange(200) % 4
    images = np.random.default_rng(0).integers(0, 256, (200, 3, 5, 6)).astype(np.uint8)
    raw = RawDataset("digits", 4, images, labels, images[:40], labels[:40])
    mixed = partitions.Mixed([[0, 1], [2], [3]], bad_samples=20, small_samples=3)
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
