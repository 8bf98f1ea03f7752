"""A run's state after a round as a row of its record; the same whether the run goes alone or with others."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from pipeline.errors import UserError
from pipeline.methods import Algorithm, Cost, StepContext
from pipeline.training.history import Row
from pipeline.training.tasks import Measure


class NotFinite(UserError):
    """A loss or a state variable is no longer a finite number."""


class Running(Protocol):
    """A run as far as it has come. measured: the method's measures in the last round."""

    @property
    def round(self) -> int: ...

    @property
    def rounds(self) -> int: ...

    @property
    def cost(self) -> Cost: ...

    @property
    def measured(self) -> dict[str, float]: ...

    @property
    def algorithm(self) -> Algorithm[Any]: ...

    @property
    def context(self) -> StepContext: ...


def evaluates(run: Running, every: int) -> bool:
    """Every `every` rounds, and after the last."""
    return run.round % every == 0 or run.round == run.rounds


def row_of(
    run: Running, variables: Mapping[str, Tensor], seconds: float, measure: Measure | None
) -> tuple[Row, np.ndarray | None]:
    """(the row, the clients' weights [N] or None). variables: the server's, what is served where the row is evaluated.
    measure: None for a row that is not.

    Raises NotFinite if an evaluation is not a finite number.
    """
    row: Row = {"round": run.round, "seconds": round(seconds, 4), **vars(run.cost)}
    row |= {name: float(report(variables)) for name, report in run.algorithm.reports.items()}
    row |= run.measured
    row["answers_left_out"] = len(run.context.screen.left_out) if run.context.screen else 0
    if measure:
        measured = measure(variables)
        for name, value in measured.items():
            if not math.isfinite(value):
                raise NotFinite(
                    f"round {run.round}: the {name.replace('_', ' ')} is {value}.{_advice(run.context.hyper)}"
                )
        row |= measured
    weights = run.context.problem.client_weights(variables)
    return row, None if weights is None else weights.cpu().numpy()


def no_longer_finite(round_: int, variable: str, sizes: Mapping[str, float], hyper: Any) -> NotFinite:
    """The complaint about a variable that is no longer finite. sizes: step sizes in force in that round."""
    used = ", ".join(f"{name} {size:.3g}" for name, size in sizes.items())
    return NotFinite(
        f"round {round_}: the variable {variable} is no longer finite; step sizes were {used}.{_advice(hyper)}"
    )


def _advice(hyper: Any) -> str:
    return f" Fix: lower the method's step sizes, {hyper.main_step_size} first."
