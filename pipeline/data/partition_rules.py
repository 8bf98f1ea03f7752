"""The rules that every partition keeps: see `pipeline.data.partition`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pipeline.data.schemes import SCHEMES, Scheme

if TYPE_CHECKING:
    from pipeline.data.partition import Partition


def check(
    partition: Partition, true_labels: np.ndarray, scheme: Scheme | None = None, *, balanced: bool = True
) -> None:
    """The rules at the top of this file; ValueError names the one that is broken, and by whom.

    true_labels: [M] of the training images. scheme: where it is none of ours. balanced: whether the server's sets are.
    If one is broken, the scheme is at fault.
    """

    def require(holds: bool, rule: str) -> None:
        if not holds:
            raise ValueError(f"partition {partition.scheme}: {rule}")

    p, repeats = partition, (scheme or SCHEMES[partition.scheme]).repeats
    count = len(true_labels)
    for indices, labels, offsets in (
        (p.indices, p.labels, p.offsets),
        (p.validation_indices, p.validation_labels, p.validation_offsets),
    ):
        require(len(offsets) == p.clients + 1 == len(p.client_labels) + 1, "one offset and label list per client")
        require(
            offsets[0] == 0 and offsets[-1] == len(indices) == len(labels),
            "offsets end where the samples end",
        )
        require(bool(np.all((indices >= 0) & (indices < count))), "indices are rows of the training images")
        inside = not p.classes or bool(np.all((labels >= 0) & (labels < p.classes)))
        require(inside, f"labels lie in 0..{p.classes - 1}")
    require(p.clients > 0, "there is a client")
    server = np.concatenate([p.server_validation, p.server_selection, p.server_test])
    require(len(np.unique(server)) == len(server), "the server's sets are disjoint and hold no image twice")
    for name, rows in (("validation", p.server_validation), ("selection", p.server_selection)) if balanced else ():
        per_label = np.bincount(true_labels[rows], minlength=p.classes)
        require(
            bool(np.all(per_label == len(rows) // p.classes)),
            f"the {name} set holds every label equally often",
        )
    taken = np.zeros(count, dtype=bool)
    taken[server] = True
    by_clean = np.zeros(count, dtype=bool)
    for i, kind in enumerate(p.kinds):
        part = slice(p.offsets[i], p.offsets[i + 1])
        own = slice(p.validation_offsets[i], p.validation_offsets[i + 1])
        held = np.concatenate([p.indices[part], p.validation_indices[own]])
        require(part.stop > part.start, f"client {i} holds a training sample")
        require(not taken[held].any(), f"client {i} holds no image of the server's sets")
        require(
            not np.isin(p.validation_indices[own], p.indices[part]).any(),
            f"client {i}'s two parts are disjoint",
        )
        require(repeats or len(np.unique(held)) == len(held), f"client {i} holds no image twice")
        if kind == "clean":
            believed = np.concatenate([p.labels[part], p.validation_labels[own]])
            require(np.array_equal(believed, true_labels[held]), f"clean client {i}'s labels are the true ones")
            require(repeats or not by_clean[held].any(), f"clean client {i} shares no image with a clean one")
            by_clean[held] = True
