"""The server's sets of a data set without clients: the same number of samples of every label."""

from __future__ import annotations

import numpy as np

from pipeline.data.holdings import Draw
from pipeline.data.settings import PartitionSettings
from pipeline.errors import not_allowed


def server_sets(
    labels: np.ndarray, classes: int, settings: PartitionSettings, draw: Draw
) -> tuple[np.ndarray, np.ndarray]:
    """Rows of the validation and of the selection set, each with equally many samples of every label."""
    v, s = settings.validation_per_label, settings.selection_per_label
    if isinstance(v, str) or isinstance(s, str):
        raise ValueError("the per-label sizes are still auto: resolve the settings first")
    counts = np.bincount(labels, minlength=classes)
    rarest = int(counts.argmin())
    require_left(v, s, int(counts[rarest]), f"label {rarest} has")
    validation, selection = [], []
    for c in range(classes):
        first, rest = np.split(draw("validation", c).permutation(np.flatnonzero(labels == c)), [v])
        validation.append(first)
        selection.append(draw("selection", c).permutation(rest)[:s])
    return np.concatenate(validation), np.concatenate(selection)


def require_left(validation: int, selection: int, images: int, what: str) -> None:
    """UserError unless the server's sets leave the clients an image of a label. images: training images of it; what: in
    words, whose these are."""
    if not validation + selection or validation + selection < images:
        return
    taken = {"validation_per_label": validation, "selection_per_label": selection}
    key = max(taken, key=lambda each: taken[each])
    other = next(each for each in taken if each != key)
    raise not_allowed(
        f"partition.{key}",
        taken[key],
        f"at most {max(images - 1 - taken[other], 0)} ({what} {images} training images, {other} takes {taken[other]},"
        " and one must be left)",
        f"lower partition.{key}, or take more images: a larger subset.train or data set",
    )
