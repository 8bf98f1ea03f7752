"""What a method with local steps may ask: the active clients, their minibatches, shares in a mean, and what it costs.

One outer iteration is one exchange: the active clients receive the server's model, take their local steps and answer.

| | here | shape |
|---|---|---|
| this round's n clients | `context.participants` | [n] |
| those of them simulated in this process: all, unless the run is spread over several | `context.cohort()` | [m] |
| sum, mean over all n, of rows of those simulated here | `context.total(rows.sum(0))`, `context.mean(rows)` | [d] |
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from pipeline import randomness
from pipeline.config.spec import Auto, PositiveInt, Section, param
from pipeline.methods.base import Cost, Family, PerClientContext
from pipeline.oracles.local import LOCAL_ORACLES, LocalOracle
from pipeline.oracles.screened import ScreenedLocal
from pipeline.oracles.shared import SharedLocal
from pipeline.problems.base import Batch, LocalProblem, WeightedLocalProblem
from pipeline.problems.forms import Form


@dataclass(frozen=True)
class LocalOptions(Section):
    """What every method with local steps has in common: how a client trains between two exchanges.

    main_step_size: the one to lower first when a run diverges. momentum, schedule:
    of the server; the step size of the clients has its own decay, the server's is constant. served: the server's
    variable that the method returns as its model.
    """

    main_step_size: ClassVar[str] = "eta"
    schedule: ClassVar[str] = "constant"
    served: ClassVar[str] = "w"

    eta: float = param(0.1, "step size of the clients' local steps", gt=0, symbol="eta_0")
    eta_decay: float = param(0.998, "eta is multiplied by this after every round", gt=0, le=1)
    local_steps: int = param(5, "minibatch steps of a client per round", ge=1, symbol="K")
    local_epochs: int = param(
        0,
        "0 = local_steps minibatches drawn with replacement; more = that many passes over the client's shuffled"
        " samples instead, the last batch of a pass short",
        ge=0,
    )
    weight_decay: float = param(0.001, "adds this times the client's model to every local step", ge=0)
    clip_norm: float = param(
        10.0, "longest gradient of a local step, over all parameters jointly; 0 = no clipping", ge=0
    )
    clip_mode: Literal["loss", "simulator"] = param(
        "loss",
        "what is clipped: loss = the gradient of the loss alone; simulator = with the dual and the proximal anchor, as"
        " in the authors' simulator",
    )
    clients_at_once: PositiveInt | Auto = param(
        "auto",
        "clients trained in one batched pass; auto = all that fit into 4 GiB, but one by one for convolutions on a CPU,"
        " where that was measured faster",
    )
    optimizer: Literal["sgd", "momentum", "adam", "adagrad"] = param(
        "sgd", "torch optimizer of the server, which takes the clients' mean change for a gradient"
    )


@dataclass(frozen=True)
class LocalContext(PerClientContext):
    """One round of a method of this family."""

    oracles: ClassVar[Mapping[str, Callable[[Any], Any]]] = LOCAL_ORACLES
    shared = SharedLocal
    screened = ScreenedLocal

    oracle: LocalOracle

    @property
    def problem(self) -> LocalProblem:
        return self.oracle.local

    @property
    def weighting(self) -> bool:
        """Whether clients have weights (the problem has a validation loss), instead of equal or proportional shares."""
        return isinstance(self.problem, WeightedLocalProblem)

    @property
    def eta(self) -> float:
        """eta_t = eta_0 decay^t with t = 0 in the first round."""
        return self.hyper.eta * self.hyper.eta_decay ** (self.round - 1)

    @cached_property
    def participants(self) -> Tensor:
        """Ids of this round's clients, [n], where the data are; those with most local steps first."""
        active = self.active().to(self.problem.samples.device)
        if not self.hyper.local_epochs:
            return active
        return active[self.problem.samples[active].argsort(descending=True, stable=True)]

    @cached_property
    def here(self) -> Tensor:
        """Which of them are simulated in this process: positions in `participants`, [m]."""
        return self.share.own(self.participants)

    def cohort(self) -> Tensor:
        """Ids of this round's clients that are simulated in this process, [m], in that order."""
        return self.participants[self.here]

    def mean(self, rows: Tensor) -> Tensor:
        """Over all of this round's clients, of a row for each in the cohort, [m, ...] -> [...]."""
        return self.total(rows.sum(0)) / len(self.participants)

    def batches(self, clients: Tensor) -> Iterator[tuple[int, Batch]]:
        """Local step by local step: how many of the clients (the first ones) take it, and their minibatches.

        K minibatches with replacement; or, with local epochs, the client's samples in random order, where clients with
        few samples are done early and the last minibatch of a pass may be short.
        """
        if not len(clients):
            return
        size = self.federation.batch_size
        if not self.hyper.local_epochs:
            for k in range(1, self.hyper.local_steps + 1):
                yield len(clients), self.problem.draw(self.stream("local step", k), clients, size)
            return
        samples = self.problem.samples[clients]
        held = samples.tolist()
        for epoch in range(1, self.hyper.local_epochs + 1):
            order = randomness.permutations(self.stream("shuffle", epoch), clients, samples)
            for first in range(0, held[0], size):
                count = sum(n > first for n in held)
                rows, last = slice(0, count), min(first + size, held[0])
                present = None
                if held[count - 1] < last:
                    present = torch.arange(first, last, device=samples.device) < samples[rows, None]
                stream = self.stream("local step", epoch, first)
                yield count, self.problem.take(stream, clients[rows], order[rows, first:last], present)

    def shares(self, clients: Tensor, like: Tensor) -> Tensor:
        """Of each of the clients in a mean over them, [n]: equal, or in proportion to samples. like: whose dtype."""
        samples = self.problem.samples[clients].to(like)
        if self.federation.aggregation == "uniform":
            samples = torch.ones_like(samples)
        return samples / samples.sum()

    def cost(self, clients: Tensor, gradients: int, *, down: int, up: int) -> Cost:
        """Of one exchange with these clients. down, up: how many d-vectors each client is sent and sends."""
        moved = self.problem.dimension * len(clients)
        return Cost(1, floats_up=up * moved, floats_down=down * moved, gradients=gradients)


CONSENSUS = Family(
    name="consensus",
    context=LocalContext,
    options=LocalOptions,
    solves=(Form.LOCAL_MEAN,),
    made_for="consensus",
    otherwise="its duals or control variates belong to the plain mean of the clients' losses",
)
