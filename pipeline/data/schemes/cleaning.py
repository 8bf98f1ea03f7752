"""The data-cleaning protocol (section 4.1 of the FedBiO specification): wrong labels, and clean validation parts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from pipeline.config.spec import Auto, PositiveInt, Section, param
from pipeline.data.holdings import Draw, Holding, at_most
from pipeline.data.schemes.base import Scheme, settled
from pipeline.data.sizes import Sizes
from pipeline.errors import not_allowed

KEY = "partition.cleaning"


@dataclass(frozen=True)
class Cleaning(Section):
    """Equal random parts with wrong labels everywhere, and a clean validation part for each client."""

    clients: int = param(10, "number of clients", ge=1, symbol="M")
    samples: PositiveInt | Auto = param(
        "auto", "training samples of each client; auto = 100 below 10,000 training images, else 4500"
    )
    rate: float = param(
        0.4, "share of labels that are replaced by one of all labels at random, the true one included", ge=0, le=1
    )
    validation_samples: PositiveInt | Auto = param(
        "auto", "clean validation samples of each client; auto = 10 below 10,000 training images, else 50"
    )
    validation_labels: Literal["iid", "one_class"] = param(
        "iid", "of a client: iid = at random; one_class = all of class (client number) mod (number of classes)"
    )


def resolve(settings: Cleaning, classes: int, sizes: Sizes) -> Cleaning:
    """What `auto` stands for."""
    return replace(
        settings,
        samples=settled(settings.samples, sizes.cleaning_samples),
        validation_samples=settled(settings.validation_samples, sizes.cleaning_validation),
    )


def foresee(settings: Cleaning, samples: int, classes: int) -> int:
    """The number of clients; UserError for more samples than there are."""
    n, v, clients = settings.samples, settings.validation_samples, settings.clients
    if isinstance(n, str) or isinstance(v, str):
        raise ValueError("sizes are still auto: resolve the settings first")
    if clients * (n + v) > samples:
        each = samples // clients - v
        raise not_allowed(
            f"{KEY}.samples",
            n,
            f"{at_most(each)}, since {clients} clients with {v} validation samples each share {samples} samples",
            f"lower it, or {KEY}.clients or {KEY}.validation_samples",
        )
    return clients


def deal(indices: np.ndarray, labels: np.ndarray, classes: int, settings: Cleaning, draw: Draw) -> list[Holding]:
    """Disjoint clients with equally many samples each.

    round(rate n) of a client's n training labels are replaced by one of ALL labels, uniformly: with C classes a share
    of about rate / C of them is right again by chance. Its validation labels are true: of samples at random, or all of
    one class, that of the client's number modulo C.
    """
    n, v, clients = int(settings.samples), int(settings.validation_samples), settings.clients
    validation = _validation(labels, classes, settings, v, draw)
    rest = np.setdiff1d(np.arange(len(indices)), np.concatenate(validation))
    training = np.split(draw("cleaning").permutation(rest)[: clients * n], clients)
    return [
        _share(indices, labels, classes, train, own, settings.rate, draw("label-noise", client))
        for client, (train, own) in enumerate(zip(training, validation, strict=True))
    ]


def _validation(labels: np.ndarray, classes: int, settings: Cleaning, v: int, draw: Draw) -> list[np.ndarray]:
    """Positions of each client's validation samples, [v] each."""
    if settings.validation_labels == "iid":
        return np.split(draw("cleaning-validation").permutation(len(labels))[: settings.clients * v], settings.clients)
    found = []
    for client in range(settings.clients):
        c = client % classes
        of_class = draw("cleaning-validation", c).permutation(np.flatnonzero(labels == c))
        before = client // classes * v  # earlier clients of the same class
        if before + v > len(of_class):
            raise not_allowed(
                f"{KEY}.validation_samples",
                v,
                f"{at_most(len(of_class) // (client // classes + 1))} (class {c} has {len(of_class)} samples)",
                f"lower it, or {KEY}.validation_labels: iid",
            )
        found.append(of_class[before : before + v])
    return found


def _share(
    indices: np.ndarray,
    labels: np.ndarray,
    classes: int,
    train: np.ndarray,
    own: np.ndarray,
    rate: float,
    generator: np.random.Generator,
) -> Holding:
    at = np.concatenate([train, own])
    held = labels[at]
    replaced = generator.choice(len(train), round(rate * len(train)), replace=False)
    held[replaced] = generator.integers(0, classes, len(replaced))
    kind = "flipped" if rate else "clean"
    in_validation = np.arange(len(at)) >= len(train)
    return Holding(indices[at], held, kind, np.unique(labels[at]).tolist(), validation=in_validation)


CLEANING = Scheme(
    name="cleaning",
    summary="wrong labels everywhere, clean validation parts",
    settings=Cleaning,
    deal=deal,
    foresee=foresee,
    validation_size="validation_samples",
    clean_validation=True,
    resolve=resolve,
)
