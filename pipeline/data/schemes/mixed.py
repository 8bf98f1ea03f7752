"""The label groups of `lead`, and bad clients of every kind."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from pipeline.config.spec import Auto, PositiveInt, Section, param
from pipeline.data.holdings import Draw, Holding, at_most
from pipeline.data.schemes.base import (
    MOST_CLIENTS,
    Scheme,
    default_groups,
    label_groups,
    noisy_holding,
    require_groups,
    require_rates,
    require_room,
    settled,
    with_wrong_labels,
)
from pipeline.data.sizes import Sizes
from pipeline.errors import not_allowed


@dataclass(frozen=True)
class Mixed(Section):
    """The label groups of `lead`, and one or more bad clients of every kind."""

    groups: list[list[int]] | Auto = param("auto", "labels of each clean client, as in `lead`")
    noisy: int = param(1, "clients with uniformly random labels", ge=0, le=MOST_CLIENTS)
    flip_rates: list[float] = param([0.3, 0.6], "a client for each rate: that share of its labels is wrong")
    shuffled: int = param(1, "clients whose pixels are shuffled, by one order per client", ge=0, le=MOST_CLIENTS)
    duplicates: int = param(1, "exact copies of the first clean client", ge=0, le=MOST_CLIENTS)
    small: int = param(1, "clients with few samples, their labels right", ge=0, le=MOST_CLIENTS)
    bad_samples: PositiveInt | Auto = param(
        "auto",
        "samples of each noisy, flipped and shuffled client; auto = 100 below 10,000 training images, else 5000",
    )
    small_samples: int = param(20, "samples of each small client", ge=1)


def check(key: str, settings: Mixed) -> None:
    """UserError for a share of wrong labels that is none."""
    require_rates(f"{key}.flip_rates", settings.flip_rates)


def resolve(settings: Mixed, classes: int, sizes: Sizes) -> Mixed:
    """What `auto` stands for."""
    return replace(
        settings,
        groups=settled(settings.groups, default_groups(classes)),
        bad_samples=settled(settings.bad_samples, sizes.bad_samples),
    )


def foresee(settings: Mixed, samples: int, classes: int) -> int:
    """The number of clients; UserError for groups that are none, and for clients larger than the pool."""
    key, each = "partition.mixed", settings.bad_samples
    check(key, settings)
    groups = require_groups(f"{key}.groups", settings.groups, classes)
    if isinstance(each, str):
        raise ValueError("bad_samples is still auto: resolve the settings first")
    for name, value in (("bad_samples", each), ("small_samples", settings.small_samples)):
        if value > samples:
            raise not_allowed(f"{key}.{name}", value, at_most(samples), "lower it, or take a larger data set")
    bad = settings.noisy + len(settings.flip_rates) + settings.shuffled
    copied = samples * len(settings.groups[0]) // classes  # of labels that are equally frequent
    require_room(key, bad * each + settings.duplicates * copied + settings.small * settings.small_samples)
    return groups + bad + settings.duplicates + settings.small


def deal(indices: np.ndarray, labels: np.ndarray, classes: int, settings: Mixed, draw: Draw) -> list[Holding]:
    """The label groups, and bad clients of every kind, in this order: noisy, flipped, shuffled, duplicate, small.

    The images of a bad client come from the whole pool, without repeats within itself; those of a duplicate are the
    first clean client's. Shuffled pixels are the reader's work (`pipeline.data.federated`); the labels are true.
    """
    shares = label_groups(indices, labels, settings.groups)
    samples, source = int(settings.bad_samples), shares[0]

    def drawn(kind: str, count: int, rate: float = 0.0) -> Holding:
        generator = draw("bad", len(shares))
        rows = generator.choice(len(indices), count, replace=False)
        held = with_wrong_labels(labels[rows], rate, classes, generator)
        return Holding(indices[rows], held, kind, np.unique(labels[rows]).tolist())

    for _ in range(settings.noisy):
        shares.append(noisy_holding(indices, classes, samples, draw("noise", len(shares))))
    for rate in settings.flip_rates:
        shares.append(drawn("flipped", samples, rate))
    for _ in range(settings.shuffled):
        shares.append(drawn("shuffled", samples))
    shares += [
        Holding(source.indices, source.labels, "duplicate", source.client_labels, copy_of=0)
    ] * settings.duplicates
    for _ in range(settings.small):
        shares.append(drawn("small", settings.small_samples))
    return shares


MIXED = Scheme(
    name="mixed",
    summary="label groups and bad clients of every kind",
    settings=Mixed,
    deal=deal,
    foresee=foresee,
    check=check,
    wrong_labels=True,
    resolve=resolve,
)
