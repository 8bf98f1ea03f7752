"""The federated bilevel loop without Lightning, in memory, one process; and what every loop shares: schedules,
optimizers, the row of a round, what is said when a number is no longer finite.

For many short runs of small models, where what surrounds a round would cost more than the round. Its numbers are the
Lightning module's to the last bit: both take `advance` and the steps of the optimizers below.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from pipeline.errors import UserError
from pipeline.methods.base import Algorithm, Cost, State, StepContext, advance
from pipeline.training.history import Row
from pipeline.training.tasks import Measure


class Options(Protocol):
    """What a loop itself reads of the hyper-parameters of a method that moves "w"."""

    @property
    def optimizer(self) -> str: ...

    @property
    def momentum(self) -> float: ...


def schedule(kind: str, rounds: int) -> Callable[[int], float]:
    """Factor of all step sizes after t of T rounds: 1, or (1 + cos(pi t / T)) / 2."""
    if kind == "constant":
        return lambda t: 1.0
    return lambda t: 0.5 * (1.0 + math.cos(math.pi * t / rounds))


def schedule_of(variable: str, algorithm: Algorithm[Any], hyper: Any, rounds: int) -> Callable[[int], float]:
    """Factor of that variable's step size after t rounds."""
    return schedule("constant" if variable in algorithm.assigned else hyper.schedule, rounds)


def sizes_of(algorithm: Algorithm[Any], hyper: Any, variables: Iterable[str]) -> dict[str, float]:
    """Step sizes before any schedule, of the variables that the problem at hand has."""
    held = set(variables)
    return {name: size for name, size in algorithm.step_sizes(hyper).items() if name in held}


def optimizer_of(variable: str, hyper: Options, value: Tensor, size: float) -> torch.optim.Optimizer:
    """The model w is moved as the options say, every other variable by plain steps."""
    kind = hyper.optimizer if variable == "w" else "sgd"
    if kind in ("sgd", "momentum"):
        return torch.optim.SGD([value], lr=size, momentum=hyper.momentum if kind == "momentum" else 0.0)
    if kind == "adagrad":
        return torch.optim.Adagrad([value], lr=size)
    return torch.optim.Adam([value], lr=size)


class Loop:
    """A run. context: the template of every step's; rounds: T, for the schedule.

    round: outer iterations done. cost: so far. measured: the method's measures in the last round.
    """

    def __init__(self, algorithm: Algorithm[Any], context: StepContext, rounds: int) -> None:
        self.algorithm, self.context, self.rounds = algorithm, context, rounds
        state = algorithm.init(context)
        self.state = State({name: value.detach().clone() for name, value in state.variables.items()}, state.memory)
        self.round, self.cost = 0, Cost()
        self.measured: dict[str, float] = {}
        self._sizes = sizes_of(algorithm, context.hyper, self.state.variables)
        self._factors = {name: schedule_of(name, algorithm, context.hyper, rounds) for name in self._sizes}
        self._optimizers = {
            name: optimizer_of(name, context.hyper, self.state.variables[name], size)
            for name, size in self._sizes.items()
        }

    @property
    def step_sizes(self) -> dict[str, float]:
        """Per variable to be moved, in force in the coming round."""
        return {name: size * self._factors[name](self.round) for name, size in self._sizes.items()}

    def step(self) -> None:
        """One outer iteration. Raises NotFinite if a variable no longer is."""
        factor = schedule(self.context.hyper.schedule, self.rounds)(self.round)
        sizes = self.step_sizes
        for name, size in sizes.items():
            self._optimizers[name].param_groups[0]["lr"] = size
        context = dataclasses.replace(self.context, round=self.round + 1, step_sizes=sizes, schedule=factor)
        cost, measured = advance(self.algorithm, self.state, context, self._move)
        self.cost, self.measured = self.cost + cost, measured or self.measured
        self.round += 1

    def state_dict(self) -> dict[str, Any]:
        """All that `load_state_dict` needs to go on from here; tensors, numbers and lists."""
        return {
            "round": self.round,
            "cost": dataclasses.asdict(self.cost),
            "measured": self.measured,
            "variables": dict(self.state.variables),
            "memory": dict(self.state.memory),
            "optimizers": {name: optimizer.state_dict() for name, optimizer in self._optimizers.items()},
        }

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        self.round, self.cost, self.measured = saved["round"], Cost(**saved["cost"]), saved["measured"]
        for kept, values in ((self.state.variables, saved["variables"]), (self.state.memory, saved["memory"])):
            for name, value in values.items():
                kept[name].copy_(value)
        for name, optimizer in self._optimizers.items():
            optimizer.load_state_dict(saved["optimizers"][name])

    def _move(self, name: str, direction: Tensor) -> None:
        value = self.state.variables[name]
        value.grad = direction
        self._optimizers[name].step()
        require_finite(name, value, self.round + 1, self.step_sizes, self.context.hyper)


def require_finite(name: str, value: Tensor, round_: int, sizes: Mapping[str, float], hyper: Any) -> None:
    """Raises NotFinite. A sum is finite only if every entry is (overflow of the sum itself is a run gone wrong as
    well)."""
    if not math.isfinite(float(value.detach().sum())):
        raise no_longer_finite(round_, name, sizes, hyper)


# ---------------------------------------------------------------------------------------- the record of a round


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
