"""Which model a run hands over: the last one, or the best one if the last is clearly worse on the selection set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from torch import Tensor

from pipeline.problems.base import Variables

SELECTION = "selection_accuracy"
"""The measure that decides; a task without a selection set has none."""
MARGIN = 0.02
"""How far the selection accuracy may fall from its best evaluation to the last one."""


@dataclass(frozen=True)
class Served:
    """What is saved and served: the server's variables after that round."""

    round: int
    variables: dict[str, Tensor]


@dataclass
class Best:
    """The best evaluation so far by selection accuracy, the latest one on ties. Without a selection set it stays empty.

    accuracy: there; last: at the last evaluation, both in [0, 1]. variables: the server's there, on the host.
    """

    round: int = 0
    accuracy: float = -1.0
    last: float = -1.0
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
    return best - last > MARGIN + 1e-9
