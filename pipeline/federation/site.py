"""A site: its data, its network, and the few questions it answers (docs/federation.md, "What leaves a site").

Its answers are computed by the simulator's own oracles on its own samples, with the same random draws: the rows that
the simulator would have had for its clients.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pipeline.federation.measuring import Found
from pipeline.federation.messages import Malformed, Message, decode, encode
from pipeline.federation.privacy import BudgetSpent, Privacy
from pipeline.federation.steps import StepRunner
from pipeline.methods.base import Algorithm, StepContext
from pipeline.methods.bilevel.common.bilevel_context import BilevelContext
from pipeline.methods.consensus.common.local_training import Rule, train
from pipeline.oracles.weighting import FusedOracle
from pipeline.problems.base import Batch

Answer = tuple[Tensor, ...]


@dataclass(frozen=True)
class SiteTask:
    """What a site knows of a run. clients: ids of its own. context: with a problem that holds their samples. figures:
    what it finds on these, and on how many; None = such a run asks for none."""

    algorithm: Algorithm[Any]
    context: StepContext
    clients: frozenset[int]
    floats: torch.dtype | None = None
    dtype: torch.dtype = torch.float32
    figures: Found | None = None


def _product_with_inner(oracle: FusedOracle, batch: Batch, w: Tensor, lam: Tensor) -> Answer:
    G, H = oracle.gradients_and_products(w, lam, batch)
    return H, G @ lam


FUNCTIONS: dict[str, Callable[..., Answer]] = {
    "gradients": lambda oracle, batch, w: (oracle.gradients(w, batch),),
    "products": lambda oracle, batch, w, lam: (oracle.products(w, lam, batch),),
    "gradients_and_products": lambda oracle, batch, w, lam: oracle.gradients_and_products(w, lam, batch),
    "products_with_inner": _product_with_inner,
    "inner_products": lambda oracle, batch, w, lam: (oracle.inner_products(w, lam, batch),),
    "losses": lambda oracle, batch, w: (oracle.losses(w, batch),),
}
"""What may be asked of a minibatch at the server's vectors; all rows [n, ...] belong to one client each."""


class Site:
    """describe: what the server learns before a run, by the parts that are set aside in it. build: from the server's
    settings to this site's part in it.
    store: folder for what its clients keep; None = nothing outlives the process."""

    def __init__(
        self,
        name: str,
        build: Callable[[Message], SiteTask],
        describe: Callable[[Sequence[str]], dict[str, Any]] = lambda apart: {},
        privacy: Privacy | None = None,
        store: Path | None = None,
    ) -> None:
        self.name, self._build, self._describe = name, build, describe
        self.privacy, self._store = privacy, store
        self._part: SiteTask | None = None
        self._set_up: dict[str, Any] | None = None
        self._runner: StepRunner | None = None

    def answer(self, content: bytes) -> bytes:
        """Never raises: what goes wrong here is an answer too."""
        try:
            found = self._answer(decode(content))
        except BudgetSpent as spent:
            found = Message("refused", {"why": str(spent), "for good": True})
        except Exception as error:  # the server names it; the site stays
            found = Message("refused", {"why": f"{type(error).__name__}: {error}"})
        return encode(found, self._part.floats if self._part and found.kind != "figures" else None)

    def _answer(self, question: Message) -> Message:
        if question.kind == "describe":
            return Message("description", self._describe(question.facts.get("apart", ())))
        if question.kind == "setup":
            return self._setup(question)
        if self._part is None:
            raise Malformed("this site has not been set up for a run: it has started anew")
        question = question.cast(self._part.dtype)
        if question.kind == "ask":
            return self._ask(question)
        if self._runner is None:
            raise Malformed(f"this method has no question {question.kind!r}")
        answers = {"step": self._runner.step, "sums": self._runner.sums, "measure": self._measure}
        answers |= {"save": self._save, "restore": self._restore}
        if question.kind not in answers:
            raise Malformed(f"there is no question {question.kind!r}")
        found = answers[question.kind](question)
        return self._released(found) if question.kind in ("step", "sums") else found

    def _setup(self, question: Message) -> Message:
        anew = question.facts != self._set_up
        if anew:  # else the same once more: what its clients keep stays
            part = self._part = self._build(question)
            by_steps = isinstance(part.context, BilevelContext)
            self._runner = StepRunner(self.name, part.algorithm, part.context, part.clients) if by_steps else None
            self._set_up = question.facts
        return Message("ready", {"rows": bool(self._runner and self._runner.rows), "anew": anew})

    def _ask(self, question: Message) -> Message:
        part = self._part
        assert part
        tensors: dict[str, Tensor] = {}
        gradients = {}
        for number, ask in enumerate(question.facts["asks"]):
            clients = [client for client in ask["clients"] if client in part.clients]
            if not clients:
                continue
            vectors = [question.tensors[name] for name in ask["vectors"]]
            asked = torch.tensor(clients)
            if ask["function"] == "train":
                answer, gradients[str(number)] = self._train(ask, asked, *vectors)
            else:
                batch = part.context.oracle.draw(ask["stream"], asked, ask["size"])
                answer = FUNCTIONS[ask["function"]](part.context.oracle, batch, *vectors)
                if self.privacy:
                    answer = tuple(map(self.privacy.release, answer))
                gradients[str(number)] = 0
            tensors |= {f"{number}.{k}": rows for k, rows in enumerate(answer)}
        facts = {"gradients": gradients} | ({"privacy": self.privacy.spent()} if self.privacy else {})
        return Message("answers", facts, tensors)

    def _train(
        self, ask: dict[str, Any], clients: Tensor, start: Tensor, lin: Tensor | None = None
    ) -> tuple[Answer, int]:
        """Local steps from the server's model."""
        assert self._part
        rule = Rule(lin=lin, **{each.name: ask[each.name] for each in dataclasses.fields(Rule) if each.name != "lin"})
        context: Any = dataclasses.replace(self._part.context, round=ask["round"])
        trained = train(context, start, clients, rule)
        models, pull = trained.models, trained.pull
        if self.privacy:
            models, pull = start + self.privacy.release(models - start), self.privacy.release(pull)
        return (models, trained.steps, pull), trained.gradients

    def _released(self, found: Message) -> Message:
        """A step's parts of sums, each as a whole."""
        if not self.privacy:
            return found
        tensors = {
            name: self.privacy.release(part.reshape(1, -1)).view_as(part) for name, part in found.tensors.items()
        }
        return Message(found.kind, found.facts | {"privacy": self.privacy.spent()}, tensors)

    def _measure(self, question: Message) -> Message:
        """Figures on samples of its own, each a number that counts as any other answer."""
        assert self._part
        assert self._runner
        if not self._part.figures:
            raise Malformed("this run has no figures that a site finds")
        self._runner.settle(question.facts["taken"])
        variables = {name.removeprefix("variables."): value for name, value in question.tensors.items()}
        per_class = variables.pop("per_class", None)
        own = {name: value for name, value in self._runner.saved().items() if name == "Y"}
        found, samples = self._part.figures(variables | own, per_class)
        tensors = {name: torch.tensor([value], dtype=torch.float64) for name, value in found.items()}
        facts: dict[str, Any] = {"samples": samples}
        if self.privacy:
            tensors = {name: self.privacy.release(value) for name, value in tensors.items()}
            facts["privacy"] = self.privacy.spent()
        return Message("figures", facts, tensors)

    # ------------------------------------------------------------------------------ what its clients keep, on disk

    def _saves(self, question: Message) -> tuple[dict[int, Path], Path | None]:
        """Those of the run, by round, and where the one of this round belongs; None: nothing is kept."""
        run = str(question.facts["run"])
        if not run.isalnum():
            raise Malformed("a run's name is letters and digits")
        if not self._store:
            return {}, None
        found = {int(path.stem.rpartition("-")[2]): path for path in self._store.glob(f"{run}-*.rows")}
        return found, self._store / f"{run}-{int(question.facts['round'])}.rows"

    def _save(self, question: Message) -> Message:
        """Rows after a round; the two newest saves stay, since the server may not have finished its own."""
        assert self._runner
        self._runner.settle(question.facts["taken"])
        _, file = self._saves(question)
        if file:
            file.parent.mkdir(parents=True, exist_ok=True)
            partial = file.with_suffix(".partial")
            partial.write_bytes(encode(Message("rows", {}, self._runner.saved())))
            partial.replace(file)
            kept, _ = self._saves(question)
            for old in sorted(kept)[:-2]:
                kept[old].unlink()
        return Message("saved", {"kept": bool(file)})

    def _restore(self, question: Message) -> Message:
        """Rows as they were after that round, or at the last save before it: since then this site was away. Without a
        save they start anew. The answer says which round it is."""
        assert self._runner
        kept, _ = self._saves(question)
        newest = max((at for at in kept if at <= int(question.facts["round"])), default=None)
        if newest is not None:
            self._runner.restore(decode(kept[newest].read_bytes()).tensors)
        return Message("restored", {"round": newest})
