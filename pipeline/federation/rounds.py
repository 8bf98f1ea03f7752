"""A method whose clients are at sites, as an `Algorithm` that every loop can run."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pipeline.errors import UserError
from pipeline.federation.hub import Hub, SitesLost
from pipeline.federation.oracle import RemoteOracle
from pipeline.federation.steps import ServerContext, ServerShare, server_or_site, server_step
from pipeline.methods.base import Algorithm, State, Step, StepContext
from pipeline.methods.bilevel.common.bilevel_context import BilevelContext
from pipeline.methods.client_weighting.common.weighting_context import WeightingContext
from pipeline.methods.consensus.common.local_context import LocalContext
from pipeline.oracles.screening import LeftOut, Screen


def remote(
    algorithm: Algorithm[Any], context: StepContext, hub: Hub, screen: Screen | None = None
) -> tuple[Algorithm[Any], StepContext]:
    """The method, and the template of its steps' context, with clients at the hub's sites. context: the simulator's,
    with the server's problem. screen: judges clients' answers, where these reach the server one by one: in the
    bilevel families they come as sums."""
    if isinstance(context, BilevelContext):
        at_server = dataclasses.replace(server_or_site(ServerContext, context), share=ServerShare())

        def init(template: Any) -> State:
            state = algorithm.init(template)
            rows = {name: state.memory[name][:0] for name in algorithm.client_rows & state.memory.keys()}
            return State(state.variables, state.memory | rows)

        return dataclasses.replace(algorithm, init=init, step=_Step(algorithm, hub)), at_server
    if not isinstance(context, (WeightingContext, LocalContext)):
        raise UserError(f"algorithm: {algorithm.name} is of a family of its own, which no site can answer.")
    oracle = RemoteOracle(context.problem, hub, context.oracle, screen)
    at_server = dataclasses.replace(context, oracle=oracle, screen=screen)
    return dataclasses.replace(algorithm, step=_Step(algorithm, hub)), at_server


@dataclass(frozen=True)
class _Step:
    """A step that is taken again, without the clients of a site that failed in it."""

    algorithm: Algorithm[Any]
    hub: Hub

    def __call__(self, state: State, context: StepContext) -> Step:
        before = {name: value.clone() for name, value in state.memory.items()}
        lost: set[str] = set()
        deadline = time.monotonic() + self.hub.patience
        while True:
            absent = self.hub.gather()
            if len(self.hub.ready - lost) < self.hub.needed:
                lost.clear()  # too few have not failed in this step: once more with all
            try:
                return self._take(state, dataclasses.replace(context, absent=absent | self.hub.clients_of(lost)))
            except SitesLost as found:
                lost |= found.why.keys()
                if time.monotonic() > deadline and len(self.hub.ready - lost) < self.hub.needed:
                    raise self.hub.too_few(str(found)) from None
                _restore(state, before)
            except LeftOut:  # whoever advances the method takes the step again
                _restore(state, before)
                raise

    def _take(self, state: State, context: StepContext) -> Step:
        if isinstance(context, ServerContext):
            step, here = server_step(self.algorithm, self.hub, state, context)
            return dataclasses.replace(step, cost=here.spent(step.cost))
        context.oracle.start()
        step = self.algorithm.step(state, context)
        return Step({name: _settle(direction) for name, direction in step.directions.items()}, step.cost, step.report)


def _restore(state: State, memory: dict[str, Tensor]) -> None:
    for name, value in memory.items():
        state.memory[name].copy_(value)


def _settle(direction: Tensor) -> Tensor:
    return direction + 0 if type(direction) is not torch.Tensor else direction
