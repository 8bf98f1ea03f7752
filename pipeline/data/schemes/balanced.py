"""Equal parts with the same number of every label."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipeline.config.spec import Section, param
from pipeline.data.holdings import Draw, Holding, at_most, clean_holding
from pipeline.data.schemes.base import Scheme, require_samples, shuffled_by_label
from pipeline.errors import not_allowed


@dataclass(frozen=True)
class Balanced(Section):
    """Equal parts with the same number of every label, as far as the counts allow; a remainder makes one more."""

    clients: int = param(10, "number of clients", ge=1, symbol="C")


def foresee(settings: Balanced, samples: int, classes: int) -> int:
    """The number of clients; UserError for more than there are samples."""
    return require_samples("partition.balanced.clients", settings.clients, samples)


def deal(indices: np.ndarray, labels: np.ndarray, classes: int, settings: Balanced, draw: Draw) -> list[Holding]:
    """The i.i.d. split of the a_fedpd specification (section 4.2): all clients hold equally many samples of a label.

    Where the N clients do not divide a label's samples, those left over go to one client each, in a random order of
    the clients that goes on from label to label: counts of a label, and sizes, differ by one at most.
    """
    clients = settings.clients
    of_class = shuffled_by_label(labels, classes, draw, "balanced-class")
    _require_every_label(of_class, clients, "partition.balanced.clients")
    order = draw("balanced").permutation(clients)
    owner, dealt = np.empty(len(labels), dtype=np.int64), 0
    for rows in of_class:
        owner[rows] = order[(dealt + np.arange(len(rows))) % clients]
        dealt += len(rows)
    hands = [np.flatnonzero(owner == client) for client in range(clients)]
    return [clean_holding(indices[hand], labels[hand]) for hand in hands]


def _require_every_label(of_class: list[np.ndarray], clients: int, key: str) -> None:
    """UserError unless each client can hold a sample of every label."""
    rarest = min(range(len(of_class)), key=lambda c: len(of_class[c]))
    samples = len(of_class[rarest])
    if clients > samples:
        raise not_allowed(
            key,
            clients,
            f"{at_most(samples)}, since label {rarest} has {samples} samples and each client holds every label",
            "lower it, take a larger data set, or partition.scheme: iid, which balances no labels",
        )


BALANCED = Scheme(
    name="balanced",
    summary="the same number of every label on each client",
    settings=Balanced,
    deal=deal,
    foresee=foresee,
)
