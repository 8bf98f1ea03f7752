"""A robust rule: how the server combines the clients' changes so that a few bad clients cannot steer the result.

A rule is a pure function of the rows of a round's n active clients, theta_i - theta, and of their shares in a mean:

    combine(rows [n, d], shares [n], settings) -> [d]
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from pipeline.config.spec import Section
from pipeline.errors import UserError

FEWEST = 3
"""Active clients needed before one of them can be set apart. Fewer have their mean."""


@dataclass(frozen=True)
class NoSettings(Section):
    """A rule without settings."""


def three(settings: Any, clients: int) -> int:
    """What most rules need."""
    return FEWEST


@dataclass(frozen=True, kw_only=True)
class RobustRule:
    """A robust rule.

    name: in params.yaml. summary: what it is, in a line. settings: the record of its section, `robust.<name>`.
    weighted: it heeds the clients' shares; otherwise every client counts once, since a client states its number of
    samples itself. needs(settings, n): how many active clients it needs where a round has about n. fix: a hint for runs
    with fewer.
    """

    name: str
    summary: str
    combine: Callable[[Tensor, Tensor, Any], Tensor]
    settings: type[Any] = NoSettings
    weighted: bool = False
    needs: Callable[[Any, int], int] = three
    fix: str = "robust.rule: mean"


@dataclass(frozen=True)
class Chosen:
    """A rule with its settings."""

    rule: RobustRule
    settings: Any

    def __call__(self, rows: Tensor, shares: Tensor) -> Tensor:
        """The sum of the changes, rows [n, d] with shares [n], -> [d]. Fewer than three clients have their mean."""
        if len(rows) < FEWEST:
            return shares @ rows
        return self.rule.combine(rows, shares, self.settings)

    def require(self, clients: int) -> None:
        """UserError if rounds of about that many active clients are too small for the rule."""
        needed = self.rule.needs(self.settings, clients)
        if clients < needed:
            raise UserError(
                f"robust.rule = {self.rule.name!r} needs at least {needed} active clients in a round, and a round has"
                f" about {clients}. Fix: more clients, a larger federation.participation, or {self.rule.fix}."
            )


def count(share: float, clients: int) -> int:
    """At least that share of the clients, as a whole number."""
    return math.ceil(share * clients - 1e-9)
