"""What a site does to its answers before they leave it: clipping and Gaussian noise, and the account of it.

    released  =  a min(1, C / ||a||)  +  N(0, (noise C)^2 I)        each client's row a of each answer

Whatever the client's data are, its clipped rows differ by at most 2 C, so a release is a Gaussian mechanism whose noise
is noise / 2 times its sensitivity: for one sample more, less or changed, and for all of them. Each release counts
whole: nothing is claimed for the drawing of minibatches, since the server knows the stream they are drawn from. Rényi
accounting is Opacus's (Yousefpour et al., 2021). The account is a file at the site; it is written before an answer
leaves, and is kept over runs, since it is the data that it belongs to.
"""

from __future__ import annotations

import json
import math
import os
import secrets
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from pipeline.errors import UserError


class BudgetSpent(Exception):
    """One more answer would take the site beyond its limit."""


@dataclass
class Privacy:
    """clip: C, of vectors. clip_numbers: of answers that are a number per client. noise: in units of C; 0 = none.
    delta, limit: of the (epsilon, delta) guarantee; the site answers no more when the limit is reached. account: the
    file; None = of this process only."""

    clip: float
    noise: float = 0.0
    clip_numbers: float = 1.0
    delta: float = 1e-5
    limit: float | None = None
    account: Path | None = None
    releases: int = 0
    _generator: torch.Generator = field(default_factory=lambda: torch.Generator().manual_seed(secrets.randbits(63)))

    def __post_init__(self) -> None:
        if self.noise:
            _accountant()  # so that what is missing is said before work starts
        if self.account and self.account.is_file():
            kept = json.loads(self.account.read_text())
            if kept["noise"] != self.noise:
                raise UserError(
                    f"privacy.noise = {self.noise}: the account {self.account} was begun with {kept['noise']}. Fix:"
                    " that value, or another account, if the data are others."
                )
            self.releases = int(kept["releases"])

    def release(self, rows: Tensor) -> Tensor:
        """rows [n, d], or numbers [n], of a client each. Raises BudgetSpent."""
        if self.limit is not None and self.epsilon(self.releases + 1) > self.limit:
            raise BudgetSpent(f"its privacy budget is spent: epsilon {self.epsilon():.3g} of {self.limit:.3g}")
        self.releases += 1
        self._note()
        bound = self.clip if rows.dim() > 1 else self.clip_numbers
        flat = rows.reshape(len(rows), -1)
        norms = torch.linalg.vector_norm(flat, dim=1, keepdim=True)
        clipped = flat * (bound / norms.clamp_min(bound))
        if self.noise:
            drawn = torch.randn(clipped.shape, generator=self._generator, dtype=torch.float64)
            clipped = clipped + (self.noise * bound * drawn).to(clipped)
        return clipped.view_as(rows)

    def epsilon(self, releases: int | None = None) -> float:
        """Spent so far, or after that many releases."""
        count = self.releases if releases is None else releases
        if not count:
            return 0.0
        if not self.noise:
            return math.inf
        accountant = _accountant()()
        accountant.history = [(self.noise / 2, 1.0, count)]
        return float(accountant.get_epsilon(self.delta))

    def spent(self) -> dict[str, float | None]:
        """For the server's record; epsilon None = no guarantee, since there is no noise."""
        epsilon = self.epsilon()
        return {"epsilon": epsilon if math.isfinite(epsilon) else None, "delta": self.delta, "releases": self.releases}

    def _note(self) -> None:
        if self.account:
            partial = self.account.with_suffix(".partial")
            partial.write_text(json.dumps({"noise": self.noise, "releases": self.releases}))
            os.replace(partial, self.account)


def _accountant() -> type:
    try:
        from opacus.accountants import RDPAccountant
    except ImportError:
        raise UserError(
            "privacy.noise needs Opacus's accountant. Fix: pip install 'fedbilevel[federation]', or noise: 0."
        ) from None
    return RDPAccountant
