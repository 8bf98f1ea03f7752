"""The server's side of the sites: who is there, what they are asked, and which answers count.

A site holds one client or several. A question goes to all sites concerned at once. A site that does not answer in
time, or whose answer is malformed, of the wrong shape or not finite, is left out of the step: `SitesLost` names it, and
the step is taken again without its clients, who then are absent as if they had not been drawn
(`pipeline.federation.rounds`). A site that failed rests for `rest` seconds, and is asked again after that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from pipeline.federation.messages import Malformed, Message, decode, encode

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
    """Sites whose answer to a question of the present step is missing or cannot be used."""

    def __init__(self, why: Mapping[str, str]) -> None:
        super().__init__("; ".join(f"{site}: {reason}" for site, reason in why.items()))
        self.why = dict(why)


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


@dataclass
class Hub:
    """members: site -> ids of its clients. timeout: seconds to answer a question. floats: the dtype in which real
    numbers travel; None = that of the computation. note: receives a line about each fault."""

    transport: Transport
    members: Mapping[str, Sequence[int]]
    timeout: float = 60.0
    rest: float = 5.0
    floats: torch.dtype | None = None
    dtype: torch.dtype = torch.float32
    note: Callable[[str], None] = lambda line: None
    tally: Tally = field(default_factory=Tally)
    privacy: dict[str, dict[str, float]] = field(default_factory=dict)
    _resting: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._site_of = {client: site for site, clients in self.members.items() for client in clients}

    @property
    def present(self) -> list[str]:
        """Sites that can be asked now."""
        there, now = self.transport.present(), time.monotonic()
        return [site for site in self.members if site in there and self._resting.get(site, 0.0) <= now]

    @property
    def absent(self) -> frozenset[int]:
        """Ids of the clients whose site cannot be asked now."""
        present = set(self.present)
        return frozenset(client for client, site in self._site_of.items() if site not in present)

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
                encoded[id(message)] = encode(message, self.floats)
        sent = {site: encoded[id(message)] for site, message in questions.items()}
        answers, missing = self.transport.ask(sent, self.timeout)
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
        for site, reason in why.items():
            self.note(f"{site} is left out: {reason}")
            self._resting[site] = time.monotonic() + self.rest
        if why:
            raise SitesLost(why)
        for site, answer in found.items():
            if "privacy" in answer.facts:
                self.privacy[site] = answer.facts["privacy"]
        return found

    def _checked(self, content: bytes, shapes: Shapes) -> Message:
        answer = decode(content, self.dtype)
        if answer.kind == "refused":
            raise Malformed(str(answer.facts.get("why", "no reason given")))
        for name, shape in shapes.items():
            tensor = answer.tensors.get(name)
            if tensor is None or tuple(tensor.shape) != shape:
                has = "is missing" if tensor is None else f"has shape {list(tensor.shape)}"
                raise Malformed(f"its {name} {has}, not {list(shape)}")
        for name, tensor in answer.tensors.items():
            if tensor.is_floating_point() and not tensor.isfinite().all():
                raise Malformed(f"its {name} is not finite")
        return answer
