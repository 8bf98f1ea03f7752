"""A test bed: clients that send something else than what they computed. Nothing outside this study uses it.

    sent_i = k_i answer_i        k = 10: a scaled update, k = -1: one with its sign flipped, k = 1: an honest client

An answer at the server's model (gradient, product, inner product, loss) is linear in the client's loss, so there the
loss is multiplied. With local steps the client trains honestly and multiplies its model's change. Screening sees what
is sent.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from pipeline.methods.base import StepContext
from pipeline.methods.consensus.common import local_training
from pipeline.methods.consensus.common.local_context import LocalContext
from pipeline.methods.consensus.common.local_training import Rule, Trained
from pipeline.oracles.local import FusedLocal
from pipeline.oracles.screening import Screen
from pipeline.problems.client_weighting import ClientWeighting
from pipeline.problems.general_weighting import GeneralImageWeighting
from pipeline.problems.images import ImageBatch


@dataclass(frozen=True)
class Lying(ClientWeighting):
    """The problem as the clients' answers tell it. factors: k_i, [N]. A minibatch ends with those of its clients."""

    factors: Tensor | None = None

    def draw(self, stream: int, clients: Tensor, size: int) -> ImageBatch:
        assert self.factors is not None
        return (*super().draw(stream, clients, size), self.factors[clients])

    def losses(self, w: Tensor, batch: ImageBatch) -> Tensor:
        return batch[-1] * super().losses(w, batch[:-1])

    def losses_each(self, W: Tensor, batch: ImageBatch) -> Tensor:
        return batch[-1] * super().losses_each(W, batch[:-1])

    @property
    def honest(self) -> ClientWeighting:
        """The problem as it is."""
        return ClientWeighting(self.model, self.data, self.l2, self.validation_batch)


class LyingLocal(FusedLocal):
    """Clients with local steps."""

    def __init__(self, problem: Lying) -> None:
        super().__init__(problem)
        self._problem, self._honest = problem, FusedLocal(problem.honest)

    def train(self, context: LocalContext, start: Tensor, clients: Tensor, rule: Rule) -> Trained:
        """`local_training.train`, and what the clients say of it."""
        trained = local_training.train(replace(context, oracle=self._honest, screen=None), start, clients, rule)
        assert self._problem.factors is not None
        change = self._problem.factors[clients][:, None] * (trained.models - start)
        context.watch("change", clients, torch.linalg.vector_norm(change, dim=1))
        context.judge()
        return replace(trained, models=start + change)


def oracle(kind: type[StepContext], problem: Lying, screen: Screen | None) -> Any:
    """What a method of that family of contexts asks. screen: None = all answers count."""
    if issubclass(kind, LocalContext):
        made = LyingLocal(problem)
        if screen is None:
            return made
        screened: Any = LocalContext.screened(made, screen)
        screened.train = made.train
        return screened
    made_for: Any = problem if kind.__name__ == "WeightingContext" else GeneralImageWeighting(problem)
    found = kind.oracles["fused"](made_for)
    return kind.screened(found, screen) if kind.screened and screen else found
