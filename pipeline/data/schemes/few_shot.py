"""The few-shot protocol (section 4.2 of the FedBiO specification): tasks of a few classes with a few samples each."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipeline.config.spec import Auto, PositiveInt, Section, param
from pipeline.data.holdings import Draw, Holding, at_most
from pipeline.data.schemes.base import Scheme
from pipeline.errors import UserError, not_allowed

KEY = "partition.few_shot"


@dataclass(frozen=True)
class FewShotTasks(Section):
    """Tasks of a few classes with a few samples each; every client has tasks of its own."""

    clients: int = param(10, "number of clients", ge=1, symbol="M")
    ways: int = param(5, "classes of a task", ge=2)
    shots: int = param(1, "training samples of each class, the support set", ge=1)
    queries: int = param(15, "validation samples of each class, the query set", ge=1)
    tasks: PositiveInt | Auto = param(
        "auto", "tasks of each client; auto = as many as the classes allow, no class being in two tasks"
    )


def deal(indices: np.ndarray, labels: np.ndarray, classes: int, settings: FewShotTasks, draw: Draw) -> list[Holding]:
    """Classes dealt to clients at random, each client's cut into tasks of `ways` classes; no class is in two tasks.

    Of each class `shots` samples, the support set, go to the client's training part and `queries` others to its
    validation part. Both parts lie task after task, class after class, so that a sample's place in its part is
    (task ways + way) per_class + number: its task, its class within the task ("way") and its number.
    """
    clients, ways, each = settings.clients, settings.ways, settings.shots + settings.queries
    enough = np.flatnonzero(np.bincount(labels, minlength=classes) >= each)
    tasks = _tasks(settings, len(enough))
    hands = draw("few-shot").permutation(enough)[: clients * tasks * ways].reshape(clients, tasks * ways)
    in_validation = np.tile(np.arange(each) >= settings.shots, tasks * ways)
    return [_share(indices, labels, hand, each, in_validation, draw) for hand in hands]


def foresee(settings: FewShotTasks, samples: int, classes: int) -> int:
    """The number of clients; UserError for tasks of more classes than there can be with enough images."""
    _tasks(settings, min(classes, samples // (settings.shots + settings.queries)))
    return settings.clients


def _tasks(settings: FewShotTasks, enough: int) -> int:
    """Of each client; UserError if there are none, or less than asked. enough: classes with the images of a task."""
    clients, ways, each = settings.clients, settings.ways, settings.shots + settings.queries
    most = enough // (clients * ways)
    if ways > enough:
        raise UserError(
            f"{KEY}: a task needs {ways} classes (ways) with {each} images each (shots and queries), and"
            f" {enough} of the training classes have that many. Fix: lower ways, shots or queries, or raise"
            " subset.train."
        )
    if most < 1:
        raise not_allowed(
            f"{KEY}.clients",
            clients,
            f"{at_most(enough // ways)}, since each needs {ways} classes (ways) of its own and there are"
            f" {enough} with at least {each} images (shots and queries)",
            f"lower it, or {KEY}.ways",
        )
    tasks = most if isinstance(settings.tasks, str) else settings.tasks
    if tasks > most:
        raise not_allowed(
            f"{KEY}.tasks",
            tasks,
            f"{at_most(most)}: {enough} classes, {clients} clients, {ways} classes to a task",
            f"{KEY}.tasks: auto",
        )
    return tasks


def _share(
    indices: np.ndarray, labels: np.ndarray, hand: np.ndarray, each: int, in_validation: np.ndarray, draw: Draw
) -> Holding:
    at = np.concatenate(
        [draw("few-shot", int(c)).permutation(np.flatnonzero(labels == c))[:each] for c in hand.tolist()]
    )
    return Holding(indices[at], labels[at], "clean", sorted(hand.tolist()), validation=in_validation)


FEW_SHOT = Scheme(
    name="few_shot",
    summary="tasks of a few classes with a few samples each",
    settings=FewShotTasks,
    deal=deal,
    foresee=foresee,
    validation_size="queries",
    own_problem="few_shot",
)
