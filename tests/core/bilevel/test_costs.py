"""What every method of general bilevel learning counts, against the specifications' tables (float64 quadratics)."""

import dataclasses
import itertools

import pytest
import torch

from pipeline.methods import ALGORITHMS, Cost
from pipeline.methods.bilevel.aggitd import AggItd
from pipeline.methods.bilevel.common.bilevel_context import BilevelContext
from pipeline.methods.bilevel.fedbio import FedBio
from pipeline.methods.bilevel.fedbio_local import FedBioAccLocal, FedBioLocal
from pipeline.methods.bilevel.fedbioacc import FedBioAcc
from pipeline.methods.bilevel.fednest_general import FedNestGeneral
from pipeline.methods.bilevel.lfednest import LFedNest
from pipeline.methods.bilevel.simfbo import ShroFbo, SimFbo
from tests.core.bilevel.helpers import make_context, one_round
from tests.core.bilevel.quadratic import random

# Per active client and outer iteration: exchanges, floats up, floats down, gradients, products. The specifications'
# tables (SimFBO 2.1-2.5, FedBiO 2.1-2.5); k local steps below and u above. Where the server holds f: what it saves.
# FedNest's tables are those of one client set for the whole of FedOut; fresh ones are below.
NESTED = {"local_steps": 3, "upper_local_steps": 2}
ONE_SET = {**NESTED, "client_sets": "one"}
X, Y = 3, 4
TABLE = [
    ("simfbo", SimFbo(local_steps=3), (1, X + 2 * Y, X + 2 * Y, 9, 6), (1, X + 2 * Y, X + 3 * Y, 3, 6)),
    ("simfbo", SimFbo(), (1, X + 2 * Y, X + 2 * Y, 3, 2), (1, X + 2 * Y, X + 2 * Y, 1, 2)),
    ("shrofbo", ShroFbo(local_steps=3), (1, X + 2 * Y, X + 2 * Y, 9, 6), (1, X + 2 * Y, X + 3 * Y, 3, 6)),
    (
        "fednest_general",  # 2T + N + 3; T (1 + 2 (k - 1)) + 1 + 1 + 2 (u - 1) gradients; N - 1 HVPs and a JVP
        FedNestGeneral(**ONE_SET, lower_rounds=2, series_terms=4),
        (11, 2 * X + 9 * Y, 2 * (X + 2 * Y) + 6 * Y + 2 * X, 14, 4),
        (10, 2 * X + 8 * Y, 2 * (X + 2 * Y) + 6 * Y + 2 * X, 10, 4),
    ),
    (
        "fednest_general",  # what N terms need: one exchange fewer
        FedNestGeneral(**ONE_SET, lower_rounds=2, series_terms=4, counting="exchanges"),
        (10, 2 * X + 8 * Y, 2 * (X + 2 * Y) + 5 * Y + 2 * X, 14, 4),
        (9, 2 * X + 7 * Y, 2 * (X + 2 * Y) + 5 * Y + 2 * X, 10, 4),
    ),
    (
        "fednest_general",  # the public code's N = 4 products are N + 1 terms, and its count is the published one
        FedNestGeneral(**NESTED, lower_rounds=2, series_terms=5, mode="code_local_batch"),
        (11, 2 * X + 9 * Y, 2 * (X + 2 * Y) + 6 * Y + 2 * X, 14, 5),
        (10, 2 * X + 8 * Y, 2 * (X + 2 * Y) + 6 * Y + 2 * X, 10, 5),
    ),
    (
        "fednest_general",  # FedNest_SGD: T + N + 3
        FedNestGeneral(**ONE_SET, lower_rounds=2, series_terms=4, correction="none"),
        (9, 2 * X + 7 * Y, 2 * (X + Y) + 6 * Y + 2 * X, 10, 4),
        (8, 2 * X + 6 * Y, 2 * (X + Y) + 6 * Y + 2 * X, 6, 4),
    ),
    (
        "lfednest",  # T + 1; T k + 2 u gradients; u (M - 1) HVPs and u JVPs
        LFedNest(**NESTED, lower_rounds=2, series_terms=5),
        (3, X + 2 * Y, 3 * (X + Y), 10, 10),
        (3, X + 2 * Y, 3 * (X + Y) + Y, 6, 10),
    ),
    (
        "lfednest",  # LFedNest_SVRG: 2T + 1
        LFedNest(**NESTED, lower_rounds=2, series_terms=5, correction="svrg"),
        (5, X + 4 * Y, 2 * (X + 2 * Y) + X + Y, 14, 10),
        (5, X + 4 * Y, 2 * (X + 2 * Y) + X + 2 * Y, 10, 10),
    ),
    (
        "aggitd",  # 2N + 2, Q = 0; N (1 + 2 (k - 1)) + N + 1 + 2 (u - 1) gradients
        AggItd(**NESTED, series_terms=4, series="deterministic"),
        (10, 2 * X + 12 * Y, 2 * X + 13 * Y, 27, 4),
        (10, 2 * X + 11 * Y, 2 * X + 13 * Y, 20, 4),
    ),
    (
        "aggitd",  # N + 2
        AggItd(**NESTED, series_terms=4, series="deterministic", correction="none"),
        (6, 2 * X + 8 * Y, 2 * X + 9 * Y, 19, 4),
        (6, 2 * X + 7 * Y, 2 * X + 9 * Y, 12, 4),
    ),
    ("fedbio", FedBio(local_steps=3), (1, X + 2 * Y, X + 2 * Y, 9, 6), (1, X + 2 * Y, X + 3 * Y, 3, 6)),
    (
        "fedbioacc",  # clients come and go here: the averages are sent afresh
        FedBioAcc(local_steps=3),
        (2, 2 * (X + 2 * Y), 3 * (X + 2 * Y), 18, 12),
        (2, 2 * (X + 2 * Y), 3 * (X + 2 * Y) + Y, 6, 12),
    ),
    ("fedbio_local", FedBioLocal(local_steps=3, series_terms=5), (1, X, X, 9, 15), None),
    ("fedbioacc_local", FedBioAccLocal(local_steps=3, series_terms=5), (2, 2 * X, 3 * X, None, 30), None),
]


def cost_of(name, hyper, problem, rounds, participation=0.4) -> Cost:
    """Of the last of that many rounds."""
    context, cost = make_context(hyper, problem, participation), Cost()
    state = ALGORITHMS[name].init(context)
    for t in range(1, rounds + 1):
        cost = one_round(ALGORITHMS[name], state, dataclasses.replace(context, round=t))
    return cost


@pytest.mark.parametrize(("name", "hyper", "clients_hold", "server_holds"), TABLE, ids=[row[0] for row in TABLE])
def test_counters_are_the_specifications(name, hyper, clients_hold, server_holds):
    """Exactly n = 2 of N = 5 clients are active in every exchange, so each counter is twice the table's entry. An entry
    None depends on who was active before."""
    for row, held in ((clients_hold, False), (server_holds, True)):
        if row is None:
            continue
        problem = random(clients=5, local_lower=name.endswith("local"), server_upper=held)
        got = dataclasses.astuple(cost_of(name, hyper, problem, 2))
        expected = (row[0], *(None if count is None else 2 * count for count in row[1:]))
        assert tuple(g if e is not None else None for g, e in zip(got, expected, strict=True)) == expected


def test_a_frozen_gradient_is_sent_to_those_who_look_at_it_twice():
    """SimFBO, f held by the server, local steps 1, 3, 1, 2, 1: the server adds grad_y f for clients that take one step,
    so d_y more goes down to two of five. Up 5 (d_x + 2 d_y), 8 gradients of y, 16 products."""
    hyper = SimFbo(local_steps=[1, 3, 1, 2, 1])
    got = cost_of("simfbo", hyper, random(clients=5, server_upper=True), 1, participation=1.0)
    assert dataclasses.astuple(got) == (1, 5 * (X + 2 * Y), 5 * (X + 2 * Y) + 2 * Y, 8, 16)


def test_clients_that_come_back_pay_for_a_gradient():
    """FedBiOAcc-local, I = 2: an evaluation is 3 gradients, two of them per iteration; who was away in the round before
    takes one more, however long that was. The first round has an evaluation more instead."""
    sets = [[0, 1], [1, 2], [0, 3], [0, 3], [1, 4], [1, 3]]
    back = [None, 1, 2, 0, 2, 1]

    class Chosen(BilevelContext):
        def active(self, *exchange):
            return torch.tensor(sets[self.round - 1])

    made = make_context(FedBioAccLocal(local_steps=2, series_terms=4), random(clients=5, local_lower=True), 0.4)
    context = Chosen(made.oracle, made.hyper, made.federation, made.seed)
    algorithm = ALGORITHMS["fedbioacc_local"]
    state = algorithm.init(context)
    costs = [one_round(algorithm, state, dataclasses.replace(context, round=t + 1)) for t in range(len(sets))]
    assert [cost.gradients for cost in costs] == [2 * (2 * 2 + 1) * 3, *(2 * 2 * 2 * 3 + more for more in back[1:])]


def test_lower_levels_of_their_own_are_never_sent():
    """LFedNest: one exchange of x; two calls of three steps below, two steps above with five terms."""
    got = cost_of(
        "lfednest", LFedNest(**NESTED, lower_rounds=2, series_terms=5), random(clients=5, local_lower=True), 2
    )
    assert dataclasses.astuple(got) == (1, 2 * X, 2 * X, 2 * (6 + 4), 2 * 10)


def test_counters_of_full_participation_and_first_rounds():
    """FedBiO specification, 2.5: 2 (d_x + 2 d_y) each way, of local lower levels 2 d_x; the first round evaluates once
    more, and averaging the initial momenta is one exchange."""
    Z = X + 2 * Y
    acc, local = FedBioAcc(local_steps=3), FedBioAccLocal(local_steps=3, series_terms=5)
    averaged = {"average_initial_momentum": True}
    cases = [
        ("fedbioacc", acc, 1, (2, 2 * Z, 2 * Z, 21, 14)),
        ("fedbioacc", acc, 2, (2, 2 * Z, 2 * Z, 18, 12)),
        ("fedbioacc", dataclasses.replace(acc, **averaged), 1, (3, 3 * Z, 3 * Z, 21, 14)),
        ("fedbioacc_local", local, 1, (2, 2 * X, 2 * X, 21, 35)),
        ("fedbioacc_local", local, 2, (2, 2 * X, 2 * X, 18, 30)),
        ("fedbioacc_local", dataclasses.replace(local, **averaged), 1, (3, 3 * X, 3 * X, 21, 35)),
    ]
    for name, hyper, rounds, row in cases:
        got = cost_of(name, hyper, random(clients=5, local_lower=name.endswith("local")), rounds, participation=1.0)
        assert dataclasses.astuple(got) == (row[0], *(5 * count for count in row[1:])), (name, rounds)


def test_random_series_pay_for_the_factors_they_draw():
    """FedNest: 2T + N' + 3 exchanges; AggITD: (2N + N - Q) d_y + 2 d_x up, in 2N + 2 exchanges, or 2N + 3 as it is
    recalled to count."""
    problem, seen = random(clients=5), set()
    nest, itd = FedNestGeneral(series_terms=4, series="randomised"), AggItd(series_terms=4)
    for t in range(1, 25):
        context = dataclasses.replace(make_context(nest, problem), round=t)
        factors = context.at(2).integer("series", 4)
        cost = one_round(ALGORITHMS["fednest_general"], ALGORITHMS["fednest_general"].init(context), context)
        assert (cost.communication_rounds, cost.hvps) == (5 + factors, 5 * (factors + 1))
        context = dataclasses.replace(make_context(itd, problem), round=t)
        Q = context.integer("series", 4)
        cost = one_round(ALGORITHMS["aggitd"], ALGORITHMS["aggitd"].init(context), context)
        assert (cost.communication_rounds, cost.hvps) == (10, 5 * (4 - Q))
        assert (cost.floats_up, cost.floats_down) == (5 * (2 * X + (12 - Q) * Y), 5 * (2 * X + (13 - Q) * Y))
        seen |= {("factors", factors), ("Q", Q)}
    assert len(seen) == 8
    counted = cost_of("aggitd", dataclasses.replace(itd, counting="published"), problem, 1)
    assert counted.communication_rounds == 11


def fednest_step(hyper, problem, sets) -> Cost:
    """Of one outer iteration in which the clients active in each exchange, by (inner step, *exchange), are given."""

    class Chosen(BilevelContext):
        def active(self, *exchange):
            return torch.tensor(sets[self.inner, *exchange])

    context = make_context(hyper, problem, 0.4)
    context = Chosen(context.oracle, context.hyper, context.federation, context.seed)
    return one_round(ALGORITHMS["fednest_general"], ALGORITHMS["fednest_general"].init(context), context)


@pytest.mark.parametrize(("held", "down", "up"), [(False, 87, 52), (True, 80, 44)])
def test_fresh_client_sets_are_sent_x_and_y_once_each(held, down, up):
    """T = 1, N = 3, d_x = 3, d_y = 4. Down: FedInn 2 (d_x + 2 d_y) = 22; x and y to the five clients of {0, 1}, {1, 2},
    {3, 4}, {2, 3}, or to the four of the last three sets where the server holds f, 7 each; a vector of the series to
    two clients twice, and v to two, 4 each; h to two, 3 each. 22 + 35 + 16 + 8 + 6 = 87, or 80. Up: FedInn 2 * 2 d_y =
    16; grad_y f (not where the server holds it) and two products of two clients, 24 or 16; 2 * 2 d_x = 12: 52
    or 44."""
    hyper = FedNestGeneral(local_steps=3, series_terms=3, client_sets="fresh", counting="exchanges")
    sets = {(1,): [0, 1], (2, 0): [0, 1], (2, 1): [1, 2], (2, 2): [3, 4], (2, 3): [2, 3]}
    cost = fednest_step(hyper, random(clients=5, server_upper=held), sets)
    assert (cost.floats_down, cost.floats_up) == (down, up)


FRESH = [
    FedNestGeneral(series_terms=3, counting="exchanges"),
    FedNestGeneral(series_terms=1, counting="exchanges", correction="none"),
    FedNestGeneral(series_terms=4, lower_rounds=2, counting="published"),
    FedNestGeneral(series_terms=4, series="randomised"),
]


@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("hyper", FRESH)
def test_fresh_client_sets_message_by_message(hyper, held):
    """Every message to every client, written down with what the client holds by then; participation from one of five
    clients to all of them, where it is the table of one set."""
    problem, T, rows = random(clients=5, server_upper=held), hyper.lower_rounds, []
    for participation, t in itertools.product((0.2, 0.4, 0.6, 1.0), (1, 2, 3)):
        context = dataclasses.replace(make_context(hyper, problem, participation), round=t)
        n, at = round(5 * participation), context.at(T + 1)
        randomised = hyper.series == "randomised"
        factors = at.integer("series", hyper.series_terms) if randomised else hyper.series_terms - 1
        down = T * n * (X + (2 if hyper.correction == "svrg" else 1) * Y)
        knows = set()
        for exchange in (*([] if held else [0]), *range(1, factors + 1), hyper.series_terms):
            for client in at.cohort(exchange).clients.tolist():
                down += (X + Y) * (client not in knows)  # the point
                down += Y * (exchange > 0)  # the series' vector, or v
                knows.add(client)
        down += X * n + (Y * n if not randomised and hyper.counting == "published" else 0)  # h; the printed exchange
        cost = one_round(ALGORITHMS["fednest_general"], ALGORITHMS["fednest_general"].init(context), context)
        assert cost.floats_down == down
        one = dataclasses.replace(context, hyper=dataclasses.replace(hyper, client_sets="one"))
        known = one_round(ALGORITHMS["fednest_general"], ALGORITHMS["fednest_general"].init(one), one)
        rows.append((cost.floats_down - known.floats_down, participation))
        assert dataclasses.replace(cost, floats_down=0) == dataclasses.replace(known, floats_down=0)
    assert all(more == 0 for more, participation in rows if participation == 1.0)
    assert any(more > 0 for more, _ in rows) or (held and hyper.series_terms == 1)


@pytest.mark.parametrize(
    ("name", "hyper", "rounds", "floats"),
    [
        ("simfbo", SimFbo(), 1, 161_020),
        ("shrofbo", ShroFbo(), 1, 161_020),
        ("fednest_general", FedNestGeneral(series_terms=5), 10, 330_080),
        ("lfednest", LFedNest(), 2, 159_010),
        ("aggitd", AggItd(series_terms=5), 12, 340_130),
    ],
)
def test_the_communication_of_the_printed_task(name, hyper, rounds, floats, monkeypatch):
    """SimFBO specification, 2.5: d_x = 157,000 and d_y = 2,010, N = 5, T = 1, Q = 2; by the counts, not by training."""
    monkeypatch.setattr(BilevelContext, "integer", lambda self, *_: 2)
    small = cost_of(name, hyper, random(clients=1, d_x=3, d_y=4), 1, 1.0)
    larger = cost_of(name, hyper, random(clients=1, d_x=3, d_y=5), 1, 1.0)
    of_y = larger.floats_up - small.floats_up
    of_x = (small.floats_up - 4 * of_y) // 3
    assert (small.communication_rounds, 157_000 * of_x + 2_010 * of_y) == (rounds, floats)
