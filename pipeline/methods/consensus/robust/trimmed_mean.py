"""The coordinate-wise trimmed mean.

Source: Yin, Chen, Ramchandran and Bartlett, "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates"
(2018), Algorithm 1, option II.

    out_k = mean over i of D_ik, without the b largest and the b smallest,    b = share n, rounded up

Up to b bad rows move a coordinate no further than the honest ones reach. share = 0 is the mean. A round too small for b
keeps one or two.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from pipeline.config.spec import Section, param
from pipeline.methods.consensus.robust.base import FEWEST, RobustRule, count


@dataclass(frozen=True)
class TrimmedMean(Section):
    """How much is left out."""

    share: float = param(
        0.2, "share of the clients left out at each end, per coordinate; 0 = the mean", ge=0, lt=0.5, symbol="beta"
    )


def trimmed_mean(rows: Tensor, share: float) -> Tensor:
    """[n, d] -> [d]; NaN counts as the largest number."""
    n = len(rows)
    cut = min(count(share, n), (n - 1) // 2)
    return rows.sort(dim=0).values[cut : n - cut].mean(0)


def combine(rows: Tensor, shares: Tensor, settings: TrimmedMean) -> Tensor:
    """The rule."""
    return trimmed_mean(rows, settings.share)


def needs(settings: Any, clients: int) -> int:
    """One to keep, beside those left out."""
    return max(FEWEST, 2 * count(settings.share, clients) + 1)


TRIMMED_MEAN = RobustRule(
    name="trimmed_mean",
    summary="the mean of each coordinate without the largest and the smallest",
    settings=TrimmedMean,
    combine=combine,
    needs=needs,
    fix="a smaller robust.trimmed_mean.share",
)
