"""The coordinate median.

Source: Yin, Chen, Ramchandran and Bartlett, "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates"
(2018), Algorithm 1, option I.

    out_k = median over i of D_ik            the mean of the two in the middle where n is even

While fewer than half of the rows are bad, every coordinate lies between two honest ones. Where clients' data differ it
is not their mean, even if all are honest.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from pipeline.methods.consensus.robust.base import RobustRule


def median(rows: Tensor) -> Tensor:
    """[n, d] -> [d]; NaN counts as the largest number."""
    ordered, n = rows.sort(dim=0).values, len(rows)
    low, high = ordered[(n - 1) // 2], ordered[n // 2]
    return low + (high - low) / 2


def combine(rows: Tensor, shares: Tensor, settings: Any) -> Tensor:
    """The rule."""
    return median(rows)


MEDIAN = RobustRule(name="median", summary="the median of each coordinate", combine=combine)
