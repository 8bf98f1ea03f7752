"""Norm clipping: no client's change is longer than a bound.

Source: Sun, Kairouz, Suresh and McMahan, "Can You Really Backdoor Federated Learning?" (2019), whose bound M is
a number chosen beforehand. Here it is a multiple of the round's median norm, so it has no units and falls as training
does.

    out = sum_i c_i D_i min(1, M / ||D_i||) ,      M = factor median_i ||D_i||      the lower one where n is even

While at most half of the rows are bad, M is at most factor times an honest row's norm, and out is no longer than M. A
bad row of ordinary length counts in full: clipping bounds size, not direction. A large factor is the mean.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pipeline.config.spec import Section, param
from pipeline.methods.consensus.robust.base import RobustRule


@dataclass(frozen=True)
class Clipped(Section):
    """How long a change may be."""

    factor: float = param(
        1.0, "longest change of a client, in units of the round's median norm; large = the mean", gt=0
    )


def clipped(rows: Tensor, shares: Tensor, factor: float) -> Tensor:
    """rows [n, d], shares [n] -> [d]."""
    norms = torch.linalg.vector_norm(rows, dim=1)
    bound = factor * norms.sort().values[(len(norms) - 1) // 2]
    return (shares * torch.where(norms > bound, bound / norms, torch.ones_like(norms))) @ rows


def combine(rows: Tensor, shares: Tensor, settings: Clipped) -> Tensor:
    """The rule."""
    return clipped(rows, shares, settings.factor)


CLIPPED = RobustRule(
    name="clipped",
    summary="the mean of changes shortened to a multiple of their median norm",
    settings=Clipped,
    combine=combine,
    weighted=True,
)
