"""The partition schemes, a file each; `SCHEMES` holds all of them by name.

A new one is a file and a line here.
"""

from __future__ import annotations

from pipeline.config.own_code import registered
from pipeline.data.schemes.base import Scheme

SCHEMES: dict[str, Scheme] = registered(
    __name__,
    "lead.LEAD",
    "iid.IID",
    "shards.SHARDS",
    "dirichlet.DIRICHLET",
    "quantity.QUANTITY",
    "duplicates.DUPLICATES",
    "label_noise.LABEL_NOISE",
    "mixed.MIXED",
    "cleaning.CLEANING",
    "longtail.LONGTAIL",
    "balanced.BALANCED",
    "powerlaw.POWERLAW",
    "few_shot.FEW_SHOT",
    "natural.NATURAL",
)

__all__ = ["SCHEMES", "Scheme"]
