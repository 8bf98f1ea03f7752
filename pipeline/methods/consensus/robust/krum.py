"""Krum: the change that lies closest to most others.

Source: Blanchard, El Mhamdi, Guerraoui and Stainer, "Machine Learning with Adversaries: Byzantine Tolerant Gradient
Descent" (2017); several kept: their Multi-Krum.

    score_i = sum of ||D_i - D_j||^2 over the n - f - 2 rows j closest to i
    out     = mean of the `keep` rows of smallest score            keep = 1: Krum; keep >= n: the mean

It bears f bad rows where n >= 2 f + 3. f = bad n, rounded up; a round that is too small for it takes the largest f it
bears. Of equal scores the client that comes first wins. Where clients' data differ Krum follows one client's in each
round.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pipeline.config.spec import Section, param
from pipeline.methods.consensus.robust.base import RobustRule, count


@dataclass(frozen=True)
class Krum(Section):
    """How many may be bad, and how many are kept."""

    bad: float = param(0.2, "share of the active clients that may be bad", ge=0, lt=0.5, symbol="f/n")
    keep: int = param(1, "changes that are averaged; 1 = Krum, more = Multi-Krum", ge=1, symbol="m")


def scores(rows: Tensor, bad: int) -> Tensor:
    """rows [n, d], f -> [n]; smaller = closer to the others."""
    # Not by inner products: of changes that have much in common they would leave nothing of the differences.
    distances = torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist").square()
    return distances.sort(dim=1).values[:, 1 : len(rows) - bad - 1].sum(1)  # the first is the row itself


def krum(rows: Tensor, bad: int, keep: int = 1) -> Tensor:
    """rows [n, d] with n >= 3 -> [d]; bad: f, lowered to what n bears."""
    n = len(rows)
    order = scores(rows, min(bad, (n - 3) // 2)).argsort(stable=True)
    return rows[order[:keep]].mean(0)


def combine(rows: Tensor, shares: Tensor, settings: Krum) -> Tensor:
    """The rule."""
    return krum(rows, count(settings.bad, len(rows)), settings.keep)


def needs(settings: Any, clients: int) -> int:
    """2 f + 3."""
    return 2 * count(settings.bad, clients) + 3


KRUM = RobustRule(
    name="krum",
    summary="the change that lies closest to most others",
    settings=Krum,
    combine=combine,
    needs=needs,
    fix="a smaller robust.krum.bad",
)
