"""Few labels per client, few large clients and many small ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipeline.config.spec import Section, param
from pipeline.data.holdings import Draw, Holding, at_most, clean_holding
from pipeline.data.schemes.base import Scheme, shuffled_by_label
from pipeline.errors import not_allowed


@dataclass(frozen=True)
class Powerlaw(Section):
    """Few labels per client and heavy-tailed sizes: the split of MNIST in the federated averaging literature."""

    clients: int = param(10, "number of clients; 1000 in the literature", ge=1, symbol="N")
    labels_per_client: int = param(2, "client i holds this many labels, i, i + 1, ..., modulo all labels", ge=1)
    sigma: float = param(
        2.0,
        "the samples of a label beyond min_per_label go in proportion to exp(sigma z), z standard normal; larger"
        " = fewer clients hold most; 0 = equal shares",
        ge=0,
        le=10,
    )
    min_per_label: int = param(5, "no client holds fewer samples of a label of its own", ge=1)


def foresee(settings: Powerlaw, samples: int, classes: int) -> int:
    """The number of clients; UserError for labels that are not met, and for more clients than there are samples."""
    clients, k, least = settings.clients, settings.labels_per_client, settings.min_per_label
    _labels_are_met(clients, k, classes)
    if clients * k > samples:
        raise not_allowed(
            "partition.powerlaw.clients",
            clients,
            f"{at_most(samples // k)}, since {samples} samples are shared by clients with {k} labels each",
            "lower it",
        )
    if clients * k * least > samples:
        raise not_allowed(
            "partition.powerlaw.min_per_label",
            least,
            f"{at_most(samples // (clients * k))}, since {clients} clients with {k} labels share {samples} samples",
            "lower it, or partition.powerlaw.clients",
        )
    return clients


def deal(indices: np.ndarray, labels: np.ndarray, classes: int, settings: Powerlaw, draw: Draw) -> list[Holding]:
    """The split of MNIST over 1000 clients in the federated averaging literature (Li et al., Federated Optimization in
    Heterogeneous Networks, 2020, and its public generator): few labels per client, few large clients, many small ones.

    Client i holds the labels i, i + 1, ..., i + k - 1 modulo C: `min_per_label` samples of each, and of what is then
    left of a label a share in proportion to exp(sigma z), z standard normal, drawn for each of its clients. The public
    generator rounds shares down and leaves the rest undealt (965 of 70,000 images); here all is dealt.
    """
    clients, k, least = settings.clients, settings.labels_per_client, settings.min_per_label
    held = (np.arange(clients)[:, None] + np.arange(k)) % classes  # [N, k], no label twice
    weight = np.stack([draw("powerlaw", i).lognormal(0.0, settings.sigma, k) for i in range(clients)])
    hands: list[list[np.ndarray]] = [[] for _ in range(clients)]
    for label, rows in enumerate(shuffled_by_label(labels, classes, draw, "powerlaw-class")):
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
    return [clean_holding(indices[hand], labels[hand]) for hand in map(np.concatenate, hands)]


def in_proportion(total: int, weight: np.ndarray) -> np.ndarray:
    """[n] int64 with sum `total`: the exact shares rounded down, and one more for the largest fractions."""
    exact = total * (weight / weight.sum())
    sizes = np.floor(exact).astype(np.int64)
    sizes[np.argsort(sizes - exact, kind="stable")[: total - int(sizes.sum())]] += 1
    return sizes


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


POWERLAW = Scheme(
    name="powerlaw",
    summary="few labels per client, sizes from a power law",
    settings=Powerlaw,
    deal=deal,
    foresee=foresee,
)
