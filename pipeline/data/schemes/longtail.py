"""Imbalanced classes (section 4.4 of the SimFBO specification, after the public FedNest code)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from pipeline.config.spec import Auto, Ratio, Section, param
from pipeline.data.holdings import Draw, Holding, at_most, clean_holding
from pipeline.data.schemes.base import Scheme, require_samples, settled
from pipeline.data.sizes import Sizes
from pipeline.errors import not_allowed

KEY = "partition.longtail"


@dataclass(frozen=True)
class Longtail(Section):
    """Class counts that fall geometrically, dealt in equal parts; what is left over is not used."""

    clients: int = param(10, "number of clients", ge=1, symbol="n")
    imbalance: Ratio | Auto = param(
        "auto",
        "samples of the last class per one of the first: class c keeps its first P/C imbalance^(c/(C-1)) of P samples;"
        " auto = 0.1 below 10,000 training images, else 0.01",
    )
    shards_per_client: int = param(0, "0 = random parts; else shards per client, of samples sorted by label", ge=0)


def resolve(settings: Longtail, classes: int, sizes: Sizes) -> Longtail:
    """What `auto` stands for."""
    return replace(settings, imbalance=settled(settings.imbalance, sizes.imbalance))


def foresee(settings: Longtail, samples: int, classes: int) -> int:
    """The number of clients; UserError for more shards than there are samples."""
    require_samples(_shards_key(settings), settings.clients * max(settings.shards_per_client, 1), samples)
    return settings.clients


def _shards_key(settings: Longtail) -> str:
    return f"{KEY}.clients" + " x shards_per_client" * bool(settings.shards_per_client)


def longtail_counts(labels: np.ndarray, classes: int, imbalance: float) -> np.ndarray:
    """[C] int64: min(ceil(P/C imbalance^(c/(C-1))), samples of class c) of P samples.

    The power is that of the C-1-th root, as in the public code: on the MNIST training images its rounding makes the
    ceiling of the last count 61, where 60 is exact.
    """
    root = imbalance ** (1 / (classes - 1))
    wanted = np.ceil([len(labels) / classes * root**c for c in range(classes)]).astype(np.int64)
    return np.minimum(wanted, np.bincount(labels, minlength=classes))


def deal(indices: np.ndarray, labels: np.ndarray, classes: int, settings: Longtail, draw: Draw) -> list[Holding]:
    """Each class keeps its first samples in the order of the data set, in falling numbers; then equal random parts, or,
    with shards, samples sorted by label and cut into equal shards, dealt at random. What is left over is not used."""
    if isinstance(settings.imbalance, str):
        raise ValueError("imbalance is still auto: resolve the settings first")
    counts = longtail_counts(labels, classes, settings.imbalance)
    kept = np.concatenate([np.flatnonzero(labels == c)[:count] for c, count in enumerate(counts)])
    shards = settings.clients * max(settings.shards_per_client, 1)
    size = len(kept) // shards
    if not size:
        raise not_allowed(
            _shards_key(settings),
            shards,
            f"{at_most(len(kept))}, the samples that are kept",
            "lower it, or raise partition.longtail.imbalance",
        )
    order = draw("longtail").permutation(len(kept))
    if settings.shards_per_client:
        order = order[np.argsort(labels[kept[order]], kind="stable")]  # random within a label
    cut = kept[order[: shards * size]].reshape(shards, size)
    dealt = draw("longtail-shards").permutation(shards) if settings.shards_per_client else np.arange(shards)
    hands = cut[dealt].reshape(settings.clients, -1)
    return [clean_holding(indices[hand], labels[hand]) for hand in hands]


LONGTAIL = Scheme(
    name="longtail",
    summary="imbalanced classes in equal parts",
    settings=Longtail,
    deal=deal,
    foresee=foresee,
    resolve=resolve,
)
