"""Who holds what: the server's two sets and every client's samples, as one record in one file.

Rules, enforced by `check`: clean clients are disjoint from one another (but for `dirichlet`, which repeats
images by specification), the server's validation and selection sets from all clients; a bad client holds no
image twice and may share images with others; no client is empty; the server's sets are balanced.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.data.holdings import Draw, Holding
from pipeline.data.partition_rules import check
from pipeline.data.raw import UNREADABLE
from pipeline.data.schemes.natural import NATURAL, UNKNOWN
from pipeline.data.server_sets import server_sets
from pipeline.data.settings import PartitionSettings
from pipeline.errors import UserError
from pipeline.seeds import numpy_generator
from pipeline.text import aligned, short_labels

ARRAYS = (
    "indices",
    "labels",
    "offsets",
    "validation_indices",
    "validation_labels",
    "validation_offsets",
    "server_validation",
    "server_selection",
)


@dataclass(frozen=True, eq=False)
class Partition:
    """N clients and the server. Indices are rows of the training images; labels are what the client believes.

    | field | what | shape |
    |---|---|---|
    | kinds | clean, noisy, flipped, shuffled, duplicate, small or unknown | N |
    | names | what the clients are called | N |
    | client_labels | labels the client nominally holds, ascending | N lists |
    | indices, labels | training parts, client after client; labels float64 where targets are numbers | [S] int64 |
    | offsets | client i's part is offsets[i] to offsets[i+1] | [N+1] int64 |
    | validation_* | the clients' own validation parts, likewise | [S_v], [S_v], [N+1] int64 |
    | quality | share of right labels; 0 for random labels and shuffled pixels | N in [0, 1] |
    | server_validation, server_selection | the server's sets, true labels | [V], [V_s] int64 |
    | server_test | training rows that are the test set, where the data have none | [T] int64 |
    | class_names | of each class; none: their numbers | classes |
    """

    dataset: str
    classes: int
    scheme: str
    seed: int
    settings: dict[str, Any]
    kinds: list[str]
    client_labels: list[list[int]]
    quality: list[float]
    indices: np.ndarray = field(repr=False)
    labels: np.ndarray = field(repr=False)
    offsets: np.ndarray = field(repr=False)
    validation_indices: np.ndarray = field(repr=False)
    validation_labels: np.ndarray = field(repr=False)
    validation_offsets: np.ndarray = field(repr=False)
    server_validation: np.ndarray = field(repr=False)
    server_selection: np.ndarray = field(repr=False)
    server_test: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64), repr=False)
    names: list[str] = field(default_factory=list)
    class_names: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.names:
            object.__setattr__(self, "names", [f"client {i}" for i in range(self.clients)])

    @property
    def known(self) -> bool:
        """Whether it is known of each client if it is clean."""
        return UNKNOWN not in self.kinds

    @property
    def clients(self) -> int:
        """N."""
        return len(self.kinds)

    @property
    def sizes(self) -> np.ndarray:
        """[N] int64, samples of each training part."""
        return np.diff(self.offsets)

    @property
    def validation_sizes(self) -> np.ndarray:
        """[N] int64, samples of each client's own validation part."""
        return np.diff(self.validation_offsets)

    @property
    def unchecked(self) -> bool:
        """Whether the server's validation samples were held out from the clients, wrong labels included."""
        return any(validation for _, validation, _ in (self.settings.get("held_out") or {}).values())

    @property
    def clean(self) -> np.ndarray:
        """[N] bool."""
        return np.array([kind == "clean" for kind in self.kinds])

    def label_counts(self) -> np.ndarray:
        """[N, classes] int64: labels, as the client believes them, of each training part; the sizes alone, [N, 1],
        where targets are numbers."""
        owner = np.repeat(np.arange(self.clients), self.sizes)
        if not self.classes:
            return self.sizes[:, None]
        flat = np.bincount(owner * self.classes + self.labels, minlength=self.clients * self.classes)
        return flat.reshape(self.clients, self.classes)

    def oracle_weights(self) -> np.ndarray:
        """[N] float64, `label_shares` of the clean clients."""
        return label_shares(self.label_counts(), self.clean)

    @cached_property
    def hash(self) -> str:
        """sha256 of who holds what: data set, kinds, labels and every array, and the settings of few-shot tasks, which
        say how these lie in them; the same on every platform."""
        content: list[Any] = [self.dataset, self.classes, self.kinds, self.client_labels]
        if self.scheme == "few_shot":
            content.append(self.settings)
        digest = hashlib.sha256(json.dumps(content).encode())
        for name in ARRAYS:
            array = getattr(self, name)
            digest.update(f"{name} {len(array)}\n".encode())
            digest.update(np.ascontiguousarray(array, dtype=_kind(name, self.classes)).tobytes())
        if len(self.server_test):
            digest.update(np.ascontiguousarray(self.server_test, dtype="<i8").tobytes())
        return digest.hexdigest()

    def save(self, path: Path) -> None:
        """One .npz without pickles; equal partitions give equal bytes. Written beside it, then renamed."""
        path = Path(path)
        about = {
            name: getattr(self, name)
            for name in (
                "dataset",
                "classes",
                "scheme",
                "seed",
                "settings",
                "kinds",
                "client_labels",
                "quality",
                "names",
                "class_names",
                "hash",
            )
        }
        names = (*ARRAYS, "server_test")
        arrays = {name: np.asarray(getattr(self, name), dtype=_kind(name, self.classes)) for name in names}
        path.parent.mkdir(parents=True, exist_ok=True)
        partial_file = path.with_name(f".{path.name}.partial")
        try:
            with partial_file.open("wb") as file:
                np.savez(file, allow_pickle=False, about=np.array(json.dumps(about)), **arrays)
            os.replace(partial_file, path)
        finally:
            partial_file.unlink(missing_ok=True)

    @classmethod
    def load(cls, path: Path) -> Partition:
        """Raises UserError if the file is missing, damaged or not what was saved."""
        path = Path(path)
        fix = f"Fix: delete {path} and run dvc repro again."
        try:
            with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
                about = json.loads(str(file["about"]))
                names = (*ARRAYS, "server_test")
                arrays = {name: file[name].astype(_kind(name, about["classes"])) for name in names}
            recorded = about.pop("hash")
            result = cls(**about, **arrays)
        except FileNotFoundError:
            raise UserError(f"{path} does not exist: no partition was made. Fix: run dvc repro.") from None
        except (*UNREADABLE, KeyError, TypeError) as error:
            raise UserError(f"{path} is damaged: it cannot be read ({error}). {fix}") from None
        if result.hash != recorded:
            raise UserError(f"{path} is damaged: its content is not what its hash records. {fix}")
        return result


def _kind(name: str, classes: int) -> str:
    """How an array is stored: targets that are numbers are no whole ones."""
    return "<f8" if not classes and name in ("labels", "validation_labels") else "<i8"


def label_shares(counts: np.ndarray, clean: np.ndarray) -> np.ndarray:
    """[N] float64: (1/C) sum_c n_ic / (sum over clean j of n_jc) for clean clients i, 0 for the others.

    counts n: [N, classes]; clean: [N] bool. C counts the classes that some clean client holds, so the weights sum to 1;
    all are 0 if no client is clean.
    """
    counts = counts * clean[:, None]
    total = counts.sum(axis=0)
    held = total > 0
    return (counts[:, held] / total[held]).sum(axis=1) / max(int(held.sum()), 1)


def make_partition(
    labels: np.ndarray, dataset: str, classes: int, partition_params: PartitionSettings, seed: int
) -> Partition:
    """Deal the training samples. labels: [M], true, of the training images; no `auto` left in the settings.

    Server first: its validation set depends on (seed, "validation"), its selection set on (seed,
    "selection"); the scheme deals the rest. Raises UserError naming the key of a setting that the data cannot
    serve.
    """
    draw = partial(numpy_generator, seed)
    labels = np.asarray(labels, dtype=np.int64)
    validation, selection = server_sets(labels, classes, partition_params, draw)
    pool = np.setdiff1d(np.arange(len(labels)), np.concatenate([validation, selection]))
    scheme = partition_params.dealing
    settings = getattr(partition_params, scheme.name)
    scheme.foresee(settings, len(pool), classes)
    shares = scheme.deal(pool, labels[pool], classes, settings, draw)
    about = {
        "validation_per_label": partition_params.validation_per_label,
        "selection_per_label": partition_params.selection_per_label,
    }
    result = assembled(dataset, classes, labels, shares, partition_params, seed, about, validation, selection)
    check(result, labels, scheme)
    return result


def assembled(
    dataset: str,
    classes: int,
    labels: np.ndarray,
    shares: list[Holding],
    partition_params: PartitionSettings,
    seed: int,
    about: dict[str, Any],
    validation: np.ndarray,
    selection: np.ndarray,
    *,
    test: np.ndarray | None = None,
    names: Sequence[str] = (),
    class_names: Sequence[str] = (),
    groups: np.ndarray | None = None,
) -> Partition:
    """What clients hold, cut into training and validation parts. labels, groups: [M], of all training images."""
    scheme, draw = partition_params.dealing, partial(numpy_generator, seed)
    own = partition_params.client_validation
    if isinstance(own, str):
        raise ValueError("client_validation is still auto: resolve the settings first")
    in_validation = [_own_validation(share, own, draw, client, groups) for client, share in enumerate(shares)]
    settings = dataclasses.asdict(getattr(partition_params, scheme.name))
    return Partition(
        dataset=dataset,
        classes=classes,
        scheme=scheme.name,
        seed=seed,
        settings=about | {"client_validation": own, **settings},
        kinds=[share.kind for share in shares],
        client_labels=[share.client_labels for share in shares],
        quality=[_quality(share, labels) for share in shares],
        **_flat("", shares, [~chosen for chosen in in_validation]),
        **_flat("validation_", shares, in_validation),
        server_validation=validation,
        server_selection=selection,
        server_test=np.zeros(0, dtype=np.int64) if test is None else test,
        names=list(names),
        class_names=list(class_names),
    )


def _own_validation(
    share: Holding, part: float, draw: Draw, client: int, groups: np.ndarray | None = None
) -> np.ndarray:
    """[n] bool: samples of the client's validation part. All copies of an image, and all of a group, go to the same
    side."""
    if share.validation is not None:
        return share.validation
    target = min(round(part * len(share.indices)), len(share.indices) - 1)
    units = share.indices if groups is None else groups[share.indices]
    images, which, copies = np.unique(units, return_inverse=True, return_counts=True)
    owner = client if share.copy_of is None else share.copy_of
    order = draw("client-validation", owner).permutation(len(images))
    chosen = np.zeros(len(images), dtype=bool)
    chosen[order[np.cumsum(copies[order]) <= target]] = True
    return chosen[which]


def _quality(share: Holding, true_labels: np.ndarray) -> float:
    """Random labels are right by chance alone, which is no quality."""
    if share.kind in ("noisy", "shuffled"):
        return 0.0
    return 1.0 if not len(share.indices) else float((share.labels == true_labels[share.indices]).mean())


def _flat(prefix: str, shares: list[Holding], masks: list[np.ndarray]) -> dict[str, np.ndarray]:
    pairs = list(zip(shares, masks, strict=True))
    return {
        f"{prefix}indices": np.concatenate([share.indices[mask] for share, mask in pairs]),
        f"{prefix}labels": np.concatenate([share.labels[mask] for share, mask in pairs]),
        f"{prefix}offsets": np.cumsum([0, *(int(mask.sum()) for mask in masks)], dtype=np.int64),
    }


# ------------------------------------------------------------------------------------------- summary


def summary_table(partition: Partition) -> str:
    """Plain text: one line per client, then the server's sets."""
    p, settings = partition, partition.settings
    heading = f"{p.dataset}, partition {p.scheme}, seed {p.seed}, hash {p.hash[:12]}"
    classes = [_held(labels, p.class_names) for labels in p.client_labels]
    columns = {
        "client": p.names if p.scheme == NATURAL.name else list(map(str, range(p.clients))),
        "kind": p.kinds,
        "labels": classes,
        "train": list(map(str, p.sizes.tolist())),
        "validation": list(map(str, p.validation_sizes.tolist())),
    }
    if p.known:
        columns["oracle weight"] = [f"{weight:.3f}" for weight in p.oracle_weights().tolist()]
    held_out = settings.get("held_out") or {}
    if p.scheme == NATURAL.name and any(map(sum, held_out.values())):
        for place, name in enumerate(("test", "validation", "selection")):
            columns[f"to {name}"] = [str(held_out[client][place]) for client in p.names]
    rows = [tuple(columns), *zip(*columns.values(), strict=True)]
    v, s, t = len(p.server_validation), len(p.server_selection), len(p.server_test)
    server = f"server: {v} validation and {s} selection samples"
    if "validation_per_label" in settings:
        server += f", balanced over {p.classes} labels"
    elif held_out or t:
        server += f", {t} test samples" if t else ""
        server += "; those of the columns `to ...` were held out from the clients" if len(columns) > 6 else ""
    left = (0, 1, 2) if p.scheme == NATURAL.name else (1, 2)
    return "\n".join([heading, aligned(rows, left=left), server])


def _held(labels: list[int], names: list[str]) -> str:
    words = "; ".join(names[label] for label in labels) if names else short_labels(labels)
    return words if len(words) <= 40 else f"{len(labels)} classes"
