"""The lead paper's protocol: label groups to clean clients, plus clients whose labels are pure noise."""

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
    require_room,
    settled,
)
from pipeline.data.sizes import Sizes
from pipeline.errors import not_allowed


@dataclass(frozen=True)
class Lead(Section):
    """The lead paper's protocol: label groups to clean clients, plus clients whose labels are pure noise."""

    groups: list[list[int]] | Auto = param(
        "auto",
        "labels of each clean client; auto = the first half, the next three tenths and the last fifth of the"
        " labels, which is [[0,1,2,3,4],[5,6,7],[8,9]] for ten classes",
    )
    noise_clients: int = param(7, "clients with uniformly random labels", ge=0, le=MOST_CLIENTS)
    noise_samples: PositiveInt | Auto = param(
        "auto", "samples of each noise client; auto = 100 below 10,000 training images, else 5000"
    )


def resolve(settings: Lead, classes: int, sizes: Sizes) -> Lead:
    """What `auto` stands for."""
    return replace(
        settings,
        groups=settled(settings.groups, default_groups(classes)),
        noise_samples=settled(settings.noise_samples, sizes.bad_samples),
    )


def foresee(settings: Lead, samples: int, classes: int) -> int:
    """The number of clients; UserError for groups that are none and for noise clients larger than the pool."""
    groups = require_groups("partition.lead.groups", settings.groups, classes)
    noise = settings.noise_samples
    if isinstance(noise, str):
        raise ValueError("noise_samples is still auto: resolve the settings first")
    if settings.noise_clients and noise > samples:
        raise not_allowed(
            "partition.lead.noise_samples",
            noise,
            at_most(samples),
            "lower it, or take a larger data set",
        )
    require_room(f"partition.lead.noise_clients = {settings.noise_clients}", settings.noise_clients * noise)
    return groups + settings.noise_clients


def deal(indices: np.ndarray, labels: np.ndarray, classes: int, settings: Lead, draw: Draw) -> list[Holding]:
    """The lead protocol: each group of labels to one clean client, and clients whose labels are noise.

    A noise client draws images from the whole pool, without repeats within itself, and labels uniformly.
    """
    clean, samples = label_groups(indices, labels, settings.groups), int(settings.noise_samples)
    clients = range(len(clean), len(clean) + settings.noise_clients)
    return clean + [noisy_holding(indices, classes, samples, draw("noise", client)) for client in clients]


LEAD = Scheme(
    name="lead",
    summary="label groups and noise clients",
    settings=Lead,
    deal=deal,
    foresee=foresee,
    wrong_labels=True,
    resolve=resolve,
)
