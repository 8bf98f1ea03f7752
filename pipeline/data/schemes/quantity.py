"""All labels everywhere, sizes from a power law."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipeline.config.spec import Section, param
from pipeline.data.holdings import Draw, Holding, at_most, clean_holding
from pipeline.data.schemes.base import Scheme, require_samples
from pipeline.errors import not_allowed


@dataclass(frozen=True)
class Quantity(Section):
    """All labels everywhere, but sizes from a power law."""

    clients: int = param(10, "number of clients", ge=1, symbol="N")
    exponent: float = param(1.5, "client i holds a share proportional to (i+1)^-exponent", ge=0)
    min_samples: int = param(10, "no client holds fewer", ge=1)


def foresee(settings: Quantity, samples: int, classes: int) -> int:
    """The number of clients; UserError for more than there are samples."""
    require_samples("partition.quantity.clients", settings.clients, samples)
    if settings.clients * settings.min_samples > samples:
        raise not_allowed(
            "partition.quantity.min_samples",
            settings.min_samples,
            f"{at_most(samples // settings.clients)} for {settings.clients} clients",
            "lower it, or partition.quantity.clients",
        )
    return settings.clients


def deal(indices: np.ndarray, labels: np.ndarray, classes: int, settings: Quantity, draw: Draw) -> list[Holding]:
    """Random parts of sizes proportional to (i+1)^-exponent, but none below min_samples."""
    sizes = power_law_sizes(len(indices), settings.clients, settings.exponent, settings.min_samples)
    parts = np.split(draw("quantity").permutation(len(indices)), np.cumsum(sizes)[:-1])
    return [clean_holding(indices[part], labels[part]) for part in parts]


def power_law_sizes(total: int, clients: int, exponent: float, least: int) -> np.ndarray:
    """[clients] int64 with sum `total`: client i in proportion to (i+1)^-exponent; a client that would fall below
    `least` gets `least`, and the others share the rest in the same proportions.

    Needs clients * least <= total.
    """
    share = np.arange(1, clients + 1, dtype=np.float64) ** -exponent
    above = clients  # clients 0..above-1 hold more than `least`: shares fall with i
    while above > 1 and (total - (clients - above) * least) * share[above - 1] < least * share[:above].sum():
        above -= 1
    sizes = np.full(clients, least, dtype=np.int64)
    exact = (total - (clients - above) * least) * (share[:above] / share[:above].sum())
    sizes[:above] = np.maximum(np.floor(exact), least)
    rest = total - int(sizes.sum())  # fewer than `above`: one each to the largest fractions
    sizes[np.argsort(np.floor(exact) - exact, kind="stable")[:rest]] += 1
    return sizes


QUANTITY = Scheme(
    name="quantity",
    summary="sizes from a power law",
    settings=Quantity,
    deal=deal,
    foresee=foresee,
)
