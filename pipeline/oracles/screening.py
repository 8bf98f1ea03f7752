"""Which answers of clients count: those that are finite and in proportion.

Every answer of a client (a gradient, a product, its local model's change) has a size: its Euclidean norm, of a product
D2 v divided by ||v||. With R the reference of its kind, the largest median that the sizes of one step's answers have
had so far in the run (of clients without a bad answer), an answer is left out if it is not a finite number or if

    size > factor * max( R , median of this step's sizes )

The rule has no units and no absolute number in it: multiplying all losses by a constant changes nothing. The median is
a client's, so fewer than half of the clients cannot move R; that R never falls lets honest clients stay large when the
others have been fitted. Where the reference is 0 nothing is out of proportion.

How large honest answers get (2026-11-23): in 8 rounds of every method on digits with the lead partition, participation
1 and 0.5, and in 100 rounds of primal_dual, simfbo and fedavg on 15 federations of `experiments/trust`, whose bad
clients have random, flipped or shuffled data, the largest gradient was 6.1 times the reference, the largest product 4.8
times and the largest change 4.8 times. `screening.factor` is 100. A client with pixels of 0 to 255 among clients with
pixels of 0 to 1 has gradients 255 times as large and more.

A client whose answer is left out is treated as absent: the step is taken again without it (`LeftOut`), so that every
estimator is what it is under partial participation. Steps are pure functions of (seed, round, client), so the others
answer as before. The client is asked again in the next round. Each further bad answer doubles the rounds it rests, up
to 64, and halves the factor it is judged by, down to 5: a client with pixels of 0 to 255 has small gradients too, on
images that a saturated network happens to get right. After 128 rounds without a bad answer it is as the others. Its
weight, where weights are learned, neither gains nor loses (`neutral`); where every client has a lower variable of its
own, the others' mean is tested and served in place of its own, which its data have never or wrongly trained.

Where all answers of a step are not finite, it is the model that has diverged, and no client is blamed.

Sums that are formed without the clients' own rows (the fused passes at a shared model) are judged in two steps. A sum
longer than 3 R times the sum of its coefficients, one that is not finite, the first round, and every 200th make the
oracle look at each client singly, and every step at those that have given a bad answer; nothing else costs more than
the norm of the sum. So a bad answer that counts for more than a few honest ones is seen at once, and a smaller one at
the next look.

What is watched stays on its device; `judge` moves the sizes of a step to the host in one transfer, before anything of
the step is remembered.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pipeline.errors import UserError
from pipeline.sharing import Share

KINDS = ("gradient", "upper gradient", "product", "cross product", "change")
ANYWHERE = "cross product"
"""Judged by being finite alone: D2xy g v is as long as v's angle to it allows, so that the median may be next to 0."""
LOOK_EVERY = 200
LOOK_AT = 3.0
"""A sum longer than this many reference answers is looked into."""
LONGEST_REST = 64
LEAST = 5.0
"""The factor that no client's falls below."""
WINDOW = 100
"""Rounds over which bad rounds are counted."""


class LeftOut(Exception):
    """Some clients' answers do not count: the step is to be taken again, and `Screen.present` leaves them out."""


class NoAnswers(Exception):
    """No active client is left in this step."""


class BadAnswers(UserError):
    """Too many rounds were without most of their clients."""


class Drawn(NamedTuple):
    """A minibatch and whose it is: ids [n]."""

    clients: Tensor
    batch: Any


@dataclass
class _Strikes:
    """Of one client: how many, when the last one was, and the rest that follows it, from (round, inner) to a round."""

    count: int = 0
    at: tuple[int, int] = (0, 0)
    until: int = 0


@dataclass
class Screen:
    """The judgement of one run. factor, bad_rounds: of the section `screening`. names: of the clients, for people.
    share: this process among those of the run. notice: receives a line when a client is left out for the first time.
    """

    factor: float
    bad_rounds: float
    clients: int
    names: Sequence[str] | None = None
    share: Share = field(default_factory=Share)
    notice: Callable[[str], None] = lambda line: None
    reference: dict[str, float] = field(default_factory=dict)
    strikes: dict[int, _Strikes] = field(default_factory=dict)
    rounds_left_out: dict[int, int] = field(default_factory=dict)
    left_out: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.now = (0, 0)
        self._watched: list[tuple[str, Tensor, Tensor]] = []
        self._missing: set[int] = set()
        self._asked = 0
        self._recent: deque[bool] = deque(maxlen=WINDOW)

    # ----------------------------------------------------------------------------------------- in the course of a step

    def begin(self, round_: int, inner: int) -> None:
        """A step starts, or starts again."""
        self.now = (round_, inner)
        self._watched.clear()

    def present(self, active: Tensor, at: tuple[int, int]) -> Tensor:
        """Those of the active clients [n], on the host, that are not left out at (round, inner). Raises NoAnswers."""
        if at == self.now:
            self._asked = max(self._asked, len(active))
        gone = [i for i, s in self.strikes.items() if s.at <= at and at[0] < s.until]
        if not gone:
            return active
        out = torch.isin(active, torch.tensor(gone))
        if at == self.now:
            self._missing.update(active[out].tolist())
        if out.all():
            raise NoAnswers
        return active[~out]

    def watch(self, kind: str, clients: Tensor, sizes: Tensor) -> None:
        """Answers that came in. kind: of `KINDS`; clients: ids [n]; sizes: [n]. Nothing leaves the device."""
        if len(sizes):
            self._watched.append((kind, clients, sizes.detach()))

    def judge(self) -> None:
        """Look at what was watched since the last judgement. Raises LeftOut."""
        if self.share.ranks == 1 and not self._watched:
            return
        bad: dict[int, str] = {}
        for kind, ids, sizes in self._gathered():
            for i, size in self._outside(kind, ids, sizes):
                bad.setdefault(i, f"{kind} is {size:.3g}")
        if bad:
            for i, what in bad.items():
                self._strike(i, what)
            raise LeftOut

    def looks(self, size: float, coefficients: float, kind: str) -> bool:
        """Whether to look at each of the clients of a sum. size: of the sum; coefficients: of its terms, summed."""
        due = self.now[0] == 1 or self.now[0] % LOOK_EVERY == 0
        limit = LOOK_AT * self.reference.get(kind, 0.0) * coefficients
        return due or not np.isfinite(size) or size > limit > 0

    def suspects(self, clients: Tensor) -> Tensor | None:
        """Positions among the clients [n] of those that are not forgiven yet, and are looked at singly in every step;
        None if there are none."""
        known = [i for i in self.strikes if not self._forgiven(i)]
        if not known:
            return None
        found = torch.isin(clients.cpu(), torch.tensor(known)).nonzero()[:, 0]
        return found.to(clients.device) if len(found) else None

    def neutral(self, values: Tensor, after: int | None = None) -> Tensor:
        """A number or a row per client, [N] or [N, d], where those left out have the mean of the others: they then
        neither gain nor lose. after: that many rounds; None = in this step."""
        now = self.now if after is None else (after, sys.maxsize)
        gone = [i for i, s in self.strikes.items() if s.at <= now and now[0] < s.until]
        if not gone or len(gone) == len(values):
            return values
        out = torch.zeros(len(values), dtype=torch.bool)
        out[gone] = True
        out = out.to(values.device)
        return torch.where(out.view(-1, *[1] * (values.dim() - 1)), values[~out].mean(0), values)

    def close(self) -> None:
        """A round ends. Raises BadAnswers if too many have been without at least half of their clients."""
        self.left_out = sorted(self._missing)
        for i in self.left_out:
            self.rounds_left_out[i] = self.rounds_left_out.get(i, 0) + 1
        self._recent.append(2 * len(self._missing) >= self._asked > 0)
        share = sum(self._recent) / len(self._recent)
        if len(self._recent) >= 10 and share > self.bad_rounds:
            raise BadAnswers(
                f"round {self.now[0]}: {sum(self._recent)} of the last {len(self._recent)} rounds were without at least"
                f" half of their clients, whose answers are not finite or out of all proportion:"
                f" {self.named(self.left_out)}. Fix: look at their data, or screening.bad_rounds: 1, which goes on."
            )
        self._missing, self._asked = set(), 0

    # ------------------------------------------------------------------------------------------------ for people, saves

    def named(self, clients: Sequence[int], most: int = 10) -> str:
        """Their names, or numbers where they have none."""
        shown = [self.names[i] if self.names else str(i) for i in clients[:most]]
        more = f" and {len(clients) - most} more" if len(clients) > most else ""
        return ("client " if len(clients) == 1 else "clients ") + ", ".join(shown) + more

    @property
    def by_name(self) -> dict[str, int]:
        """In how many rounds the answers of each client were left out, of those of whom any were."""
        return {(self.names[i] if self.names else str(i)): n for i, n in sorted(self.rounds_left_out.items())}

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs to judge alike."""
        return {
            "reference": dict(self.reference),
            "strikes": {i: [s.count, *s.at, s.until] for i, s in self.strikes.items()},
            "rounds_left_out": dict(self.rounds_left_out),
            "left_out": list(self.left_out),
            "recent": [int(bad) for bad in self._recent],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.reference, self.rounds_left_out = dict(state["reference"]), dict(state["rounds_left_out"])
        self.left_out = list(state["left_out"])
        self.strikes = {i: _Strikes(c, (r, k), u) for i, (c, r, k, u) in state["strikes"].items()}
        self._recent = deque(map(bool, state["recent"]), maxlen=WINDOW)

    # -------------------------------------------------------------------------------------------------------- within

    def _gathered(self) -> list[tuple[str, np.ndarray, np.ndarray]]:
        """(kind, ids, each one's largest size) of what was watched, over all processes."""
        watched, self._watched = self._watched, []
        if watched:
            ids = torch.cat([clients.cpu() for _, clients, _ in watched]).numpy()
            sizes = torch.cat([size.double() for *_, size in watched]).cpu().numpy()
            kinds = np.repeat([KINDS.index(kind) for kind, *_ in watched], [len(size) for *_, size in watched])
        else:
            ids, sizes, kinds = np.zeros(0, dtype=np.int64), np.zeros(0), np.zeros(0, dtype=np.int64)
        if self.share.ranks > 1:
            table = np.full((len(KINDS), self.clients), -1.0)
            with np.errstate(invalid="ignore"):
                np.maximum.at(table, (kinds, ids), sizes)
            mine = torch.from_numpy(np.where(table < 0, 0.0, table + 1.0))  # NaN stays; 0 = not asked
            device = "cuda" if torch.distributed.get_backend() == "nccl" else "cpu"
            table = self.share.total(mine.to(device))[0].cpu().numpy() - 1.0
            kinds, ids = (~(table < 0)).nonzero()
            sizes = table[kinds, ids]
        found = []
        for k in dict.fromkeys(kinds.tolist()):
            own, place = np.unique(ids[kinds == k], return_inverse=True)
            largest = np.zeros(len(own))
            with np.errstate(invalid="ignore"):
                np.maximum.at(largest, place, sizes[kinds == k])
            found.append((KINDS[k], own, largest))
        return found

    def _outside(self, kind: str, ids: np.ndarray, sizes: np.ndarray) -> list[tuple[int, float]]:
        """The clients whose answers are left out, and their sizes; the reference moves by those of the others."""
        suspects = {i: s.count for i, s in self.strikes.items() if not self._forgiven(i)}
        others = sizes[~np.isin(ids, list(suspects))]
        finite = np.sort(others[np.isfinite(others)])
        if len(others) > 1 and not len(finite):
            return []  # the model has diverged
        median = float(finite[(len(finite) - 1) // 2]) if len(finite) else 0.0
        reference = self.reference[kind] = max(self.reference.get(kind, 0.0), median)
        limits = np.full(len(ids), self.factor * reference if reference > 0 and kind != ANYWHERE else np.inf)
        for i, count in suspects.items():
            limits[ids == i] *= max(0.5**count, LEAST / self.factor)
        with np.errstate(invalid="ignore"):
            good = (sizes <= limits) & np.isfinite(sizes)
        return [(int(i), float(size)) for i, size in zip(ids[~good], sizes[~good], strict=True)]

    def _forgiven(self, client: int) -> bool:
        return self.now[0] > self.strikes[client].until + 2 * LONGEST_REST

    def _strike(self, client: int, what: str) -> None:
        known, (round_, _) = self.strikes.setdefault(client, _Strikes()), self.now
        if not known.count:
            self.notice(
                f"round {round_}: the answers of {self.named([client])} are left out: its {what}, and"
                f" {self.factor:g} times the reference {self.reference.get(what.split(' is ')[0], 0.0):.3g} is the most"
                " that counts"
            )
        known.count = 1 if self._forgiven(client) else known.count + 1
        known.at = self.now
        known.until = round_ + min(LONGEST_REST, 2 ** (known.count - 1))
