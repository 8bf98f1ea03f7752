"""Equal random parts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipeline.config.spec import Section, param
from pipeline.data.holdings import Draw, Holding, clean_holding
from pipeline.data.schemes.base import Scheme, equal_parts, require_samples


@dataclass(frozen=True)
class Iid(Section):
    """Equal random parts."""

    clients: int = param(10, "number of clients", ge=1, symbol="N")


def foresee(settings: Iid, samples: int, classes: int) -> int:
    """The number of clients; UserError for more than there are samples."""
    return require_samples("partition.iid.clients", settings.clients, samples)


def deal(indices: np.ndarray, labels: np.ndarray, classes: int, settings: Iid, draw: Draw) -> list[Holding]:
    """Equal random parts (sizes differ by one at most)."""
    return [
        clean_holding(indices[part], labels[part]) for part in equal_parts(len(indices), settings.clients, draw("iid"))
    ]


IID = Scheme(
    name="iid",
    summary="equal random parts",
    settings=Iid,
    deal=deal,
    foresee=foresee,
    numbers=True,
)
