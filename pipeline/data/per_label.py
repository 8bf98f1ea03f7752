"""Schemes that deal each label on its own: equally to everybody, or in parts of a power law to a few clients."""

from __future__ import annotations

import numpy as np

from pipeline.data.scheme_settings import Balanced, Powerlaw
from pipeline.data.shares import Draw, Share, at_most, clean_share
from pipeline.errors import not_allowed


def balanced(indices: np.ndarray, labels: np.ndarray, classes: int, settings: Balanced, draw: Draw) -> list[Share]:
    """The i.i.d. split of the a_fedpd specification (section 4.2): everybody holds as many of every label as anybody.

    Where the N clients do not divide a label's samples, those left over go to one client each, in a random order of
    the clients that goes on from label to label: counts of a label, and sizes, differ by one at most.
    """
    clients = settings.clients
    of_class = _shuffled(labels, classes, draw, "balanced-class")
    _everybody_gets(of_class, clients, "partition.balanced.clients")
    order = draw("balanced").permutation(clients)
    owner, dealt = np.empty(len(labels), dtype=np.int64), 0
    for rows in of_class:
        owner[rows] = order[(dealt + np.arange(len(rows))) % clients]
        dealt += len(rows)
    hands = [np.flatnonzero(owner == client) for client in range(clients)]
    return [clean_share(indices[hand], labels[hand]) for hand in hands]


def powerlaw(indices: np.ndarray, labels: np.ndarray, classes: int, settings: Powerlaw, draw: Draw) -> list[Share]:
    """The split of MNIST over 1000 clients in the federated averaging literature (Li et al., Federated Optimization in
    Heterogeneous Networks, 2020, and its public generator): few labels per client, few large clients, many small ones.

    Client i holds the labels i, i + 1, ..., i + k - 1 modulo C: `min_per_label` samples of each, and of what is then
    left of a label a share in proportion to exp(sigma z), z standard normal, drawn for each of its clients. The public
    generator rounds shares down and leaves the rest undealt (965 of 70,000 images); here all is dealt.
    """
    clients, k, least = settings.clients, settings.labels_per_client, settings.min_per_label
    _labels_are_met(clients, k, classes)
    held = (np.arange(clients)[:, None] + np.arange(k)) % classes  # [N, k], no label twice
    weight = np.stack([draw("powerlaw", i).lognormal(0.0, settings.sigma, k) for i in range(clients)])
    hands: list[list[np.ndarray]] = [[] for _ in range(clients)]
    for label, rows in enumerate(_shuffled(labels, classes, draw, "powerlaw-class")):
        owners, place = np.nonzero(held == label)
        spare = len(rows) - least * len(owners)
        if spare < 0:
            raise not_allowed(
                "partition.powerlaw.min_per_label",
                least,
                f"{at_most(len(rows) // len(owners))}, since {len(owners)} clients share the {len(rows)} samples of"
                f" label {label}",
                "lower it, or partition.powerlaw.clients",
            )
        sizes = least + in_proportion(spare, weight[owners, place])
        for client, part in zip(owners, np.split(rows, np.cumsum(sizes)[:-1]), strict=True):
            hands[client].append(part)
    return [clean_share(indices[hand], labels[hand]) for hand in map(np.concatenate, hands)]


def _shuffled(labels: np.ndarray, classes: int, draw: Draw, purpose: str) -> list[np.ndarray]:
    """The positions of each label, in random order."""
    return [draw(purpose, c).permutation(np.flatnonzero(labels == c)) for c in range(classes)]


def in_proportion(total: int, weight: np.ndarray) -> np.ndarray:
    """[n] int64 with sum `total`: the exact shares rounded down, and one more for the largest fractions."""
    exact = total * (weight / weight.sum())
    sizes = np.floor(exact).astype(np.int64)
    sizes[np.argsort(sizes - exact, kind="stable")[: total - int(sizes.sum())]] += 1
    return sizes


def _everybody_gets(of_class: list[np.ndarray], clients: int, key: str) -> None:
    """UserError unless there is a sample of every label for everybody."""
    rarest = min(range(len(of_class)), key=lambda c: len(of_class[c]))
    samples = len(of_class[rarest])
    if clients > samples:
        raise not_allowed(
            key,
            clients,
            f"{at_most(samples)}, since label {rarest} has {samples} samples and everybody holds every label",
            "lower it, take a larger data set, or partition.scheme: iid, which balances no labels",
        )


def _labels_are_met(clients: int, k: int, classes: int) -> None:
    """UserError unless a client holds k different labels, and every label has a client."""
    if k > classes:
        raise not_allowed(
            "partition.powerlaw.labels_per_client",
            k,
            f"{at_most(classes)}, the number of labels",
            "lower it",
        )
    if clients + k - 1 < classes:
        raise not_allowed(
            "partition.powerlaw.clients",
            clients,
            f"at least {classes - k + 1}, so that {k} labels per client reach all {classes} labels",
            "raise it, or partition.powerlaw.labels_per_client",
        )
