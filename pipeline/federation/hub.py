"""The server's side of the sites: who is there, what they are asked, and which answers count.

A site holds one client or several. A question goes to all sites concerned at once. A site that does not answer in
time, or whose answer is malformed, of the wrong shape or not finite, is left out of the step: `SitesLost` names it, and
the step is taken again without its clients, who then are absent as if they had not been drawn
(`pipeline.federation.rounds`). A site that failed rests for `rest` seconds, and is asked again after that. One that
exceeded the time-out rests ten times as long as the others waited for it, so that a site that hangs costs a tenth of
the time; where too few others are left it is asked again after `rest` seconds all the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from pipeline.errors import UserError
from pipeline.federation.messages import Malformed, Message, decode, encode

EXACT = ("setup", "measure")
"""Questions whose numbers travel as they are, whatever the payload."""
SETUP = 60.0
"""Seconds that a site has at least to prepare for a run."""
LONGER = 10.0
"""How much longer a site rests than it was waited for."""

Contents = dict[str, bytes]
Shapes = dict[str, tuple[int, ...]]


class Transport(Protocol):
    """How bytes reach sites."""

    def present(self) -> set[str]:
        """Names of the sites that can be asked now, as far as is known."""
        ...

    def ask(self, questions: Contents, timeout: float) -> tuple[Contents, dict[str, str]]:
        """Site -> question; (site -> answer, site -> why there is none). Returns after `timeout` seconds at the
        latest; a late answer is dropped."""
        ...


class SitesLost(Exception):
    """Sites whose answer to a question is missing or cannot be used. answers: of the others."""

    def __init__(self, why: Mapping[str, str], answers: Mapping[str, Message] | None = None) -> None:
        super().__init__("; ".join(f"{site}: {reason}" for site, reason in why.items()))
        self.why, self.answers = dict(why), dict(answers or {})


@dataclass
class Tally:
    """Since the start of the run, or of the present round: exchanges; floats and bytes, to and from sites; answers left
    out, and sites that did not answer in time."""

    exchanges: int = 0
    floats_down: int = 0
    floats_up: int = 0
    bytes_down: int = 0
    bytes_up: int = 0
    left_out: int = 0
    unanswered: int = 0


class SiteRefused(Malformed):
    """A site says that it does not answer; for_good: nor will it."""

    def __init__(self, why: str, for_good: bool) -> None:
        super().__init__(why)
        self.for_good = for_good


class TooFew(UserError):
    """Fewer sites than the run needs, for longer than it waits."""


@dataclass
class Hub:
    """members: site -> ids of its clients. timeout: seconds to answer a question. needed: the fewest sites to go on
    with; patience: seconds to wait for them. welcome(site): prepares one that has (re)appeared; raises SitesLost.
    ready: sites that can be asked now. floats: the dtype in which real numbers travel; None = that of the computation,
    `dtype`. note: receives a line about each fault. taken: site -> the last (round, inner) step that it took part in to
    the end. privacy: site -> what it has spent, as it says. spoiled: sites of whom an answer could not be used, since
    this was last cleared."""

    transport: Transport
    members: Mapping[str, Sequence[int]]
    timeout: float = 60.0
    needed: int = 1
    patience: float = 600.0
    rest: float = 5.0
    welcome: Callable[[str], None] = lambda site: None
    floats: torch.dtype | None = None
    dtype: torch.dtype = torch.float32
    note: Callable[[str], None] = lambda line: None
    tally: Tally = field(default_factory=Tally)
    privacy: dict[str, dict[str, Any]] = field(default_factory=dict)
    taken: dict[str, tuple[int, int]] = field(default_factory=dict)
    spoiled: set[str] = field(default_factory=set)
    ready: set[str] = field(default_factory=set)
    _resting: dict[str, float] = field(default_factory=dict)
    _late: dict[str, float] = field(default_factory=dict)
    _gone: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._site_of = {client: site for site, clients in self.members.items() for client in clients}

    def gather(self) -> frozenset[int]:
        """Welcome the sites that are there, and wait until there are enough. Returns the ids of the clients whose site
        cannot be asked now. Raises TooFew."""
        deadline, said = time.monotonic() + self.patience, False
        while True:
            there, now = self.transport.present() - self._gone, time.monotonic()
            for site in sorted(self.ready - there):
                self.note(f"{site} is gone")
            self.ready &= there
            for site in self.members:
                if site in there and site not in self.ready and self._rested(site, now):
                    self._prepare(site)
            if len(self.ready) >= self.needed:
                return self.clients_of(site for site in self.members if site not in self.ready)
            missing = ", ".join(site for site in self.members if site not in self.ready)
            if now > deadline:
                raise self.too_few(missing)
            if not said:
                self.note(
                    f"waiting: {len(self.ready)} sites of the {self.needed} needed (min_sites); missing: {missing}"
                )
                said = True
            time.sleep(0.1)

    def _rested(self, site: str, now: float) -> bool:
        waits = len(self.ready) < self.needed
        return self._resting.get(site, 0.0) <= now and (waits or self._late.get(site, 0.0) <= now)

    def too_few(self, missing: str) -> TooFew:
        return TooFew(
            f"{len(self.ready)} of {len(self.members)} sites are there, and min_sites is {self.needed}; missing for"
            f" {self.patience:g} s (patience): {missing}. Fix: start them, then the server again; it goes on from its"
            " last save. Or lower min_sites in federation.yaml."
        )

    def forget(self) -> None:
        """All sites are to be welcomed again."""
        self.ready.clear()

    def rest_long(self, site: str) -> None:
        """A site that cannot take part is not asked again for a while."""
        self._resting[site] = time.monotonic() + max(60.0, self.rest)

    def _prepare(self, site: str) -> None:
        try:
            self.welcome(site)
            self.ready.add(site)
        except SitesLost:
            pass

    def clients_of(self, sites: Iterable[str]) -> frozenset[int]:
        return frozenset(client for site in sites for client in self.members[site])

    def by_site(self, clients: Tensor) -> dict[str, list[int]]:
        """Site -> positions in `clients` [n] of its own, in their order."""
        found: dict[str, list[int]] = {}
        for position, client in enumerate(clients.tolist()):
            found.setdefault(self._site_of[client], []).append(position)
        return found

    def ask(self, questions: Mapping[str, Message], shapes: Mapping[str, Shapes]) -> dict[str, Message]:
        """One exchange. shapes: of the tensors that each site's answer must hold; all of them finite. Raises SitesLost
        when an answer is missing or wrong."""
        encoded: dict[int, bytes] = {}  # sites are often asked the very same
        for message in questions.values():
            if id(message) not in encoded:
                encoded[id(message)] = encode(message, None if message.kind in EXACT else self.floats)
        sent = {site: encoded[id(message)] for site, message in questions.items()}
        setup = any(message.kind == "setup" for message in questions.values())  # a site may have to read and import
        began = time.monotonic()
        answers, missing = self.transport.ask(sent, max(self.timeout, SETUP) if setup else self.timeout)
        tally, why = self.tally, dict(missing)
        tally.exchanges += 1
        tally.unanswered += len(missing)
        tally.floats_down += sum(message.floats for message in questions.values())
        tally.bytes_down += sum(map(len, sent.values()))
        tally.bytes_up += sum(map(len, answers.values()))
        found = {}
        for site, content in answers.items():
            try:
                found[site] = self._checked(content, shapes.get(site, {}))
                tally.floats_up += found[site].floats
            except Malformed as fault:
                why[site] = str(fault)
                tally.left_out += 1
                if not isinstance(fault, SiteRefused):
                    self.spoiled.add(site)
                elif fault.for_good:
                    self._gone.add(site)
        now = time.monotonic()
        waited = now - began
        late = missing.keys() & self.transport.present() if waited >= self.timeout else ()  # who is gone hinders no one
        for site, reason in why.items():
            again = LONGER * waited if site in late else 0.0
            self.note(f"{site} is left out: {reason}" + (f"; asked again in {again:.0f} s" if again else ""))
            self._resting[site], self._late[site] = now + self.rest, now + again
            self.ready.discard(site)
            if setup and site in answers:  # the run's settings do not suit it, and will not soon
                self.rest_long(site)
        for site, answer in found.items():
            if "privacy" in answer.facts:
                self.privacy[site] = answer.facts["privacy"]
        if why:
            raise SitesLost(why, found)
        return found

    def _checked(self, content: bytes, shapes: Shapes) -> Message:
        answer = decode(content).cast(self.dtype)
        if answer.kind == "refused":
            raise SiteRefused(str(answer.facts.get("why", "no reason given")), bool(answer.facts.get("for good")))
        for name, shape in shapes.items():
            tensor = answer.tensors.get(name)
            if tensor is None or tuple(tensor.shape) != shape:
                has = "is missing" if tensor is None else f"has shape {list(tensor.shape)}"
                raise Malformed(f"its {name} {has}, not {list(shape)}")
        for name, tensor in answer.tensors.items():
            if tensor.is_floating_point() and not tensor.isfinite().all():
                raise Malformed(f"its {name} is not finite")
        return answer
