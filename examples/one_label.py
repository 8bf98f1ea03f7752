"""A custom partition scheme: a client for every label, holding all samples of that label and no others.

In params.yaml:

    partition:
      scheme: examples.one_label.ONE_LABEL
      one_label:
        share: 0.5
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipeline.config.spec import Section, param
from pipeline.data.holdings import Draw, Holding, clean_holding
from pipeline.data.schemes import Scheme


@dataclass(frozen=True)
class OneLabel(Section):
    """Its settings."""

    share: float = param(1.0, "share of each label's samples that is dealt, at random", gt=0, le=1)


def deal(indices: np.ndarray, labels: np.ndarray, classes: int, settings: OneLabel, draw: Draw) -> list[Holding]:
    """indices, labels: of the pool, [P]. Returns what each client holds."""
    holdings = []
    for label in range(classes):
        rows = draw("one-label", label).permutation(np.flatnonzero(labels == label))
        kept = rows[: max(1, round(settings.share * len(rows)))]
        holdings.append(clean_holding(indices[kept], labels[kept]))
    return holdings


ONE_LABEL = Scheme(name="one_label", summary="a client for every label", settings=OneLabel, deal=deal)
