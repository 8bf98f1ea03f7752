"""Imbalanced classes (section 4.4 of the SimFBO specification, after the public FedNest code)."""

from __future__ import annotations

import numpy as np

from pipeline.data.scheme_settings import Longtail
from pipeline.data.shares import Draw, Share, at_most, clean_share
from pipeline.errors import not_allowed

KEY = "partition.longtail"


def longtail_counts(labels: np.ndarray, classes: int, imbalance: float) -> np.ndarray:
    """[C] int64: min(ceil(P/C imbalance^(c/(C-1))), samples of class c) of P samples.

    The power is that of the C-1-th root, as in the public code: on the MNIST training images its rounding makes the
    ceiling of the last count 61, where 60 is exact.
    """
    root = imbalance ** (1 / (classes - 1))
    wanted = np.ceil([len(labels) / classes * root**c for c in range(classes)]).astype(np.int64)
    return np.minimum(wanted, np.bincount(labels, minlength=classes))


def longtail(indices: np.ndarray, labels: np.ndarray, classes: int, settings: Longtail, draw: Draw) -> list[Share]:
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
            f"{KEY}.clients" + " x shards_per_client" * bool(settings.shards_per_client),
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
    return [clean_share(indices[hand], labels[hand]) for hand in hands]
