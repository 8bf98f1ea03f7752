"""The label groups of `lead`, and exact copies of one clean client."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from pipeline.config.spec import Auto, Section, param
from pipeline.data.holdings import Draw, Holding
from pipeline.data.schemes.base import (
    MOST_CLIENTS,
    Scheme,
    default_groups,
    label_groups,
    require_groups,
    require_room,
    settled,
)
from pipeline.data.sizes import Sizes
from pipeline.errors import not_allowed


@dataclass(frozen=True)
class Duplicates(Section):
    """The label groups of `lead`, and clients that hold an exact copy of one clean client's samples."""

    groups: list[list[int]] | Auto = param("auto", "labels of each clean client, as in `lead`")
    copies: int = param(3, "how many copies", ge=0, le=MOST_CLIENTS)
    source: int = param(0, "the clean client that is copied", ge=0)


def resolve(settings: Duplicates, classes: int, sizes: Sizes) -> Duplicates:
    """What `auto` stands for."""
    return replace(settings, groups=settled(settings.groups, default_groups(classes)))


def foresee(settings: Duplicates, samples: int, classes: int) -> int:
    """The number of clients; UserError for groups that are none, and a source that is none of them."""
    groups = require_groups("partition.duplicates.groups", settings.groups, classes)
    if not 0 <= settings.source < groups:
        raise not_allowed(
            "partition.duplicates.source",
            settings.source,
            f"the number of a clean client, 0 to {groups - 1}",
            "partition.duplicates.source: 0",
        )
    # Of labels that are equally frequent.
    held = samples * len(settings.groups[settings.source]) // classes
    require_room(f"partition.duplicates.copies = {settings.copies}", settings.copies * held)
    return groups + settings.copies


def deal(indices: np.ndarray, labels: np.ndarray, classes: int, settings: Duplicates, draw: Draw) -> list[Holding]:
    """The label groups, and clients that hold an exact copy of one of them."""
    clean = label_groups(indices, labels, settings.groups)
    source = clean[settings.source]
    copy = Holding(source.indices, source.labels, "duplicate", source.client_labels, copy_of=settings.source)
    return clean + [copy] * settings.copies


DUPLICATES = Scheme(
    name="duplicates",
    summary="label groups and copies of one of them",
    settings=Duplicates,
    deal=deal,
    foresee=foresee,
    resolve=resolve,
)
