"""Which model a run hands over: the last one, or the best one if the last is clearly worse on the selection set."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from torch import Tensor

from pipeline.problems.base import Variables

SELECTION, SELECTION_NUMBERS = "selection_accuracy", "selection_r2"
"""The measure that decides, of classes and of numbers; a task without a selection set has none."""
MARGIN = 0.02
"""How far it may fall from its best evaluation to the last one."""


def selection_measure(classes: int) -> str:
    """The one that decides; classes: 0 where targets are numbers."""
    return SELECTION if classes else SELECTION_NUMBERS


def selection_of(row: Mapping[str, Any]) -> float | None:
    """Its value in a row of the history; None without one."""
    found: float | None = row.get(SELECTION, row.get(SELECTION_NUMBERS))
    return found


@dataclass(frozen=True)
class Served:
    """What is saved and served: the server's variables after that round."""

    round: int
    variables: dict[str, Tensor]


@dataclass
class Best:
    """The best evaluation so far by selection accuracy, the latest one on ties. Without a selection set it stays empty.

    accuracy (or R2): there; last: at the last evaluation, both at most 1. variables: the server's there, on the host.
    """

    round: int = 0
    accuracy: float = -math.inf
    last: float = -math.inf
    variables: dict[str, Tensor] = field(default_factory=dict)

    def see(self, round_: int, accuracy: float | None, variables: Variables) -> None:
        """One evaluation. accuracy: on the selection set; None without one."""
        if accuracy is None:
            return
        self.last = accuracy
        if accuracy >= self.accuracy:
            self.round, self.accuracy = round_, accuracy
            self.variables = {name: value.detach().to("cpu", copy=True) for name, value in variables.items()}

    def served(self, round_: int, variables: Mapping[str, Tensor]) -> Served:
        """Of a run that ended after that round with these variables."""
        if not fell(self.accuracy, self.last):
            return Served(round_, dict(variables))
        return Served(self.round, {name: self.variables[name].to(value.device) for name, value in variables.items()})

    def state_dict(self) -> dict[str, Any]:
        """For `Best(**state)`."""
        return asdict(self)


def fell(best: float, last: float) -> bool:
    """Whether an accuracy fell by more than the margin; a fall of just the margin, rounded, is none."""
    return best > -math.inf and best - last > MARGIN + 1e-9
