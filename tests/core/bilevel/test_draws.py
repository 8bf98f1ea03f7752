"""What is drawn when: which minibatches and client sets are independent, and which one is looked at twice; what the
schedule and the momentum coefficients multiply. Float64."""

import dataclasses
from collections import Counter

import pytest
import torch

from pipeline.methods import ALGORITHMS
from pipeline.methods.bilevel.aggitd import AggItd
from pipeline.methods.bilevel.common.directions import Point, directions, draw
from pipeline.methods.bilevel.fedbio import FedBio
from pipeline.methods.bilevel.fedbio_local import FedBioAccLocal, FedBioLocal
from pipeline.methods.bilevel.fedbioacc import FedBioAcc
from pipeline.methods.bilevel.fednest_general import FedNestGeneral
from pipeline.methods.bilevel.lfednest import LFedNest
from pipeline.methods.bilevel.simfbo import ShroFbo, SimFbo
from tests.core.bilevel.helpers import close, make_context, run
from tests.core.bilevel.quadratic import Quadratic, random
from tests.core.bilevel.test_family import VARIANTS, made

NEST = {"local_steps": 3, "upper_local_steps": 3}
ITD = AggItd(**NEST, series_terms=4, series="deterministic")

# Per client and round: minibatches of g-data, of f-data, how often each of them is looked at; and how many exchanges
# have a client set of their own. SimFBO specification, 2.1 to 2.4 ("independent minibatches"), FedBiO's, 2.1 to 2.4.
# The first step of a corrected loop is the anchor itself and draws nothing.
DRAWS = {
    "simfbo": ("simfbo", SimFbo(local_steps=3), 9, 6, 1, 1),
    "shrofbo": ("shrofbo", ShroFbo(local_steps=3), 9, 6, 1, 1),
    "fednest_general": (  # T (anchor + k - 1), N - 1 factors, cross product; the series' start, direct part, u - 1
        "fednest_general",
        FedNestGeneral(**NEST, lower_rounds=2, series_terms=4),
        2 * 3 + 3 + 1,
        1 + 1 + 2,
        1,
        2 + 4 + 1,
    ),
    "fednest_general one set": (
        "fednest_general",
        FedNestGeneral(**NEST, lower_rounds=2, series_terms=4, client_sets="one", correction="none"),
        2 * 3 + 3 + 1,
        1 + 1 + 2,
        1,
        2 + 1,
    ),
    "fednest_general code": (
        "fednest_general",
        FedNestGeneral(**NEST, lower_rounds=2, series_terms=5, mode="code_local_batch"),
        2 * 3 + 4 + 1,
        1 + 1 + 2,
        1,
        2 + 1,
    ),
    "lfednest": (  # T k; u (M - 1 factors and the cross product); 2 u
        "lfednest",
        LFedNest(**NEST, lower_rounds=2, series_terms=5),
        2 * 3 + 3 * 5,
        3 * 2,
        1,
        2 + 1,
    ),
    "lfednest local": ("lfednest", LFedNest(**NEST, lower_rounds=2, series_terms=5), 2 * 3 + 3 * 5, 3 * 2, 1, 1),
    "aggitd": ("aggitd", ITD, 4 * 3 + 3 + 1, 4 + 1 + 2, 1, 1),
    "fedbio": ("fedbio", FedBio(local_steps=3), 9, 6, 1, 1),
    "fedbioacc": ("fedbioacc", FedBioAcc(local_steps=3), 9, 6, 1, 1),
    "fedbio_local": ("fedbio_local", FedBioLocal(local_steps=3, series_terms=5), 3 * 6, 3, 1, 1),
    # Both points of STORM ask for the draw; a client that was absent draws its first momentum besides.
    "fedbioacc_local": ("fedbioacc_local", FedBioAccLocal(local_steps=3, series_terms=5), 3 * 6, 3, 2, 1),
}


@pytest.fixture
def drawn(monkeypatch):
    """(kind, stream, clients, size) of every minibatch that is asked for."""
    seen = []
    for kind in ("lower", "upper"):
        original = getattr(Quadratic, f"draw_{kind}")

        def recorded(self, stream, clients, size, kind=kind, original=original):
            seen.append((kind, stream, tuple(clients.tolist()), size))
            return original(self, stream, clients, size)

        monkeypatch.setattr(Quadratic, f"draw_{kind}", recorded)
    return seen


def rounds_of(variant, drawn, participation, rounds):
    """What each of the given rounds has drawn, in order."""
    name, hyper, *_ = DRAWS[variant]
    problem = random(clients=5, noise=0.1, local_lower="local" in variant)
    found = []

    def keep(state):
        found.append(drawn.copy())
        drawn.clear()

    run(name, make_context(hyper, problem, participation), rounds, each=keep)
    return found


@pytest.mark.parametrize("variant", DRAWS)
def test_minibatches_are_as_many_and_as_independent_as_the_specification_says(variant, drawn):
    """Rounds 2 and 3 (the first may have more): all streams differ, those of f from those of g too."""
    *_, lower, upper, times, _ = DRAWS[variant]
    found = [entry for each in rounds_of(variant, drawn, 1.0, 3)[1:] for entry in each]
    streams = Counter(stream for _, stream, *_ in found)
    assert set(streams.values()) == {times}
    kinds = {stream: kind for kind, stream, *_ in found}
    assert Counter(kinds.values()) == {"lower": 2 * lower, "upper": 2 * upper}


@pytest.mark.parametrize("variant", [v for v in DRAWS if v != "fedbioacc_local"])
def test_exchanges_have_client_sets_of_their_own_where_the_specification_says_so(variant, drawn):
    """Two of five clients, twenty rounds: draw number j of a round is made for the same clients as number k in all of
    them only if both belong to one set."""
    found = rounds_of(variant, drawn, 0.4, 20)[1:]
    columns = {tuple(each[j][2] for each in found) for j in range(len(found[0]))}
    assert len(columns) == DRAWS[variant][-1]


SERVER_DRAWS = {
    "simfbo": 1,
    "shrofbo": 1,
    "fednest_general": 1,
    "lfednest": 1,
    "aggitd": 5,
    "fedbio": 1,
    "fedbioacc": 2,
}
"""FBO-AggITD asks for grad_y f at every y^t and for grad_x f at the end; FedBiOAcc has a minibatch for its average,
which serves both points of STORM."""


@pytest.mark.parametrize("variant", SERVER_DRAWS)
def test_a_server_that_holds_f_draws_anew_wherever_the_method_does(variant, drawn):
    """Rounds 2 and 3; clients draw g-data alone, as before."""
    name, hyper, lower, *_ = DRAWS[variant]
    rounds = []
    problem = random(clients=5, noise=0.1, uniform=True, server_upper=True)
    run(name, make_context(hyper, problem), 3, each=lambda state: rounds.append(len(drawn)))
    kinds = {stream: kind for kind, stream, *_ in drawn[rounds[0] :]}
    assert Counter(kinds.values()) == {"lower": 2 * lower, "upper": 2 * SERVER_DRAWS[variant]}


@pytest.mark.parametrize("name", ["fedbioacc", "fedbioacc_local"])
def test_the_first_momenta_have_a_batch_size_of_their_own(name, drawn):
    """One for all of them; with local lower levels too, where the analysis wants M times as many samples for omega."""
    common = name == "fedbioacc"
    hyper = FedBioAcc(initial_batch_size=7) if common else FedBioAccLocal(initial_batch_size=7, series_terms=5)
    run(name, make_context(hyper, random(noise=0.1, local_lower=not common)), 2)
    sizes = [size for *_, size in drawn]
    first = sizes.count(7)
    assert sizes == [7] * first + [1] * (len(sizes) - first)
    assert first == (5 if common else 1 + 1 + 1 + 4)  # omega; f, cross product, M - 1 factors


# ----------------------------------------------------------------------------------------------------- the schedule

LOCAL_SIZES = {"fedbioacc": ("alpha_scale",), "fedbioacc_local": ("alpha_scale",)}
EVERY_SIZE = ("eta_x", "eta_y", "eta_v")


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_schedule_multiplies_the_clients_steps(variant):
    """At half of the schedule a round is that of half the local step sizes (of half alpha with STORM, whose weights
    follow alpha). The series' step is no step of a variable: it stays."""
    name, hyper, problem = made(variant, noise=0.3)
    sizes = LOCAL_SIZES.get(name, EVERY_SIZE)
    halved = dataclasses.replace(hyper, **{s: getattr(hyper, s) / 2 for s in sizes if hasattr(hyper, s)})
    half = run(name, make_context(hyper, problem, 0.6, schedule=0.5), 2)
    expected, whole = (run(name, make_context(h, problem, 0.6), 2) for h in (halved, hyper))
    for kept in ("variables", "memory"):
        for key, value in getattr(expected, kept).items():
            close(getattr(half, kept)[key], value)
    if variant != "simfbo shared batch":  # one local step: there the clients' step sizes do not matter
        assert (half.variables["x"] - whole.variables["x"]).abs().max() > 1e-6


# ------------------------------------------------------------------------------------------------------------- STORM


@pytest.mark.parametrize(("server_holds_f", "period"), [(False, 1), (False, 2), (True, 1), (True, 2)])
def test_storm_on_minibatches_term_by_term(server_holds_f, period):
    """FedBiOAcc of three clients, noise on, a weight for each variable, alpha_t of the whole run's iteration t:
    m <- G(z_(t+1); B) + (1 - c alpha_t^2) (m - G(z_t; B)), averaged every `period` iterations. Where the server holds f
    its gradient is that of the round's start until the average, which has a minibatch of its own for both points: the
    round's start and the average."""
    problem = random(clients=3, noise=0.3, uniform=True, server_upper=server_holds_f)
    c, size = {"x": 0.9, "y": 0.5, "v": 1.4}, {"x": 0.05, "y": 0.2, "v": 0.1}
    hyper = FedBioAcc(
        **{f"storm_{u}": value for u, value in c.items()},
        **{f"eta_{u}": value for u, value in size.items()},
        alpha_scale=1.1,
        alpha_offset=2.0,
        local_steps=period,
    )
    context, all_clients = make_context(hyper, problem), torch.arange(3)
    z = Point(*(torch.zeros(3, d, dtype=torch.float64) for d in (3, 4, 4)))
    mean = lambda point: Point(*(u.mean(0).expand(3, -1) for u in point))  # noqa: E731

    def estimate(at, now, tag, held, *exchange):
        server = now.upper_level(held.x[0], held.y[0], *exchange)  # the clients' own f does not look at where it is
        return directions(now, at, draw(now, all_clients, tag), server)

    m, start = estimate(z, dataclasses.replace(context, round=1), 0, z, 0), z
    for t in range(1, 5):
        now, i = dataclasses.replace(context, round=(t - 1) // period + 1), (t - 1) % period + 1
        alpha = 1.1 / (2 + t) ** (1 / 3)
        ahead = Point(*(u - s * alpha * d for u, s, d in zip(z, size.values(), m, strict=True)))
        start = z if i == 1 else start
        if i == period:
            ahead = mean(ahead)
            fresh, old = estimate(ahead, now, i, ahead, period), estimate(z, now, i, start, period)
        else:
            fresh, old = estimate(ahead, now, i, start), estimate(z, now, i, start)
        m = Point(*(g + (1 - w * alpha**2) * (d - o) for g, w, d, o in zip(fresh, c.values(), m, old, strict=True)))
        m, z = mean(m) if i == period else m, ahead
    state = run("fedbioacc", context, 4 // period)
    for u, value in zip("xyv", z, strict=True):
        close(state.variables[u], value[0])
    for name, value in zip(("nu", "omega", "q"), m, strict=True):
        close(state.memory[name], value[0])


def test_averages_are_assigned_whole_and_server_steps_are_scheduled():
    """A direction old minus new is no gradient: a step along it has size 1 whatever the schedule. SimFBO's server, in
    contrast, steps along aggregated gradients."""
    expected = {
        "simfbo": "",
        "shrofbo": "",
        "fednest_general": "xy",
        "lfednest": "xy",
        "aggitd": "xy",
        "fedbio": "xyv",
        "fedbioacc": "xyv",
        "fedbio_local": "x",
        "fedbioacc_local": "x",
    }
    assert {name: ALGORITHMS[name].assigned for name in expected} == {k: frozenset(v) for k, v in expected.items()}
