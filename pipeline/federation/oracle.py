"""The server's oracle: asks sites for the rows that the simulator would have had, and sums them as it would.

| it is asked for | each client's site sends | the server computes |
|---|---|---|
| sum_i c_i g_i | g_i | c @ G |
| sum_i c_i h_i, lambda^T g_i | h_i, lambda^T g_i | c @ H |
| lambda^T g_i | lambda^T g_i | |
| losses | f_i | |
| local steps | theta_i, how many steps, the first gradient's length | what the method does with them |

Client weights never leave the server, and per-client vectors of methods with local steps (duals, control variates)
are kept there, where they can be computed from the theta_i anyway: a site that lost its disk has lost nothing.

Questions wait until the first value is needed, so that those which do not depend on one another are one exchange, as
the methods count them.

Rows are judged as they come, by the simulator's rule (`pipeline.oracles.screening`): gradients, products, and the
changes that local steps make, of every client and in every exchange. Inner products and losses need only be finite:
no method asks for them alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pipeline.federation.hub import Hub, Shapes
from pipeline.federation.messages import Message
from pipeline.methods.consensus.common.local_context import LocalContext
from pipeline.methods.consensus.common.local_training import Rule, Trained
from pipeline.oracles.screened import sizes
from pipeline.oracles.screening import Screen
from pipeline.oracles.weighting import FusedOracle
from pipeline.problems.base import Batch

Rows = tuple[Tensor, ...]
KINDS = {
    "gradients": ("gradient",),
    "products": ("product",),
    "gradients_and_products": ("gradient", "product"),
    "products_with_inner": ("product",),
}
"""What is judged of the answers to each question."""


class Pending(torch.Tensor):
    """A value that is asked for when it is first used."""

    _value: Callable[[], Tensor]

    @classmethod
    def of(cls, value: Callable[[], Tensor]) -> Tensor:
        pending = torch.Tensor._make_subclass(cls, torch.empty(0))
        pending._value = value
        return pending

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        settled, more = _settled(args), _settled(kwargs or {})
        return func(*settled, **more)


def _settled(value: Any) -> Any:
    if isinstance(value, Pending):
        return value.__dict__["_value"]()
    if isinstance(value, (tuple, list)):
        return type(value)(_settled(each) for each in value)
    if isinstance(value, dict):
        return {key: _settled(each) for key, each in value.items()}
    return value


@dataclass(frozen=True)
class RemoteBatch:
    """A minibatch that each of the clients [n] will draw at its site."""

    stream: int
    clients: Tensor
    size: int


@dataclass
class Asked:
    """A question that waits. widths: of the rows that answer it, one per tensor; None = a number per client. counts:
    minibatch gradients that the answer took, where the server cannot know."""

    function: str
    vectors: tuple[Tensor, ...]
    clients: Tensor
    facts: dict[str, Any]
    widths: tuple[int | None, ...]
    rows: Rows | None = None
    counts: int = 0


class RemoteOracle(FusedOracle):
    """What `pipeline.oracles.weighting` and `.local` answer, from sites. problem: the server's, which knows how many
    samples clients have and holds none of them. own: the oracle of the server's own validation set. screen: judges
    answers; None = all that are finite count."""

    def __init__(self, problem: Any, hub: Hub, own: Any, screen: Screen | None = None) -> None:
        super().__init__(problem)
        self._screen = screen
        self.local, self._hub, self._own = problem, hub, own
        self._waiting: list[Asked] = []

    def start(self) -> None:
        """Of a step: forget questions of an earlier one whose answers were not needed."""
        self._waiting.clear()

    def draw(self, stream: int, clients: Tensor, size: int) -> Batch:
        return RemoteBatch(stream, clients.cpu(), size)

    def weighted_gradient(self, w: Tensor, batch: RemoteBatch, c: Tensor) -> Tensor:
        rows = self._asked("gradients", (w,), batch, len(w))
        return Pending.of(lambda: c @ rows()[0])

    def weighted_product(self, w: Tensor, lam: Tensor, batch: RemoteBatch, c: Tensor) -> tuple[Tensor, Tensor]:
        rows = self._asked("products_with_inner", (w, lam), batch, len(w), None)
        return Pending.of(lambda: c @ rows()[0]), Pending.of(lambda: rows()[1])

    def gradient_with_inner(self, w: Tensor, lam: Tensor, batch: RemoteBatch, c: Tensor) -> tuple[Tensor, Tensor]:
        rows = self._asked("gradients", (w,), batch, len(w))
        return Pending.of(lambda: c @ rows()[0]), Pending.of(lambda: rows()[0] @ lam)

    def gradient_and_product(
        self, w: Tensor, lam: Tensor, batch: RemoteBatch, c: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        rows = self._asked("gradients_and_products", (w, lam), batch, len(w), len(w))
        return (
            Pending.of(lambda: c @ rows()[0]),
            Pending.of(lambda: c @ rows()[1]),
            Pending.of(lambda: rows()[0] @ lam),
        )

    def gradients(self, w: Tensor, batch: RemoteBatch) -> Tensor:
        return self._rows("gradients", (w,), batch, len(w))[0]

    def products(self, w: Tensor, lam: Tensor, batch: RemoteBatch) -> Tensor:
        return self._rows("products", (w, lam), batch, len(w))[0]

    def gradients_and_products(self, w: Tensor, lam: Tensor, batch: RemoteBatch) -> tuple[Tensor, Tensor]:
        G, H = self._rows("gradients_and_products", (w, lam), batch, len(w), len(w))
        return G, H

    def inner_products(self, w: Tensor, lam: Tensor, batch: RemoteBatch) -> Tensor:
        return self._rows("inner_products", (w, lam), batch, None)[0]

    def losses(self, w: Tensor, batch: RemoteBatch) -> Tensor:
        return self._rows("losses", (w,), batch, None)[0]

    def gradients_each(self, W: Tensor, batch: Batch, at_once: int | None = None) -> Tensor:
        """Never asked: models that differ between clients stay at the sites, which take the steps in `train`."""
        raise TypeError("a remote oracle answers at one shared model; local steps are `train`")

    def train(self, context: LocalContext, start: Tensor, clients: Tensor, rule: Rule) -> Trained:
        """`pipeline.methods.consensus.common.local_training.train`, at the sites."""
        facts = {name: value for name, value in vars(rule).items() if name != "lin"} | {"round": context.round}
        vectors = (start,) if rule.lin is None else (start, rule.lin)
        asked = Asked("train", vectors, clients.cpu(), facts, (len(start), None, None))
        models, steps, pull = self._answered(asked)
        return Trained(models, steps, asked.counts, pull)

    def validation_gradient(self, w: Tensor, batch: Batch) -> Tensor:
        return self._own.validation_gradient(w, batch)

    def validation_product(self, w: Tensor, v: Tensor, batch: Batch) -> Tensor:
        return self._own.validation_product(w, v, batch)

    def _asked(self, function: str, vectors: Rows, batch: RemoteBatch, *widths: int | None) -> Callable[[], Rows]:
        """A question for later."""
        vectors = tuple(_settled(vector) for vector in vectors)
        asked = Asked(function, vectors, batch.clients, {"stream": batch.stream, "size": batch.size}, widths)
        self._waiting.append(asked)
        return lambda: self._answers(asked)

    def _rows(self, *question: Any) -> Rows:
        """Rows for later."""
        rows = self._asked(*question)
        return tuple(Pending.of(partial(_column, rows, k)) for k in range(len(question) - 3))

    def _answered(self, asked: Asked) -> Rows:
        self._waiting.append(asked)
        return self._answers(asked)

    def _answers(self, asked: Asked) -> Rows:
        if asked.rows is None:
            waiting, self._waiting = self._waiting, []
            exchange(self._hub, waiting)
            if self._screen:
                judge(self._screen, waiting)
        assert asked.rows is not None
        return asked.rows


def _column(rows: Callable[[], Rows], k: int) -> Tensor:
    return rows()[k]


def judge(screen: Screen, answered: list[Asked]) -> None:
    """Leave out the clients whose answers are out of all proportion. Raises LeftOut."""
    for asked in answered:
        assert asked.rows is not None
        for kind, found in _sizes(asked, asked.rows):
            screen.watch(kind, asked.clients, found)
    screen.judge()


def _sizes(asked: Asked, rows: Rows) -> Iterator[tuple[str, Tensor]]:
    """(kind, size of each client's answer [n])."""
    first, *others = asked.vectors
    if asked.function == "train":
        yield "change", sizes(rows[0] - first)
        yield "gradient", rows[2]  # and a dual, where the client has one: as long as gradients are
        return
    for kind, row in zip(KINDS.get(asked.function, ()), rows, strict=False):
        yield kind, sizes(row, *(others if kind == "product" else ()))


def exchange(hub: Hub, waiting: list[Asked]) -> None:
    """All that waits, in one message to each site concerned and one back. Sites get the same message, but for vectors
    of which each client has its own."""
    shared, names = _distinct(waiting)
    asks = [
        {"function": asked.function, "vectors": named, "clients": asked.clients.tolist()} | asked.facts
        for asked, named in zip(waiting, names, strict=True)
    ]
    same = Message("ask", {"asks": asks}, shared)
    own = {name for asked, named in zip(waiting, names, strict=True) for name in named if shared[name].dim() == 2}
    places = [hub.by_site(asked.clients) for asked in waiting]
    questions: dict[str, Message] = {}
    shapes: dict[str, Shapes] = {}
    for number, (asked, place) in enumerate(zip(waiting, places, strict=True)):
        for site, at in place.items():
            if site not in questions:
                questions[site] = Message("ask", same.facts, dict(shared)) if own else same
            questions[site].tensors.update({name: shared[name][at] for name in names[number] if name in own})
            expected = shapes.setdefault(site, {})
            for k, width in enumerate(asked.widths):
                expected[f"{number}.{k}"] = (len(at),) if width is None else (len(at), width)
    answers = hub.ask(questions, shapes)
    for number, (asked, place) in enumerate(zip(waiting, places, strict=True)):
        like = asked.vectors[0]
        rows = tuple(like.new_empty(len(asked.clients), *(() if width is None else (width,))) for width in asked.widths)
        for site, at in place.items():
            for k, column in enumerate(rows):
                column[at] = answers[site].tensors[f"{number}.{k}"].to(like)
        asked.rows = rows
        asked.counts = sum(answers[site].facts["gradients"][str(number)] for site in place)


def _distinct(waiting: list[Asked]) -> tuple[dict[str, Tensor], list[list[str]]]:
    """Every vector once, by name, and the names of each question's."""
    shared: dict[str, Tensor] = {}
    known: dict[int, str] = {}
    names = []
    for asked in waiting:
        for vector in asked.vectors:
            name = known.setdefault(id(vector), f"v{len(known)}")
            shared[name] = vector
        names.append([known[id(vector)] for vector in asked.vectors])
    return shared, names
