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


def deal(indices: np.ndarray, labels: np.ndarray, classes: int, settings: Iid, draw: Draw) -> list[Holding]:
    """Equal random parts (sizes differ by one at most)."""
    require_samples("partition.iid.clients", settings.clients, len(indices))
    return [
        clean_holding(indices[part], labels[part]) for part in equal_parts(len(indices), settings.clients, draw("iid"))
    ]


IID = Scheme(
    name="iid",
    summary="equal random parts",
    settings=Iid,
    deal=deal,
    numbers=True,
)
