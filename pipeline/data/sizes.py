"""Sizes that `auto` stands for where they depend on how much data there is."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

from pipeline.errors import UserError


@dataclass(frozen=True)
class Sizes:
    """What `auto` stands for where it depends on how much data there is."""

    validation_per_label: int
    selection_per_label: int
    bad_samples: int  # of each noisy client, under `lead` and `mixed`
    batch_size: int
    cleaning_samples: int  # of each client, under `cleaning`
    cleaning_validation: int
    imbalance: float  # under `longtail`


SMALL = Sizes(10, 5, 100, 32, 100, 10, 0.1)
LARGE = Sizes(20, 20, 5000, 64, 4500, 50, 0.01)
FEW_SHOT = replace(LARGE, validation_per_label=0, selection_per_label=0, bad_samples=0)
LARGE_FROM = 10_000


def sizes(images: int, few_shot: bool = False) -> Sizes:
    """The lead protocol's sizes for that many training images (design and section 4.2 of the lead specification). Where
    the test has other classes the server holds nothing and no client is bad, whatever the number of images."""
    if few_shot:
        return FEW_SHOT
    return LARGE if images >= LARGE_FROM else SMALL


CLIENT_VALIDATION = 0.2
"""Share of a client's samples in its own validation part, where the upper level lies there."""


def require_memory(what: str, needed: float, fix: str) -> None:
    """UserError for what cannot be held in memory, before anything is allocated. needed: bytes, at least."""
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > there:
        raise UserError(
            f"{what} would take {needed / 1e9:,.1f} GB, and this machine has {there / 1e9:,.1f}. Fix: {fix}."
        )
