"""What a client-weighting method may ask: minibatches of clients and server, derivatives at one shared w."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from pipeline.methods.base import StepContext
from pipeline.oracles.shared import SharedOracle
from pipeline.oracles.weighting import ORACLES, Oracle
from pipeline.problems.base import Batch, WeightingProblem


@dataclass(frozen=True)
class WeightingContext(StepContext):
    """One inner step of a method of this family."""

    oracles: ClassVar[Mapping[str, Callable[[Any], Any]]] = ORACLES
    shared = SharedOracle

    oracle: Oracle

    @property
    def problem(self) -> WeightingProblem:
        return self.oracle.problem

    def batch(self, purpose: str, clients: Tensor, size: int, *exchange: int) -> Batch:
        """A minibatch per client; different purposes, and exchanges of one step, are independent."""
        return self.oracle.draw(self.stream(purpose, *exchange), clients, size)

    def validation(self) -> Batch:
        """The server's minibatch of this step."""
        return self.problem.draw_validation(self.stream("validation"))
