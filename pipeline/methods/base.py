"""What a method is: a record of pure functions on tensors.

The training loop owns everything else (optimizers, schedules, checkpoints, logging). One outer iteration ("round") is
K inner steps. Each inner step asks the method for a direction per server variable, lets that variable's optimizer take
`variable - step_size * direction`, and projects it back onto its set: `advance`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Generic, Self, TypeVar

import torch
from torch import Tensor

from pipeline import randomness
from pipeline.errors import UserError
from pipeline.oracles.screening import LeftOut, NoAnswers, Screen
from pipeline.participation import active_clients
from pipeline.problems.base import Problem
from pipeline.problems.forms import Form
from pipeline.sharing import Share


@dataclass(frozen=True)
class Cost:
    """What has been spent so far; cumulative over clients and rounds.

    communication_rounds: exchanges (server to clients and back). floats_up, floats_down: real numbers sent by and to
    all active clients. gradients, hvps: minibatch gradients and Hessian-vector products computed by clients.
    """

    communication_rounds: int = 0
    floats_up: int = 0
    floats_down: int = 0
    gradients: int = 0
    hvps: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))


@dataclass(frozen=True)
class Participation:
    """Who takes part and with how much data; see params.yaml. robust: what stands in for the mean of clients' changes
    (`pipeline.methods.consensus.robust`); None = the mean."""

    sampling: str = "bernoulli"
    participation: float = 1.0
    batch_size: int = 64
    aggregation: str = "uniform"
    robust: Any = None


@dataclass(frozen=True)
class StepContext:
    """One inner step as a method sees it: where the run stands, and access to clients, samples and derivatives.

    Each family of methods has its own: what it may ask of the problem differs. oracles: its derivatives, by
    `train.backend`.

    Everything random is a pure function of (seed, round, inner step, purpose): asking again gives the same clients and
    samples, so a method that needs a past step's draws again draws them again. step_sizes: per variable, in force in
    this round (the schedule included), for methods whose derivation contains them. schedule: the factor of all step
    sizes in this round, for steps that clients take on their own. share: this process among those of the run. screen:
    judges clients' answers; None = all count. absent: ids of clients that cannot be reached.
    """

    oracles: ClassVar[Mapping[str, Callable[[Any], Any]]] = {}
    shared: ClassVar[type | None] = None  # around the oracle, where processes share out what it answers
    screened: ClassVar[type | None] = None  # around that, where answers are screened

    @classmethod
    def oracle_for(cls, problem: Problem, backend: str, share: Share, screen: Screen | None = None) -> Any:
        """The family's derivatives of the problem, as the processes of the run share them."""
        oracle = cls.oracles[backend](problem)
        oracle = cls.shared(oracle, share) if cls.shared and share.ranks > 1 else oracle
        return cls.screened(oracle, screen) if cls.screened and screen else oracle

    oracle: Any
    hyper: Any
    federation: Participation
    seed: int
    round: int = 1  # t, from 1
    inner: int = 1  # k, from 1
    step_sizes: Mapping[str, float] = field(default_factory=dict)
    schedule: float = 1.0
    share: Share = field(default_factory=Share)
    screen: Screen | None = None
    absent: frozenset[int] = frozenset()

    @property
    def problem(self) -> Problem:
        return self.oracle.problem

    def constrain(self, variable: str, value: Tensor) -> Tensor:
        """The value on the set where the problem wants that server variable; any value is allowed unless it says so."""
        return value

    def at(self, inner: int) -> Self:
        """Another inner step of this outer iteration."""
        return replace(self, inner=inner)

    def active(self, *exchange: int) -> Tensor:
        """Ids of the clients active in this step, [n], on the host, but for those whose answers are left out.
        exchange: which one, where a step has several."""
        f = self.federation
        when = (self.round, self.inner, *exchange)
        drawn = active_clients(self.problem.clients, f.sampling, f.participation, self.seed, *when)
        drawn = self._reachable(drawn) if self.absent else drawn
        return self.screen.present(drawn, (self.round, self.inner)) if self.screen else drawn

    def watch(self, kind: str, clients: Tensor, sizes: Tensor) -> None:
        """Answers of these clients [n] came in, of these sizes [n] (`pipeline.oracles.screening`)."""
        if self.screen:
            self.screen.watch(kind, clients, sizes)

    def judge(self) -> None:
        """Before answers are remembered: if one of them does not count, the step ends here and is taken again."""
        if self.screen:
            self.screen.judge()

    def neutral(self, values: Tensor) -> Tensor:
        """A number per client [N], where those left out have the mean of the others."""
        return self.screen.neutral(values) if self.screen else values

    def settled(self, name: str, direction: Tensor) -> Tensor:
        """The direction of a server variable as the problem wants it."""
        return direction

    def _reachable(self, drawn: Tensor) -> Tensor:
        """Of the clients drawn, those that can be reached; if none can, all others that can."""
        there = torch.ones(self.problem.clients, dtype=torch.bool)
        there[list(self.absent)] = False
        return drawn[there[drawn]] if there[drawn].any() else there.nonzero()[:, 0]

    def batch_size(self, chosen: int | str) -> int:
        """Of a method's own minibatch; `auto` = federation.batch_size. Settled here, so that a method's defaults serve
        without a params.yaml."""
        return chosen if isinstance(chosen, int) else self.federation.batch_size

    def integer(self, purpose: str, count: int) -> int:
        """Uniform on 0..count-1, on the host."""
        return int(randomness.positions(self.stream(purpose), torch.zeros(1).long(), torch.tensor([count]), 1))

    def total(self, part: Tensor) -> Tensor:
        """A sum over clients, whose part over those simulated here is given."""
        return self.share.total(part)[0]

    def spent(self, cost: Cost) -> Cost:
        """What a step has cost in all processes together; `cost` is what the method says."""
        return cost

    def stream(self, purpose: str, *exchange: int) -> int:
        """The random stream of this step and purpose."""
        return randomness.key(self.seed, purpose, self.round, self.inner, *exchange)


@dataclass(frozen=True)
class PerClientContext(StepContext):
    """For methods that hold a row per client (its model, its point, its dual): each process works on the clients it
    simulates, completes every sum over clients by `total`, and counts what its own clients cost."""

    def spent(self, cost: Cost) -> Cost:
        up, down, gradients, hvps = self.share.counts(cost.floats_up, cost.floats_down, cost.gradients, cost.hvps)
        return Cost(cost.communication_rounds, up, down, gradients, hvps)


ContextT = TypeVar("ContextT", bound=StepContext)


@dataclass(frozen=True)
class State:
    """variables: the server's; optimizers move those that have a step size. memory: what else the method keeps; a step
    may update it in place."""

    variables: dict[str, Tensor]
    memory: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Step:
    """What one inner step hands back. directions: per variable to be moved. cost: `StepContext.spent` completes it.
    report: the method's `measures` of this step, as scalars, from the server's variables once they have moved; asked
    for by every process."""

    directions: dict[str, Tensor]
    cost: Cost
    report: Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]] | None = None


@dataclass(frozen=True)
class Family(Generic[ContextT]):
    """Methods that ask the same of a problem.

    context: their kind of context. options: what their hyper-parameters derive from. solves: the forms of a problem
    they take, the preferred one first. made_for: the problem that `problem: auto` means. otherwise: why they fit no
    problem of another form.
    """

    name: str
    context: type[ContextT]
    options: type[Any]
    solves: tuple[Form, ...]
    made_for: str
    otherwise: str


def anything_goes(name: str, options: Any, params: Any, problem: str) -> None:
    """The check of a method that works with all its settings."""


@dataclass(frozen=True, kw_only=True)
class Algorithm(Generic[ContextT]):
    """A method.

    name: in params.yaml. summary: what it is, in a line. options: the record of its hyper-parameters,
    `algorithms.<name>`. check(name, options, params, problem): UserError for settings that cannot work; params as
    params.yaml has them, with the problem in use beside. general_form: the method that its name means on problems of
    another form, if there is one.

    init(context) -> State; step(state, context) -> Step; step_sizes(hyper) -> one per variable to be moved (those that
    the problem at hand leaves out are ignored); inner_steps(hyper) -> how many steps make an outer iteration (K, or
    K + 1 where x's direction needs the model after its K-th update); projections: per constrained variable, (value,
    hyper) -> projected value. assigned: variables whose direction is old - new; they take steps of size 1 whatever the
    schedule, which their local steps follow already. client_rows: memory [N, ...] with a row per client, which several
    processes share out: each keeps the rows of the clients it simulates, and 0 for the others. reports: scalars worth
    a curve, of the server's variables after a round. measures: names of the scalars that `Step.report` yields.
    """

    name: str
    summary: str
    family: Family[ContextT]
    options: type[Any]
    init: Callable[[ContextT], State]
    step: Callable[[State, ContextT], Step]
    step_sizes: Callable[[Any], dict[str, float]]
    inner_steps: Callable[[Any], int] = lambda hyper: 1
    projections: Mapping[str, Callable[[Tensor, Any], Tensor]] = field(default_factory=dict)
    assigned: frozenset[str] = frozenset()
    client_rows: frozenset[str] = frozenset()
    reports: Mapping[str, Callable[[Mapping[str, Tensor]], Tensor]] = field(default_factory=dict)
    measures: tuple[str, ...] = ()
    check: Callable[[str, Any, Any, str], None] = anything_goes
    general_form: str | None = None

    @property
    def context(self) -> type[ContextT]:
        return self.family.context


def advance(
    algorithm: Algorithm[ContextT], state: State, context: ContextT, move: Callable[[str, Tensor], None]
) -> tuple[Cost, dict[str, float]]:
    """One outer iteration, the same in every loop; the state's variables change in place.

    context: of this round, with its step sizes. move(name, direction): the variable's optimizer takes its step, in
    place. Returns what the round has cost and the method's `measures` after it, if it has any.
    """
    cost, measured = Cost(), {}
    for inner in range(1, algorithm.inner_steps(context.hyper) + 1):
        now, step = _taken(algorithm, state, context, inner)
        if step is None:
            continue
        for name, direction in step.directions.items():
            move(name, now.settled(name, direction))
            value, project = state.variables[name], algorithm.projections.get(name)
            value.copy_(now.constrain(name, project(value, context.hyper) if project else value))
        cost += now.spent(step.cost)
        if step.report:
            found = step.report(state.variables)
            measured = dict(zip(found, torch.stack(list(found.values())).tolist(), strict=True))
    if context.screen:
        context.screen.close()
    return cost, measured


def _taken(algorithm: Algorithm[ContextT], state: State, context: ContextT, inner: int) -> tuple[ContextT, Step | None]:
    """The inner step: taken again without the clients whose answers do not count, so that it costs what it costs
    without them; None where no client is left."""
    while True:
        now = context.at(inner)
        if now.screen:
            now.screen.begin(now.round, inner)
        try:
            step = algorithm.step(state, now)
            _require_directions(algorithm, state, step)
            now.judge()
            return now, step
        except LeftOut:
            continue
        except NoAnswers:
            return now, None


def _require_directions(algorithm: Algorithm[Any], state: State, step: Any) -> None:
    """UserError unless the step is one, with a direction of the right shape for each variable that it moves."""
    if not isinstance(step, Step):
        raise UserError(f"algorithm {algorithm.name}: its step returned {type(step).__name__}. Fix: return a Step.")
    for name, direction in step.directions.items():
        if name not in state.variables:
            known = ", ".join(state.variables)
            raise UserError(
                f"algorithm {algorithm.name}: its step moves {name!r}, none of {known}. Fix: start it in init."
            )
        if direction.shape != state.variables[name].shape:
            raise UserError(
                f"algorithm {algorithm.name}: the direction of {name!r} is {list(direction.shape)}, the variable"
                f" {list(state.variables[name].shape)}. Fix: return a direction of the variable's shape."
            )
