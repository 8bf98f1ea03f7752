"""Several runs as one computation: other seeds, other hyper-parameters, a leading dimension in front of everything.

Runs r = 1..R of one method on problems of one shape advance together: every server variable is [R, ...], one `vmap` of
the method's own step serves all of them, and each run's numbers are those it would have alone, up to the order of
summation. It pays where a run alone leaves the processor waiting: small models, or a GPU.

What may differ between the runs: the seed (and with it data, partition and clients drawn) and the method's continuous
hyper-parameters (step sizes, radii, damping: what is a number and no whole one). What must agree is whatever decides
shapes: with `sampling: bernoulli` and participation below 1 the number of active clients differs from run to run, so
these runs cannot go together; with `fixed` they can.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from pipeline.config.spec import continuous
from pipeline.errors import UserError, not_allowed
from pipeline.methods import Algorithm, Cost, State, Step
from pipeline.methods.base import advance
from pipeline.methods.client_weighting.common import steps
from pipeline.methods.client_weighting.common.weighting_context import WeightingContext
from pipeline.oracles.functional import FunctionalOracle
from pipeline.participation import active_clients
from pipeline.problems.base import Problem


class Apart(UserError):
    """Runs that one computation cannot serve."""


@dataclass(frozen=True)
class RepeatedContext(WeightingContext):
    """One inner step of one of the runs, seen from inside `vmap`. slot: which run, a scalar per run. seeds: of all."""

    slot: Tensor = field(default_factory=lambda: torch.tensor(0))
    seeds: tuple[int, ...] = ()

    def active(self, *exchange: int) -> Tensor:
        f, when = self.federation, (self.round, self.inner, *exchange)
        if f.participation >= 1.0:
            return torch.arange(self.problem.clients)
        sets = [active_clients(self.problem.clients, f.sampling, f.participation, s, *when) for s in self.seeds]
        if len({len(ids) for ids in sets}) > 1:
            raise Apart(
                "runs with different numbers of active clients cannot be computed together."
                " Fix: federation.sampling: fixed, or run them one by one."
            )
        return torch.stack(sets).to(self.slot.device)[self.slot]

    def stream(self, purpose: str, *exchange: int) -> Any:
        alone = [dataclasses.replace(self, seed=seed) for seed in self.seeds]
        keys = [WeightingContext.stream(context, purpose, *exchange) for context in alone]
        return torch.tensor(keys, device=self.slot.device)[self.slot]

    def integer(self, purpose: str, count: int) -> int:
        alone = [WeightingContext.integer(_single(self, seed), purpose, count) for seed in self.seeds]
        if len(set(alone)) > 1:
            raise Apart(
                f"runs that draw a different {purpose} cannot be computed together."
                " Fix: a deterministic series, or run them one by one."
            )
        return alone[0]


def _single(context: RepeatedContext, seed: int) -> WeightingContext:
    names = [f.name for f in dataclasses.fields(WeightingContext)]
    return WeightingContext(**{name: getattr(context, name) for name in names} | {"seed": seed})


class Repetitions:
    """The runs, from their first contexts; `state` holds everything with the runs as leading dimension.

    broken: run -> (round, variable) of those that are no longer finite. They stay where they were and count no more.
    """

    def __init__(self, algorithm: Algorithm[Any], contexts: Sequence[WeightingContext]) -> None:
        """contexts: one per run, of one federation; UserError if their hyper-parameters differ in anything but
        continuous ones, or the optimizer is not sgd."""
        hyper = contexts[0].hyper
        if hyper.optimizer != "sgd":
            raise not_allowed(
                "optimizer", hyper.optimizer, "sgd for runs computed together", "set it to sgd, or run them one by one"
            )
        if not getattr(getattr(contexts[0].problem, "model", None), "one_pass", True):
            raise Apart("this network cannot take several runs in one pass. Fix: run them one by one.")
        self.algorithm, self.contexts = algorithm, list(contexts)
        projections = {name: partial(self._projected, project) for name, project in algorithm.projections.items()}
        self._joint = dataclasses.replace(algorithm, step=self._step, projections=projections)
        states = [algorithm.init(context) for context in contexts]
        self.state = State(_stacked([s.variables for s in states]), _stacked([s.memory for s in states]))
        self.done, self.factor, self.cost = 0, 1.0, Cost()
        self.broken: dict[int, tuple[int, str]] = {}
        self._tensors, self._rebuild = together([context.problem for context in contexts])
        like = next(iter(self.state.variables.values()))
        self._slots = torch.arange(len(contexts), device=like.device)
        self._varied = {name: like.new_tensor(values) for name, values in _varied([t.hyper for t in contexts]).items()}

    def variables(self, run: int) -> dict[str, Tensor]:
        """One run's server variables."""
        return {name: value[run] for name, value in self.state.variables.items()}

    def measured(self, run: int) -> dict[str, float]:
        """What one run's method measures of itself (`Algorithm.measures`); empty before the first round and for a
        broken run."""
        if not self.done or run in self.broken:
            return {}
        memory = {name: value[run] for name, value in self.state.memory.items()}
        report = steps.settling(dataclasses.replace(self.contexts[run], round=self.done), memory)
        return {name: float(value) for name, value in report(self.variables(run)).items()} if report else {}

    def round(self, factor: float = 1.0) -> None:
        """The next outer iteration of all runs. factor: of the step sizes (a schedule)."""
        self.done, self.factor = self.done + 1, factor
        context = dataclasses.replace(self.contexts[0], round=self.done, screen=None)
        cost, _ = advance(self._joint, self.state, context, self._move)
        self.cost += cost

    def _move(self, name: str, direction: Tensor) -> None:
        """The step of every run, [R, ...]."""
        value = self.state.variables[name]
        each = (-1, *[1] * (value.dim() - 1))
        sizes = self.algorithm.step_sizes(self._hyper(self._varied))
        size = torch.as_tensor(sizes[name], dtype=value.dtype, device=value.device)
        moved = value - self.factor * size.view(each) * direction
        finite = moved.flatten(1).sum(1).isfinite()
        if not bool(finite.all()):
            for run in (~finite).nonzero()[:, 0].tolist():
                self.broken.setdefault(run, (self.done, name))
            moved = torch.where(finite.view(each), moved, value)
        value.copy_(moved)

    def _projected(self, project: Callable[[Tensor, Any], Tensor], value: Tensor, hyper: Any) -> Tensor:
        """Every run's, [R, ...], by its own hyper-parameters."""
        if not self._varied:
            return project(value, hyper)
        return vmap(lambda one, varied: project(one, self._hyper(varied)))(value, self._varied)

    def _hyper(self, varied: dict[str, Tensor]) -> Any:
        """The hyper-parameters with tensors where they differ: of all runs, or of one within `vmap`."""
        return dataclasses.replace(self.contexts[0].hyper, **varied)

    def _step(self, state: State, context: WeightingContext) -> Step:
        """The method's inner step in every run. state, context: of all of them; `inner` alone is asked for."""
        k, factor = context.inner, self.factor
        if len(self.contexts) == 1:
            return self._step_alone(k, factor)
        first, seeds = self.contexts[0], tuple(context.seed for context in self.contexts)
        shared: dict[str, Any] = {"federation": first.federation, "seed": first.seed, "round": self.done, "inner": k}

        def one(
            variables: dict[str, Tensor], memory: dict[str, Tensor], tensors: list[Tensor], slot: Tensor, varied: Any
        ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
            hyper = self._hyper(varied)
            context = RepeatedContext(
                FunctionalOracle(self._rebuild(tensors)),
                hyper,
                **shared,
                step_sizes=self._sizes(hyper, factor),
                schedule=factor,
                slot=slot,
                seeds=seeds,
            )
            step = self.algorithm.step(State(variables, memory), context)
            costs.append(step.cost)
            return step.directions, memory

        costs: list[Cost] = []
        directions, memory = vmap(one)(state.variables, state.memory, self._tensors, self._slots, self._varied)
        state.memory.update(memory)
        return Step(directions, costs[-1])

    def _step_alone(self, k: int, factor: float) -> Step:
        """A single run needs no `vmap` and keeps its own, faster oracle."""
        context = self.contexts[0]
        sizes = self._sizes(context.hyper, factor)
        context = dataclasses.replace(context, round=self.done, inner=k, step_sizes=sizes, schedule=factor)
        memory = {name: value[0] for name, value in self.state.memory.items()}  # views: a step writes in place
        step = self.algorithm.step(State(self.variables(0), memory), context)
        return Step({name: direction[None] for name, direction in step.directions.items()}, step.cost)

    def _sizes(self, hyper: Any, factor: float) -> dict[str, Any]:
        return {name: factor * size for name, size in self.algorithm.step_sizes(hyper).items()}


@dataclass(frozen=True)
class Member:
    """One of the runs, as a run's record needs it (`pipeline.training.loop`). rounds: T."""

    runs: Repetitions
    run: int
    rounds: int

    @property
    def measured(self) -> dict[str, float]:
        return self.runs.measured(self.run)

    @property
    def algorithm(self) -> Algorithm[Any]:
        return self.runs.algorithm

    @property
    def context(self) -> WeightingContext:
        return self.runs.contexts[self.run]

    @property
    def round(self) -> int:
        return self.runs.done

    @property
    def cost(self) -> Cost:
        return self.runs.cost

    @property
    def served(self) -> dict[str, Tensor]:
        return self.runs.variables(self.run)

    @property
    def broken(self) -> tuple[int, str] | None:
        """(round, variable) if it is no longer finite."""
        return self.runs.broken.get(self.run)

    @property
    def step_sizes(self) -> dict[str, float]:
        """In force in the last round."""
        return {name: self.runs.factor * size for name, size in self.algorithm.step_sizes(self.context.hyper).items()}


def _varied(hypers: Sequence[Any]) -> dict[str, list[float]]:
    """Continuous hyper-parameters that are not the same in all runs; UserError if anything else differs."""
    names = [f.name for f in dataclasses.fields(hypers[0])]
    values = {name: [getattr(hyper, name) for hyper in hypers] for name in names}
    differ = {name: each for name, each in values.items() if any(value != each[0] for value in each)}
    for name, each in differ.items():
        if name not in continuous(type(hypers[0])):
            raise not_allowed(name, each, "the same in all runs computed together", "run them one by one")
    return differ


def _stacked(parts: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.stack([part[name] for part in parts]) for name in parts[0]}


def together(problems: Sequence[Problem]) -> tuple[list[Tensor], Callable[[list[Tensor]], Any]]:
    """(every tensor that differs between the problems, stacked; the problem made of one slice of each).

    Problems are dataclasses, possibly of dataclasses. Apart if they differ in shape.
    """
    tensors: list[Tensor] = []

    def collect(parts: Sequence[Any]) -> Callable[[list[Tensor]], Any]:
        first = parts[0]
        if isinstance(first, Tensor):
            if any(part.shape != first.shape for part in parts):
                raise Apart(
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


def with_tensors_of(first: Any, other: Any) -> Any:
    """The second problem with the first one's tensors wherever both hold the same numbers: once in memory."""
    if isinstance(first, Tensor) and isinstance(other, Tensor):
        return first if first.shape == other.shape and torch.equal(first, other) else other
    if dataclasses.is_dataclass(other) and type(first) is type(other) and not isinstance(other, type):
        names = [f.name for f in dataclasses.fields(other)]
        parts = {name: with_tensors_of(getattr(first, name), getattr(other, name)) for name in names}
        return dataclasses.replace(other, **parts)
    return other
