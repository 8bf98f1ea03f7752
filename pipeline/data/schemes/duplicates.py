"""The label groups of `lead`, and exact copies of one clean client."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from pipeline.config.spec import Auto, Section, param
from pipeline.data.holdings import Draw, Holding
from pipeline.data.schemes.base import Scheme, default_groups, label_groups, settled
from pipeline.data.sizes import Sizes
from pipeline.errors import not_allowed


@dataclass(frozen=True)
class Duplicates(Section):
    """The label groups of `lead`, and clients that hold an exact copy of one clean client's samples."""

    groups: list[list[int]] | Auto = param("auto", "labels of each clean client, as in `lead`")
    copies: int = param(3, "how many copies", ge=0)
    source: int = param(0, "the clean client that is copied", ge=0)


def resolve(settings: Duplicates, classes: int, sizes: Sizes) -> Duplicates:
    """What `auto` stands for."""
    return replace(settings, groups=settled(settings.groups, default_groups(classes)))


def deal(indices: np.ndarray, labels: np.ndarray, classes: int, settings: Duplicates, draw: Draw) -> list[Holding]:
    """The label groups, and clients that hold an exact copy of one of them."""
    clean = label_groups(indices, labels, classes, settings.groups, "partition.duplicates.groups")
    if not 0 <= settings.source < len(clean):
        raise not_allowed(
            "partition.duplicates.source",
            settings.source,
            f"the number of a clean client, 0 to {len(clean) - 1}",
            "partition.duplicates.source: 0",
        )
    source = clean[settings.source]
    copy = Holding(source.indices, source.labels, "duplicate", source.client_labels, copy_of=settings.source)
    return clean + [copy] * settings.copies


DUPLICATES = Scheme(
    name="duplicates",
    summary="label groups and copies of one of them",
    settings=Duplicates,
    deal=deal,
    resolve=resolve,
)
