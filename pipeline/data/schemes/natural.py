"""Clients as they are, under their own names: of data that come with clients.

Nothing is dealt: every client keeps what the server's sets leave of its rows. Which clients are bad is known only if
`data.bad` names them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.config.spec import Section
from pipeline.data.holdings import Draw, Holding, held_labels
from pipeline.data.schemes.base import Scheme
from pipeline.errors import UserError, not_allowed

UNKNOWN = "unknown"
"""Kind of a client of which nothing is known."""


@dataclass(frozen=True)
class Natural(Section):
    """Clients as they are."""


def deal(indices: np.ndarray, labels: np.ndarray, classes: int, settings: Natural, draw: Draw) -> list[Holding]:
    raise UserError(
        "partition.scheme: natural does not go with data that have no clients of their own. Fix: partition.scheme:"
        " auto; or, for a table, name the column in data.client."
    )


def holdings(
    indices: np.ndarray, labels: np.ndarray, owners: np.ndarray, names: Sequence[str], bad: Sequence[str]
) -> list[Holding]:
    """A holding per client. indices, labels, owners: of the rows that are left to clients, [P]; names: of all N."""
    strangers = [name for name in bad if name not in names]
    if strangers:
        known = ", ".join(map(repr, names[:20])) + (" ..." if len(names) > 20 else "")
        raise not_allowed("data.bad", list(bad), f"names of clients, which are {known}", f"remove {strangers[0]!r}")
    order = np.argsort(owners, kind="stable")
    parts = np.split(order, np.cumsum(np.bincount(owners, minlength=len(names)))[:-1])
    kinds = [("noisy" if name in bad else "clean") if bad else UNKNOWN for name in names]
    return [
        Holding(indices[rows], labels[rows], kind, held_labels(labels[rows]))
        for rows, kind in zip(parts, kinds, strict=True)
    ]


NATURAL = Scheme(
    name="natural",
    summary="clients as they are, under their own names",
    settings=Natural,
    deal=deal,
    numbers=True,
)
