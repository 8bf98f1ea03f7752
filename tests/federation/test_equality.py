"""A federation ends with the simulator's numbers: every method, every site with its own clients."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from pipeline.federation.hub import Hub
from pipeline.federation.messages import Message, encode
from pipeline.federation.rounds import remote
from pipeline.federation.site import Site, SiteTask
from pipeline.federation.transports import InProcess
from pipeline.methods import ALGORITHMS, Cost
from pipeline.oracles.screening import Screen
from pipeline.sharing import Share
from tests.core.shared_runs import CLIENTS, ROUNDS, every_run, follow
from tests.federation.processes import Processes

MEMBERS = {"north": [0, 3], "south": [1], "east": [2, 4]}


def sites_of(name, context, backend):
    """Site -> the site, with its own copy of the simulator's context."""
    found = {}
    for site, clients in MEMBERS.items():
        oracle = type(context).oracle_for(context.problem, backend, Share())
        own = dataclasses.replace(context, oracle=oracle)
        part = SiteTask(ALGORITHMS[name], own, frozenset(clients), dtype=torch.float64)
        found[site] = Site(site, lambda question, part=part: part)
        found[site].answer(encode(Message("setup")))
    return found


def federation(name, context, backend, transport=None):
    """(the remote method, its context, the hub, the sites, if they are in this process)"""
    algorithm = ALGORITHMS[name]
    sites = {} if transport else sites_of(name, context, backend)
    transport = transport or InProcess({site: each.answer for site, each in sites.items()})
    hub = Hub(transport, MEMBERS, dtype=torch.float64, rest=0.0)
    oracle = type(context).oracle_for(context.problem, backend, Share())
    screen = Screen(100.0, 0.5, CLIENTS)  # leaves none of these out: that would raise
    return *remote(algorithm, dataclasses.replace(context, oracle=oracle), hub, screen), hub, sites


def follow_remotely(name, context, backend, transport=None, each=lambda hub, sites: None):
    """As `follow`, with clients at sites."""
    algorithm, context, hub, sites = federation(name, context, backend, transport)
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
            each(hub, sites)
            if step.report:
                measured |= {f"{key}, round {t}": value.double() for key, value in step.report(state.variables).items()}
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


SEVERAL = (*(f"primal_dual, {e}" for e in ("paper", "memory")), "sustain, normalised", "scaffold", "a_fedpd", "feddyn")
SEVERAL += ("fedavg, learned", "fedbioacc", "simfbo, server", "fednest_general", "aggitd", "lfednest local")


@pytest.mark.parametrize("variant", [*SEVERAL, "fedbio_local", "fedbioacc_local"])
def test_sites_in_processes_of_their_own_give_them_too(variant):
    name, context = every_run()[variant]
    makers = {site: lambda site=site: sites_of(name, context, "fused")[site].answer for site in MEMBERS}
    network = Processes(makers)
    try:
        found = follow_remotely(name, context, "fused", network)
    finally:
        network.close()
    expected = follow(name, context, Share())
    at_server = {key: value for key, value in expected.items() if found[key].shape == value.shape}
    assert found.keys() == expected.keys()
    same({key: found[key] for key in at_server}, at_server, variant, rtol=1e-10, atol=1e-10)


def exchanges(variant):
    counted = []
    run = every_run()[variant]
    found = follow_remotely(*run, "fused", each=lambda hub, sites: counted.append(hub.tally.exchanges))
    return counted[-1], int(found["cost"][0])


@pytest.mark.parametrize(
    "variant",
    [
        *("primal_dual, paper", "primal_dual, memory", "primal_dual shared, memory", "average, memory"),
        *("fednest, paper", "rfho reverse, memory", "fedavg", "scaffold", "a_fedpd", "feddyn", "simfbo", "fedbio"),
        *("fedbioacc", "fedbio_local", "fedbioacc_local", "lfednest corrected"),
    ],
)
def test_a_step_takes_the_exchanges_that_its_method_counts(variant):
    found, counted = exchanges(variant)
    assert found == counted


@pytest.mark.parametrize(
    "variant", ["fedbio_local", "fedbioacc_local", "lfednest local", "fedbioacc", "aggitd", "sustain, memory"]
)
def test_a_step_in_which_a_site_fails_is_taken_again_without_it(variant):
    """East's answer number 3 is lost on the way, after the site has computed it: the others, and what east's clients
    keep, are those of a run in which they were absent from that step."""
    name, context = every_run()[variant]
    algorithm = ALGORITHMS[name]
    context = dataclasses.replace(context, federation=dataclasses.replace(context.federation, participation=1.0))
    remotely, at_server, hub, sites = federation(name, context, "fused")
    answered, lost_in = [0], []
    answer = sites["east"].answer

    def failing(content):
        found = answer(content)
        answered[0] += 1
        return found[:-8] if answered[0] == 3 else found

    hub.transport.sites["east"] = failing
    hub.note = lambda line: lost_in.append((now.round, now.inner))
    state, alone = remotely.init(at_server), algorithm.init(context)
    for t in range(1, ROUNDS + 1):
        for k in range(1, algorithm.inner_steps(context.hyper) + 1):
            now = dataclasses.replace(at_server, round=t, inner=k, step_sizes=algorithm.step_sizes(context.hyper))
            step = remotely.step(state, now)
            absent = frozenset(MEMBERS["east"] if (t, k) in lost_in else ())
            there = dataclasses.replace(context, round=t, inner=k, step_sizes=now.step_sizes, absent=absent)
            expected = algorithm.step(alone, there)
            assert step.cost == expected.cost
            for variable, direction in expected.directions.items():
                torch.testing.assert_close(step.directions[variable], direction, rtol=1e-10, atol=1e-10)
                for each in (state, alone):
                    each.variables[variable] = each.variables[variable] - now.step_sizes[variable] * direction
    assert len(lost_in) == 1
    if sites["east"]._runner:
        for row, kept in sites["east"]._runner.saved().items():
            torch.testing.assert_close(kept, alone.memory[row][MEMBERS["east"]], rtol=1e-10, atol=1e-10)
