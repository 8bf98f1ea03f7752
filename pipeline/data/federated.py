"""Everybody's samples as tensors on the device: a minibatch of all active clients is one act of indexing."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from pipeline.data.datasets import RawDataset
from pipeline.data.partition import Partition
from pipeline.errors import UserError
from pipeline.seeds import numpy_generator


@dataclass(frozen=True, eq=False)
class FederatedData:
    """Images stay uint8 as stored, except the server's validation set, which every round needs whole.

    | field | what | shape |
    |---|---|---|
    | images | all training images | uint8 [M, C, H, W] |
    | indices, labels | the clients' training parts one after another: rows of `images`, labels | int64 [S] |
    | starts, sizes | client i holds positions starts[i] to starts[i] + sizes[i] of them | int64 [N] |
    | validation_images, _labels | the server's validation set, in [0, 1] | dtype [V, C, H, W], int64 [V] |
    | selection_images, _labels | the server's selection set | uint8 [V_s, C, H, W], int64 [V_s] |
    | test_images, _labels | the test set | uint8 [T, C, H, W], int64 [T] |
    | kinds, oracle_weights | of each client | N, dtype [N] |
    | pixel_orders | each client's order of pixels; None if nobody's is shuffled | int64 [N, HW] |
    """

    images: Tensor = field(repr=False)
    indices: Tensor = field(repr=False)
    labels: Tensor = field(repr=False)
    starts: Tensor
    sizes: Tensor
    validation_images: Tensor = field(repr=False)
    validation_labels: Tensor = field(repr=False)
    selection_images: Tensor = field(repr=False)
    selection_labels: Tensor = field(repr=False)
    test_images: Tensor = field(repr=False)
    test_labels: Tensor = field(repr=False)
    classes: int
    kinds: list[str]
    oracle_weights: Tensor
    pixel_orders: Tensor | None = field(default=None, repr=False)

    @classmethod
    def build(
        cls, raw: RawDataset, partition: Partition, device: torch.device, dtype: torch.dtype = torch.float32
    ) -> FederatedData:
        """Move the data to the device. Raises UserError if the partition was made of other data."""
        rows = [partition.indices, partition.server_validation, partition.server_selection]
        top = max(int(part.max(initial=-1)) for part in rows)
        if (partition.dataset, partition.classes) != (raw.name, raw.classes) or top >= len(raw.train_labels):
            raise UserError(
                f"the partition was made of other data: {partition.dataset}, {partition.classes} labels,"
                f" at least {top + 1} images, and the data are {raw.name}, {raw.classes} labels,"
                f" {len(raw.train_labels)} images. Fix: run dvc repro, which makes it anew."
            )

        def tensor(array: np.ndarray) -> Tensor:
            # A copy: arrays read from a file may be read-only, which a tensor cannot be.
            return torch.tensor(array, device=device)

        def server(rows: np.ndarray) -> tuple[Tensor, Tensor]:
            return tensor(raw.train_images[rows]), tensor(raw.train_labels[rows])

        validation_images, validation_labels = server(partition.server_validation)
        selection_images, selection_labels = server(partition.server_selection)
        return cls(
            images=tensor(raw.train_images),
            indices=tensor(partition.indices),
            labels=tensor(partition.labels),
            starts=tensor(partition.offsets[:-1]),
            sizes=tensor(partition.sizes),
            validation_images=scale(validation_images, dtype),
            validation_labels=validation_labels,
            selection_images=selection_images,
            selection_labels=selection_labels,
            test_images=tensor(raw.test_images),
            test_labels=tensor(raw.test_labels),
            classes=raw.classes,
            kinds=list(partition.kinds),
            oracle_weights=tensor(partition.oracle_weights()).to(dtype),
            pixel_orders=_pixel_orders(partition, raw.train_images[0, 0].size, device),
        )

    @property
    def clients(self) -> int:
        """N."""
        return len(self.kinds)

    @property
    def device(self) -> torch.device:
        return self.images.device

    @property
    def dtype(self) -> torch.dtype:
        """Of scaled images, and so of the whole computation."""
        return self.validation_images.dtype

    def scaled(self, images: Tensor) -> Tensor:
        """Stored images as numbers in [0, 1]."""
        return scale(images, self.dtype)

    def batch(self, clients: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Samples `positions` [n, B] of `clients` [n], each counted from 0 in the client's own training part.

        Returns X [n, B, C, H, W] in [0, 1] and y [n, B]. Pure indexing, on the device, no wait for the host.
        """
        flat = (self.starts[clients][:, None] + positions).flatten()
        X = self.images.index_select(0, self.indices.index_select(0, flat))
        if self.pixel_orders is not None:
            order = self.pixel_orders[clients][:, None, None, :].expand(-1, positions.shape[1], X.shape[1], -1)
            X = X.view(*positions.shape, X.shape[1], -1).gather(3, order).view(X.shape)
        return self.scaled(X).view(*positions.shape, *X.shape[1:]), self.labels[flat].view(positions.shape)

    def validation_batch(self, positions: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """X [B_0, C, H, W] in [0, 1] and y [B_0]: the server's samples `positions` [B_0], or all of them."""
        if positions is None:
            return self.validation_images, self.validation_labels
        return self.validation_images[positions], self.validation_labels[positions]


def _pixel_orders(partition: Partition, pixels: int, device: torch.device) -> Tensor | None:
    """One random order per shuffled client, the same for all its images and channels; None if nobody is shuffled."""
    if "shuffled" not in partition.kinds:
        return None
    orders = np.tile(np.arange(pixels), (partition.clients, 1))
    for i, kind in enumerate(partition.kinds):
        if kind == "shuffled":
            orders[i] = numpy_generator(partition.seed, "pixels", i).permutation(pixels)
    return torch.tensor(orders, device=device)


def scale(images: Tensor, dtype: torch.dtype) -> Tensor:
    """uint8 0..255 to [0, 1] in `dtype`."""
    return images.to(dtype).div_(255)
