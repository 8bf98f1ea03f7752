"""A federation ends with the simulator's numbers: every method, every site with its own clients."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from pipeline.federation.hub import Hub
from pipeline.federation.messages import Message
from pipeline.federation.rounds import remote
from pipeline.federation.site import Part, Site
from pipeline.federation.transports import InProcess
from pipeline.methods import ALGORITHMS, Cost
from pipeline.sharing import Share
from tests.core.shared_runs import CLIENTS, ROUNDS, every_run, follow

MEMBERS = {"north": [0, 3], "south": [1], "east": [2, 4]}


def federation(name, context, backend):
    """(the remote method, its context, the hub) with each site's own copy of the simulator's context."""
    algorithm = ALGORITHMS[name]
    oracle = lambda: type(context).oracle_for(context.problem, backend, Share())  # noqa: E731
    sites = {}
    for site, clients in MEMBERS.items():
        part = Part(algorithm, dataclasses.replace(context, oracle=oracle()), frozenset(clients), dtype=torch.float64)
        sites[site] = Site(site, lambda question, part=part: part)
        sites[site]._setup(Message("setup"))
    hub = Hub(InProcess({site: each.answer for site, each in sites.items()}), MEMBERS, dtype=torch.float64)
    return *remote(algorithm, dataclasses.replace(context, oracle=oracle()), hub), hub, sites


def follow_remotely(name, context, backend):
    """As `follow`, with clients at sites."""
    algorithm, context, _hub, sites = federation(name, context, backend)
    state, sizes = algorithm.init(context), algorithm.step_sizes(context.hyper)
    cost, measured = Cost(), {}
    for t in range(1, ROUNDS + 1):
        for k in range(1, algorithm.inner_steps(context.hyper) + 1):
            now = dataclasses.replace(context, round=t, inner=k, step_sizes=sizes)
            step = algorithm.step(state, now)
            for variable, direction in step.directions.items():
                value = state.variables[variable] - sizes[variable] * direction
                project = algorithm.projections.get(variable)
                state.variables[variable] = now.constrain(variable, project(value, context.hyper) if project else value)
            cost += now.spent(step.cost)
            if step.report:
                measured |= {f"{key}, round {t}": value for key, value in step.report(state.variables).items()}
    memory = dict(state.memory)
    for site in sites.values():
        for row, kept in site._runner.saved().items() if site._runner else ():
            if memory[row].shape[0] == 0:
                memory[row] = kept.new_zeros(CLIENTS, *kept.shape[1:])
            memory[row][sorted(site._part.clients)] = kept
    return dict(state.variables) | memory | measured | {"cost": torch.tensor(dataclasses.astuple(cost))}


def same(found, expected, variant, **tolerances):
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        torch.testing.assert_close(
            found[key], value, **tolerances, msg=lambda text, key=key: f"{variant}, {key}: {text}"
        )


@pytest.mark.parametrize("variant", every_run())
def test_every_method_gives_the_simulators_numbers(variant):
    run = every_run()[variant]
    same(follow_remotely(*run, "fused"), follow(*run, Share()), variant, rtol=1e-10, atol=1e-10)
