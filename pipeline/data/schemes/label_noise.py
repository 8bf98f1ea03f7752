"""Equal random parts, wrong labels at a rate per client."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipeline.config.spec import Section, param
from pipeline.data.holdings import Draw, Holding
from pipeline.data.schemes.base import Scheme, equal_parts, require_rates, require_samples, with_wrong_labels
from pipeline.errors import not_allowed


@dataclass(frozen=True)
class LabelNoise(Section):
    """Equal random parts; client i's labels are replaced, at its own rate, by another label at random."""

    rates: list[float] = param(
        [0.0, 0.0, 0.0, 0.2, 0.2, 0.4, 0.4, 0.6, 0.8, 1.0],
        "share of wrong labels per client, each in [0, 1]; as many clients as rates",
    )


def check(key: str, settings: LabelNoise) -> None:
    """UserError for shares of wrong labels that are none."""
    if not settings.rates:
        raise not_allowed(
            f"{key}.rates", [], "a list of one number in [0, 1] per client", f"{key}.rates: [0.0, 0.2, 0.4]"
        )
    require_rates(f"{key}.rates", settings.rates)


def foresee(settings: LabelNoise, samples: int, classes: int) -> int:
    """The number of clients; UserError for more than there are samples."""
    check("partition.label_noise", settings)
    return require_samples("length of partition.label_noise.rates", len(settings.rates), samples)


def deal(indices: np.ndarray, labels: np.ndarray, classes: int, settings: LabelNoise, draw: Draw) -> list[Holding]:
    """Equal random parts; round(rate n) labels of a client become another one, uniformly among the others."""
    rates, shares = settings.rates, []
    parts = equal_parts(len(indices), len(rates), draw("iid"))
    for client, (rate, part) in enumerate(zip(rates, parts, strict=True)):
        held = with_wrong_labels(labels[part], rate, classes, draw("label-noise", client))
        kind = "flipped" if rate else "clean"
        shares.append(Holding(indices[part], held, kind, np.unique(labels[part]).tolist()))
    return shares


LABEL_NOISE = Scheme(
    name="label_noise",
    summary="wrong labels at a rate per client",
    settings=LabelNoise,
    deal=deal,
    foresee=foresee,
    check=check,
    wrong_labels=True,
)
