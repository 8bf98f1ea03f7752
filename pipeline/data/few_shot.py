"""The few-shot protocol (section 4.2 of the FedBiO specification): tasks of a few classes with a few samples each."""

from __future__ import annotations

import numpy as np

from pipeline.data.scheme_settings import FewShot
from pipeline.data.shares import Draw, Share, at_most
from pipeline.errors import UserError, not_allowed

KEY = "partition.few_shot"


def few_shot(indices: np.ndarray, labels: np.ndarray, classes: int, settings: FewShot, draw: Draw) -> list[Share]:
    """Classes dealt to clients at random, each client's cut into tasks of `ways` classes; no class is in two tasks.

    Of each class `shots` samples, the support set, go to the client's training part and `queries` others to its
    validation part. Both parts lie task after task, class after class, so that a sample's place in its part tells its
    task, its class within the task ("way") and its number: place = (task ways + way) per_class + number.
    """
    clients, ways, each = settings.clients, settings.ways, settings.shots + settings.queries
    enough = np.flatnonzero(np.bincount(labels, minlength=classes) >= each)
    most = len(enough) // (clients * ways)
    if ways > len(enough):
        raise UserError(
            f"{KEY}: a task needs {ways} classes (ways) with {each} images each (shots and queries), and"
            f" {len(enough)} of the training classes have so many. Fix: lower ways, shots or queries, or raise"
            " subset.train."
        )
    if most < 1:
        raise not_allowed(
            f"{KEY}.clients",
            clients,
            f"{at_most(len(enough) // ways)}, since each needs {ways} classes (ways) of its own and there are"
            f" {len(enough)} with at least {each} images (shots and queries)",
            f"lower it, or {KEY}.ways",
        )
    tasks = most if isinstance(settings.tasks, str) else settings.tasks
    if tasks > most:
        raise not_allowed(
            f"{KEY}.tasks",
            tasks,
            f"{at_most(most)}: {len(enough)} classes, {clients} clients, {ways} classes to a task",
            f"{KEY}.tasks: auto",
        )
    hands = draw("few-shot").permutation(enough)[: clients * tasks * ways].reshape(clients, tasks * ways)
    in_validation = np.tile(np.arange(each) >= settings.shots, tasks * ways)
    return [_share(indices, labels, hand, each, in_validation, draw) for hand in hands]


def _share(
    indices: np.ndarray, labels: np.ndarray, hand: np.ndarray, each: int, in_validation: np.ndarray, draw: Draw
) -> Share:
    at = np.concatenate(
        [draw("few-shot", int(c)).permutation(np.flatnonzero(labels == c))[:each] for c in hand.tolist()]
    )
    return Share(indices[at], labels[at], "clean", sorted(hand.tolist()), validation=in_validation)
