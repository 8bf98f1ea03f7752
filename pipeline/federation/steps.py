"""Methods whose clients take local steps on variables of their own (the bilevel families): the method's step runs where
the clients are.

Server and sites run the same `step` of the method. At a site it sees the site's clients, at the server none; each sum
over clients is an exchange. So what goes down are the server's variables and, between the exchanges of a step, sums;
what goes up are a site's parts of the sums. What a client keeps (memory with a row per client) never leaves its site.

How many exchanges a step has, and whom they concern, the server finds out by running the step once without anyone. It
sends that number along: at its last exchange a site need not wait for the sum, which only the server uses. It goes on
with numbers that are none, and a method whose client rows would need them is refused.

Where the server holds the upper level, its gradient rides with the variables.
"""

from __future__ import annotations

import dataclasses
import queue
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from pipeline.federation.hub import Hub
from pipeline.federation.messages import Message
from pipeline.methods.base import Algorithm, State, Step, StepContext
from pipeline.methods.bilevel.common.bilevel_context import BilevelContext, ClientUpper, ServerUpper, UpperLevel
from pipeline.sharing import Share

COUNTED = ("floats_up", "floats_down", "gradients", "hvps")


# ------------------------------------------------------------------------------------------------------ the server


@dataclass
class Talk:
    """One step, as the server leads it. dry: find out about it, ask no one. exchanges: so far. asked: the sites
    concerned. planned: the number of exchanges. values: what the server adds to the next message."""

    hub: Hub
    opening: Message
    dry: bool = True
    exchanges: int = 0
    planned: int = 0
    asked: set[str] = field(default_factory=set)
    values: list[Tensor] = field(default_factory=list)
    sums: list[Tensor] = field(default_factory=list)
    spent: list[int] = field(default_factory=lambda: [0] * len(COUNTED))

    def total(self, parts: tuple[Tensor, ...]) -> list[Tensor]:
        self.exchanges += 1
        if self.dry or not self.asked:
            return list(parts)
        values = {f"value.{i}": value for i, value in enumerate(self.values)}
        self.values = []
        if self.exchanges == 1:
            facts = self.opening.facts | {"exchanges": self.planned}
            question = Message("step", facts, self.opening.tensors | values)
        else:
            question = Message("sums", {}, {f"sum.{i}": total for i, total in enumerate(self.sums)} | values)
        shapes = {f"part.{i}": tuple(part.shape) for i, part in enumerate(parts)}
        order = [site for site in self.hub.members if site in self.asked]
        answers = self.hub.ask(dict.fromkeys(order, question), dict.fromkeys(order, shapes))
        self.sums = [
            sum((answers[site].tensors[name].to(part) for site in order), part)
            for name, part in zip(shapes, parts, strict=True)
        ]
        if self.exchanges == self.planned:
            counted = zip(*(answers[site].facts["spent"] for site in order), strict=True)
            self.spent = [sum(column) for column in counted]
            self.hub.taken |= dict.fromkeys(order, (self.opening.facts["round"], self.opening.facts["inner"]))
        return list(self.sums)


@dataclass(frozen=True)
class ServerShare(Share):
    """The server simulates no client."""

    ranks: int = 2
    talk: Talk | None = None

    def own(self, clients: Tensor) -> Tensor:
        if self.talk and self.talk.dry:
            self.talk.asked |= self.talk.hub.by_site(clients).keys()
        return torch.zeros(0, dtype=torch.int64, device=clients.device)

    @property
    def rows(self) -> slice:
        return slice(0, 0)

    def keep_own(self, values: Tensor) -> Tensor:
        return values[:0]

    def total(self, *parts: Tensor) -> list[Tensor]:
        assert self.talk
        return self.talk.total(parts)

    def counts(self, *numbers: int) -> list[int]:
        return list(self.talk.spent) if self.talk else list(numbers)


@dataclass(frozen=True)
class ServerContext(BilevelContext):
    """The server's gradient of the upper level, for it and for the sites."""

    def upper_level(self, x: Tensor, y: Tensor, *exchange: int) -> UpperLevel:
        if not self.server_upper:
            return ClientUpper(self.oracle)
        talk = self.share.talk  # type: ignore[attr-defined]
        if talk.dry:
            return _given(torch.zeros_like(y)[None])
        batch = self.problem.draw_upper(self.stream("validation", *exchange), torch.zeros(1, dtype=torch.int64), 1)
        gradient = self.oracle.upper_gradient_y(x[None], y[None], batch)
        talk.values.append(gradient)
        return _given(gradient)


class _Found:
    """An oracle whose answer is known."""

    def __init__(self, gradient: Tensor) -> None:
        self.gradient = gradient

    def upper_gradient_y(self, X: Tensor, Y: Tensor, batch: Any) -> Tensor:
        return self.gradient


def _given(gradient: Tensor) -> UpperLevel:
    return ServerUpper(_Found(gradient), gradient, gradient, None)  # type: ignore[arg-type]


def server_step(algorithm: Algorithm[Any], hub: Hub, state: State, context: StepContext) -> tuple[Step, StepContext]:
    """The step, and the context that knows what it cost. Raises SitesLost."""
    facts: dict[str, Any] = {"round": context.round, "inner": context.inner, "schedule": context.schedule}
    facts |= {"step_sizes": dict(context.step_sizes), "absent": sorted(context.absent), "taken": hub.taken}
    sent = {f"variables.{name}": value for name, value in state.variables.items()}
    sent |= {f"memory.{name}": value for name, value in state.memory.items() if name not in algorithm.client_rows}
    talk = Talk(hub, Message("step", facts, sent))
    here = dataclasses.replace(context, share=ServerShare(talk=talk))
    memory = {name: value.clone() for name, value in state.memory.items()}
    algorithm.step(State(state.variables, memory), here)
    talk.dry, talk.planned, talk.exchanges = False, talk.exchanges, 0
    return algorithm.step(state, here), here


# --------------------------------------------------------------------------------------------------------- a site


class Abandoned(Exception):
    """The server has begun another step."""


@dataclass
class Conversation:
    """One step, as a site takes part in it: the method runs in a thread of its own and waits where sums are made."""

    planned: int
    parts: queue.SimpleQueue[Any] = field(default_factory=queue.SimpleQueue)
    replies: queue.SimpleQueue[Message | None] = field(default_factory=queue.SimpleQueue)
    exchanges: int = 0
    last: tuple[Tensor, ...] = ()
    values: list[Tensor] = field(default_factory=list)
    thread: threading.Thread | None = None

    def begin(self, work: Callable[[], list[int]]) -> None:
        def run() -> None:
            try:
                spent = work()
                self.parts.put((self.last, {"spent": spent}))
            except Abandoned:
                pass
            except Exception as error:  # whatever it is: the server must hear of it, and the site goes on
                self.parts.put(error)

        self.thread = threading.Thread(target=run, daemon=True)
        self.thread.start()

    def total(self, parts: tuple[Tensor, ...]) -> list[Tensor]:
        self.exchanges += 1
        if self.exchanges >= self.planned:
            self.last = self.last or parts
            return [torch.full_like(part, torch.nan) for part in parts]
        self.parts.put((parts, {}))
        reply = self.replies.get()
        if reply is None:
            raise Abandoned
        self.take(reply)
        return [reply.tensors[f"sum.{i}"].to(part) for i, part in enumerate(parts)]

    def take(self, message: Message) -> None:
        """The values that came with a message."""
        self.values += [value for name, value in message.tensors.items() if name.startswith("value.")]

    def answer(self) -> Message:
        """What the site sends next."""
        found = self.parts.get()
        if isinstance(found, Exception):
            raise found
        parts, facts = found
        return Message("parts", facts, {f"part.{i}": part for i, part in enumerate(parts)})

    def abandon(self) -> None:
        self.replies.put(None)
        if self.thread:
            self.thread.join()


@dataclass(frozen=True)
class SiteShare(Share):
    """A site simulates its own clients."""

    ranks: int = 2
    clients: frozenset[int] = frozenset()
    talk: Conversation | None = None

    def own(self, clients: Tensor) -> Tensor:
        mine = [position for position, client in enumerate(clients.tolist()) if client in self.clients]
        return torch.tensor(mine, dtype=torch.int64, device=clients.device)

    def total(self, *parts: Tensor) -> list[Tensor]:
        assert self.talk
        return self.talk.total(parts)


@dataclass(frozen=True)
class SiteContext(BilevelContext):
    """The upper level that the server holds comes with its messages."""

    def upper_level(self, x: Tensor, y: Tensor, *exchange: int) -> UpperLevel:
        if not self.server_upper:
            return ClientUpper(self.oracle)
        values = self.share.talk.values  # type: ignore[attr-defined]
        return _given(values.pop(0).to(y) if values else torch.full_like(y, torch.nan)[None])


class StepRunner:
    """A site's part in steps. rows: what its clients keep, [N, ...] each, of which only their own rows count.

    A step that the server has not counted, whatever the site thinks of it, is undone when the next one begins, and
    before what its clients keep is saved or measured.
    """

    def __init__(self, name: str, algorithm: Algorithm[Any], context: StepContext, clients: frozenset[int]) -> None:
        self.name, self.algorithm, self.clients = name, algorithm, clients
        self.context = server_or_site(SiteContext, context)
        memory = algorithm.init(dataclasses.replace(self.context, share=Share())).memory
        self.rows = {name: memory[name] for name in algorithm.client_rows & memory.keys()}
        self._own = torch.tensor(sorted(clients))
        self._key: tuple[int, int] | None = None
        self._before = self.saved()
        self._talk: Conversation | None = None

    def saved(self) -> dict[str, Tensor]:
        """What its clients keep, [own, ...] each."""
        return {name: value[self._own].clone() for name, value in self.rows.items()}

    def restore(self, saved: Mapping[str, Tensor]) -> None:
        self._key = None
        for name, value in saved.items():
            self.rows[name][self._own] = value.to(self.rows[name])

    def settle(self, taken: Mapping[str, Any]) -> None:
        """Undo the last step if the server has not counted it. taken: site -> the last step that it has."""
        if self._talk:
            self._talk.abandon()
        self._talk = None
        if self._key and list(self._key) != taken.get(self.name):
            self.restore(self._before)

    def step(self, question: Message) -> Message:
        facts = question.facts
        self.settle(facts["taken"])
        key = (int(facts["round"]), int(facts["inner"]))
        self._key, self._before = key, self.saved()
        talk = self._talk = Conversation(int(facts["exchanges"]))
        talk.take(question)
        parts: dict[str, dict[str, Tensor]] = {"variables": {}, "memory": {}}
        for name, value in question.tensors.items():
            kind, _, short = name.partition(".")
            if kind in parts:
                parts[kind][short] = value
        context = dataclasses.replace(
            self.context,
            round=key[0],
            inner=key[1],
            schedule=float(facts["schedule"]),
            step_sizes=facts["step_sizes"],
            absent=frozenset(facts["absent"]),
            share=SiteShare(clients=self.clients, talk=talk),
        )

        def work() -> list[int]:
            step = self.algorithm.step(State(parts["variables"], parts["memory"] | self.rows), context)
            if not all(value.isfinite().all() for value in self.saved().values()):
                raise ValueError("what its clients keep is not finite, or needs a step's last sum")
            return [getattr(step.cost, name) for name in COUNTED]

        talk.begin(work)
        return talk.answer()

    def sums(self, question: Message) -> Message:
        if not self._talk:
            raise ValueError("sums without a step")
        self._talk.replies.put(question)
        return self._talk.answer()


def server_or_site(kind: type[BilevelContext], context: StepContext) -> StepContext:
    """The context as the server's or a site's."""
    return kind(**{each.name: getattr(context, each.name) for each in dataclasses.fields(context)})
