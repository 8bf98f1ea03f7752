"""All clients' samples as tensors on the device: a minibatch of all active clients is one act of indexing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from pipeline import randomness
from pipeline.data import scaling
from pipeline.data.arrays import Samples, stored
from pipeline.data.losses import Loss
from pipeline.data.partition import Partition, label_shares
from pipeline.data.raw import RawDataset
from pipeline.data.scaling import Scaling
from pipeline.errors import UserError
from pipeline.seeds import numpy_generator


@dataclass(frozen=True, eq=False)
class Parts:
    """One part of every client's samples, client after client: rows of the training images and labels, int64 [S];
    client i holds positions starts[i] to starts[i] + sizes[i] of them, int64 [N]."""

    rows: Tensor = field(repr=False)
    labels: Tensor = field(repr=False)
    starts: Tensor
    sizes: Tensor

    @property
    def owners(self) -> Tensor:
        """Whose sample each is, [S]."""
        clients = torch.arange(len(self.sizes), device=self.sizes.device)
        return clients.repeat_interleave(self.sizes)


@dataclass(frozen=True)
class Unit:
    """Targets that are numbers are (y - shift) / spread in training; the spread brings errors back to theirs."""

    shift: float = 0.0
    spread: float = 1.0

    def scaled(self, targets: Tensor, dtype: torch.dtype) -> Tensor:
        """Classes stay what they are."""
        if not targets.is_floating_point():
            return targets
        return ((targets - self.shift) / self.spread).to(dtype)


@dataclass(frozen=True, eq=False)
class FederatedData:
    """Images stay as stored, uint8 or float, except the server's validation set, which every round needs whole. A
    vector of f features is an image of f channels and one pixel. "Scaled" is what networks take
    (`pipeline.data.scaling`).

    | field | what | shape |
    |---|---|---|
    | images | all training images | stored [M, C, H, W] |
    | indices, labels | the clients' training parts one after another: rows of `images`, labels | int64 [S] |
    | starts, sizes | client i holds positions starts[i] to starts[i] + sizes[i] of them | int64 [N] |
    | wrong | which of these labels are not the true ones | bool [S] |
    | own_validation | the clients' own validation parts, perhaps empty | Parts |
    | client_labels | labels each client nominally holds | N lists |
    | validation_images, _labels | the server's validation set, scaled | dtype [V, C, H, W], int64 [V] |
    | selection_images, _labels | the server's selection set | stored [V_s, C, H, W], int64 [V_s] |
    | test_images, _labels | the test set | stored [T, C, H, W], int64 [T] |
    | kinds, oracle_weights | of each client | N, dtype [N] |
    | pixel_orders | each client's order of pixels; None if no client's is shuffled | int64 [N, HW] |
    | scaling | how stored floats are scaled; None: uint8 are divided by 255, others stay | |
    | unit | of targets that are numbers (`classes` 0): labels here are in it | |
    | loss | of one sample | |
    | names | of the clients; None where they have none of their own | N |
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
    wrong: Tensor = field(repr=False)
    own_validation: Parts = field(repr=False)
    client_labels: list[list[int]] = field(repr=False)
    pixel_orders: Tensor | None = field(default=None, repr=False)
    scaling: Scaling | None = None
    unit: Unit = Unit()
    loss: Loss = Loss()
    names: list[str] | None = None

    @classmethod
    def build(
        cls, raw: RawDataset, partition: Partition, device: torch.device, dtype: torch.dtype = torch.float32
    ) -> FederatedData:
        """Move the data to the device. Raises UserError if the partition was made of other data."""
        rows = [partition.indices, partition.validation_indices, partition.server_validation]
        rows += [partition.server_selection, partition.server_test]
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
        test_images, test_labels = tensor(raw.test_images), tensor(raw.test_labels)
        if len(partition.server_test):
            test_images, test_labels = server(partition.server_test)
        unit = Unit()
        if not raw.classes:
            unit = Unit(*_mean_and_deviation(partition))
        return cls(
            images=tensor(raw.train_images),
            indices=tensor(partition.indices),
            labels=unit.scaled(tensor(partition.labels), dtype),
            starts=tensor(partition.offsets[:-1]),
            sizes=tensor(partition.sizes),
            validation_images=scale(validation_images, dtype),
            validation_labels=unit.scaled(validation_labels, dtype),
            selection_images=selection_images,
            selection_labels=unit.scaled(selection_labels, dtype),
            test_images=test_images,
            test_labels=unit.scaled(test_labels, dtype),
            classes=raw.classes,
            kinds=list(partition.kinds),
            oracle_weights=tensor(partition.oracle_weights()).to(dtype),
            wrong=tensor(partition.labels != raw.train_labels[partition.indices]),
            own_validation=Parts(
                tensor(partition.validation_indices),
                unit.scaled(tensor(partition.validation_labels), dtype),
                tensor(partition.validation_offsets[:-1]),
                tensor(partition.validation_sizes),
            ),
            client_labels=partition.client_labels,
            pixel_orders=_pixel_orders(partition, raw.train_images[0, 0].size, device),
            unit=unit,
            names=partition.names if raw.client_names and partition.scheme == "natural" else None,
        )

    @classmethod
    def from_arrays(
        cls,
        clients: Sequence[Samples],
        validation: Samples,
        test: Samples,
        *,
        selection: Samples | None = None,
        classes: int,
        kinds: Sequence[str],
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        true_labels: Sequence[np.ndarray] | None = None,
    ) -> FederatedData:
        """Samples (X, y) of each client and of the server: vectors X [m, f], or images [m, H, W] or [m, C, H, W].

        kinds: of each client, "clean" or what is wrong with it. true_labels: of each client's samples, for `wrong`;
        unknown, none counts as wrong. Raises UserError for arrays that do not fit together, labels outside
        0..classes-1, and numbers that are missing or infinite.
        """
        if len(kinds) != len(clients) or not clients:
            raise UserError(
                f"{len(clients)} clients have {len(kinds)} kinds. Fix: at least one client, one kind for each."
            )
        sets = {"validation": validation, "test": test} | ({"selection": selection} if selection else {})
        sets |= {f"client {i}": samples for i, samples in enumerate(clients)}
        held = stored(sets, classes)
        images, labels = (dict(zip(sets, part, strict=True)) for part in (held.images, held.labels))
        own = [f"client {i}" for i in range(len(clients))]
        sizes = torch.tensor([len(labels[name]) for name in own])
        y = torch.cat([labels[name] for name in own])
        wrong = torch.zeros(len(y), dtype=torch.bool)
        if true_labels is not None:
            wrong = y != torch.cat([torch.as_tensor(np.asarray(part)) for part in true_labels])
        scaled_by = None
        if images["validation"].is_floating_point():
            by = scaling.of_vectors if held.vectors else scaling.of_images
            scaled_by = by(images["validation"]).to(torch.device(device))
        counts = torch.stack([labels[name].bincount(minlength=classes) for name in own]).numpy()
        clean = np.array([kind == "clean" for kind in kinds])
        nothing = torch.zeros(0, dtype=torch.int64, device=device)
        return cls(
            images=torch.cat([images[name] for name in own]).to(device),
            indices=torch.arange(len(y), device=device),
            labels=y.to(device),
            starts=(sizes.cumsum(0) - sizes).to(device),
            sizes=sizes.to(device),
            validation_images=scale(images["validation"].to(device), dtype, scaled_by),
            validation_labels=labels["validation"].to(device),
            selection_images=images.get("selection", images["test"][:0]).to(device),
            selection_labels=labels.get("selection", labels["test"][:0]).to(device),
            test_images=images["test"].to(device),
            test_labels=labels["test"].to(device),
            classes=classes,
            kinds=list(kinds),
            oracle_weights=torch.tensor(label_shares(counts, clean), dtype=dtype, device=device),
            wrong=wrong.to(device),
            own_validation=Parts(
                nothing, nothing, torch.zeros_like(sizes).to(device), torch.zeros_like(sizes).to(device)
            ),
            client_labels=[np.flatnonzero(row).tolist() for row in counts],
            scaling=scaled_by,
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
        """Of the whole computation, and of scaled images (whole numbers stay what they are)."""
        return self.oracle_weights.dtype

    @property
    def outputs(self) -> int:
        """Of a network: one per class; one number."""
        return self.classes or 1

    def scaled(self, images: Tensor) -> Tensor:
        """Stored images as networks take them."""
        return scale(images, self.dtype, self.scaling)

    @property
    def training(self) -> Parts:
        """The clients' training parts."""
        return Parts(self.indices, self.labels, self.starts, self.sizes)

    def batch(self, clients: Tensor, positions: Tensor, parts: Parts | None = None) -> tuple[Tensor, Tensor]:
        """Samples `positions` [n, B] of `clients` [n], each counted from 0 in the client's own part; parts: the
        training parts, if none are given.

        Returns X [n, B, C, H, W], scaled, and y [n, B]. Pure indexing, on the device, no wait for the host.
        """
        parts = parts or self.training
        X, y = self.samples((parts.starts[clients][:, None] + positions).flatten(), parts, clients, positions.shape[1])
        return X.view(*positions.shape, *X.shape[1:]), y.view(positions.shape)

    def samples(self, at: Tensor, parts: Parts, owners: Tensor, each: int = 1) -> tuple[Tensor, Tensor]:
        """Samples `at` [m] of the parts, X [m, C, H, W], scaled, and y [m]. owners [m / each]: whose they are, `each`
        in a row."""
        X = self.images.index_select(0, parts.rows.index_select(0, at))
        if self.pixel_orders is not None:
            order = self.pixel_orders[owners].repeat_interleave(each, dim=0)[:, None, :]
            X = X.flatten(2).gather(2, order.expand(-1, X.shape[1], -1)).view(X.shape)
        return self.scaled(X), parts.labels[at]

    def validation_batch(self, positions: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """X [B_0, C, H, W], scaled, and y [B_0]: the server's samples `positions` [B_0], or all of them."""
        if positions is None:
            return self.validation_images, self.validation_labels
        return self.validation_images[positions], self.validation_labels[positions]

    def server_minibatch(self, stream: int, size: int | None) -> tuple[Tensor, Tensor]:
        """`size` of the server's validation samples, uniformly with replacement from the random stream; None: all."""
        if size is None:
            return self.validation_batch()
        server = torch.zeros(1, dtype=torch.int64, device=self.device)
        held = torch.full_like(server, len(self.validation_labels))
        return self.validation_batch(randomness.positions(stream, server, held, size)[0])


def _pixel_orders(partition: Partition, pixels: int, device: torch.device) -> Tensor | None:
    """One random order per shuffled client, the same for all its images and channels; None if no client is shuffled."""
    if "shuffled" not in partition.kinds:
        return None
    orders = np.tile(np.arange(pixels), (partition.clients, 1))
    for i, kind in enumerate(partition.kinds):
        if kind == "shuffled":
            orders[i] = numpy_generator(partition.seed, "pixels", i).permutation(pixels)
    return torch.tensor(orders, device=device)


def _mean_and_deviation(partition: Partition) -> tuple[float, float]:
    """Of the targets, by the clients' sums and counts; the median client's, so that one bad client decides nothing."""
    parts = np.split(partition.labels, partition.offsets[1:-1])
    shift = float(np.median([part.mean() for part in parts]))
    spread = float(np.median([np.square(part - shift).mean() for part in parts])) ** 0.5
    return shift, spread or float(np.abs(partition.labels - shift).max()) or 1.0


def scale(images: Tensor, dtype: torch.dtype, scaling: Scaling | None = None) -> Tensor:
    """Stored images in `dtype`: by the scaling; uint8 0..255 to [0, 1], other numbers as they are. Whole numbers stay
    whole."""
    if scaling:
        return scaling(images).to(dtype)
    if images.dtype == torch.uint8:
        return images.to(dtype).div_(255)
    return images.to(dtype) if images.is_floating_point() else images
