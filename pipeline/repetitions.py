"""Several runs as one computation: other seeds, other step sizes, a leading dimension in front of everything.

Runs r = 1..R of one method on problems of one shape advance together: every server variable is [R, ...], one `vmap` of
the method's own step serves all of them, and each run's numbers are those it would have alone, up to the order of
summation. It pays where a run alone leaves the processor waiting: small models, or a GPU.

What may differ between the runs: the seed (and with it data, partition and clients drawn) and the step sizes. What must
agree is whatever decides shapes: with `sampling: bernoulli` and participation below 1 the number of active clients
differs from run to run, so these runs cannot go together; with `fixed` they can.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from pipeline.algorithms import Algorithm, Cost, State
from pipeline.algorithms.client_weighting.turn import WeightingTurn
from pipeline.errors import UserError, not_allowed
from pipeline.oracles.functional import FunctionalOracle
from pipeline.participation import active_clients
from pipeline.problems.base import Problem


@dataclass(frozen=True)
class RepeatedTurn(WeightingTurn):
    """One inner step of one of the runs, seen from inside `vmap`. slot: which run, a scalar per run. seeds: of all."""

    slot: Tensor = field(default_factory=lambda: torch.tensor(0))
    seeds: tuple[int, ...] = ()

    def active(self, *exchange: int) -> Tensor:
        f, when = self.federation, (self.round, self.inner, *exchange)
        if f.participation >= 1.0:
            return torch.arange(self.problem.clients)
        sets = [active_clients(self.problem.clients, f.sampling, f.participation, s, *when) for s in self.seeds]
        if len({len(ids) for ids in sets}) > 1:
            raise UserError(
                "runs with different numbers of active clients cannot be computed together."
                " Fix: federation.sampling: fixed, or run them one by one."
            )
        return torch.stack(sets).to(self.slot.device)[self.slot]

    def stream(self, purpose: str, *exchange: int) -> Any:
        alone = [dataclasses.replace(self, seed=seed) for seed in self.seeds]
        keys = [WeightingTurn.stream(turn, purpose, *exchange) for turn in alone]
        return torch.tensor(keys, device=self.slot.device)[self.slot]

    def integer(self, purpose: str, count: int) -> int:
        alone = [WeightingTurn.integer(_single(self, seed), purpose, count) for seed in self.seeds]
        if len(set(alone)) > 1:
            raise UserError(
                f"runs that draw a different {purpose} cannot be computed together."
                " Fix: a deterministic series, or run them one by one."
            )
        return alone[0]


def _single(turn: RepeatedTurn, seed: int) -> WeightingTurn:
    names = [f.name for f in dataclasses.fields(WeightingTurn)]
    return WeightingTurn(**{name: getattr(turn, name) for name in names} | {"seed": seed})


class Repetitions:
    """The runs, from their first turns; `state` holds everything with the runs as leading dimension."""

    def __init__(
        self, algorithm: Algorithm[Any], turns: Sequence[WeightingTurn], step_sizes: Mapping[str, Sequence[float]]
    ) -> None:
        """turns: of the same hyper-parameters and federation, one per run. step_sizes: per variable, one for each."""
        optimizer = turns[0].hyper.optimizer
        if optimizer != "sgd":
            raise not_allowed("optimizer", optimizer, "sgd for runs computed together", "run them one by one")
        self.algorithm, self.turns = algorithm, list(turns)
        states = [algorithm.init(turn) for turn in turns]
        self.state = State(_stacked([s.variables for s in states]), _stacked([s.memory for s in states]))
        self.cost = Cost()
        self._problems = [turn.problem for turn in turns]
        self._tensors, self._rebuild = together(self._problems)
        self._slots = torch.arange(len(turns), device=next(iter(self.state.variables.values())).device)
        self._sizes = {
            name: torch.tensor(list(sizes), dtype=self.state.variables[name].dtype, device=self._slots.device)
            for name, sizes in step_sizes.items()
        }

    def variables(self, run: int) -> dict[str, Tensor]:
        """One run's server variables."""
        return {name: value[run] for name, value in self.state.variables.items()}

    def round(self, t: int, factor: float = 1.0) -> None:
        """Outer iteration t of all runs. factor: of the step sizes (a schedule)."""
        hyper = self.turns[0].hyper
        for k in range(1, self.algorithm.inner_steps(hyper) + 1):
            directions = self._step(t, k, factor)
            for name, direction in directions.items():
                value = self.state.variables[name]
                size = factor * self._sizes[name].view(-1, *[1] * (value.dim() - 1))
                project = self.algorithm.projections.get(name)
                moved = value - size * direction
                self.state.variables[name] = project(moved, hyper) if project else moved

    def _step(self, t: int, k: int, factor: float) -> dict[str, Tensor]:
        if len(self.turns) == 1:
            return self._step_alone(t, k, factor)
        first, seeds = self.turns[0], tuple(turn.seed for turn in self.turns)
        shared = {"hyper": first.hyper, "federation": first.federation, "seed": first.seed, "round": t, "inner": k}

        def one(
            variables: dict[str, Tensor], memory: dict[str, Tensor], tensors: list[Tensor], slot: Tensor, sizes: Any
        ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
            oracle = FunctionalOracle(self._rebuild(tensors))
            turn = RepeatedTurn(oracle, **shared, step_sizes=sizes, slot=slot, seeds=seeds)
            step = self.algorithm.step(State(variables, memory), turn)
            self._last = step.cost
            return step.directions, memory

        sizes = {name: factor * size for name, size in self._sizes.items()}
        directions, memory = vmap(one)(self.state.variables, self.state.memory, self._tensors, self._slots, sizes)
        self.state.memory.update(memory)
        self.cost += self._last
        return directions

    def _step_alone(self, t: int, k: int, factor: float) -> dict[str, Tensor]:
        """A single run needs no `vmap` and keeps its own, faster oracle."""
        sizes = {name: factor * float(size[0]) for name, size in self._sizes.items()}
        turn = dataclasses.replace(self.turns[0], round=t, inner=k, step_sizes=sizes)
        memory = {name: value[0] for name, value in self.state.memory.items()}  # views: a step writes in place
        step = self.algorithm.step(State(self.variables(0), memory), turn)
        self.cost += step.cost
        return {name: direction[None] for name, direction in step.directions.items()}


def _stacked(parts: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.stack([part[name] for part in parts]) for name in parts[0]}


def together(problems: Sequence[Problem]) -> tuple[list[Tensor], Callable[[list[Tensor]], Any]]:
    """(every tensor that differs between the problems, stacked; the problem made of one slice of each).

    Problems are dataclasses, possibly of dataclasses. UserError if they differ in shape.
    """
    tensors: list[Tensor] = []

    def collect(parts: Sequence[Any]) -> Callable[[list[Tensor]], Any]:
        first = parts[0]
        if isinstance(first, Tensor):
            if any(part.shape != first.shape for part in parts):
                raise UserError(
                    "runs whose clients hold different numbers of samples cannot be computed together."
                    " Fix: run them one by one."
                )
            if all(part is first or torch.equal(part, first) for part in parts):
                return lambda slices: first
            tensors.append(torch.stack(list(parts)))
            place = len(tensors) - 1
            return lambda slices: slices[place]
        if dataclasses.is_dataclass(first) and not isinstance(first, type):
            made = {f.name: collect([getattr(part, f.name) for part in parts]) for f in dataclasses.fields(first)}
            return lambda slices: dataclasses.replace(first, **{name: make(slices) for name, make in made.items()})
        return lambda slices: first

    return tensors, collect(problems)
