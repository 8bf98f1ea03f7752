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
    """UserError for a share of wrong labels that is none."""
    require_rates(f"{key}.rates", settings.rates)


def deal(indices: np.ndarray, labels: np.ndarray, classes: int, settings: LabelNoise, draw: Draw) -> list[Holding]:
    """Equal random parts; round(rate n) labels of a client become another one, uniformly among the others."""
    rates, key = settings.rates, "partition.label_noise.rates"
    if not rates:
        raise not_allowed(key, rates, "a list of one number in [0, 1] per client", f"{key}: [0.0, 0.2, 0.4]")
    require_rates(key, rates)
    require_samples(f"length of {key}", len(rates), len(indices))
    shares = []
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
    check=check,
    wrong_labels=True,
)
