"""Answers that do not count are left out, and what remains is what it would be without their clients."""

import contextlib
import math
from dataclasses import replace

import pytest
import torch

from pipeline.methods import ALGORITHMS
from pipeline.methods.registry import fitting
from pipeline.oracles import screening
from pipeline.oracles.screening import BadAnswers, LeftOut, NoAnswers, Screen
from pipeline.training.loop import NotFinite
from tests.oracles.bad_clients import BAD, accuracy_of, loop, trained

HERE = [name for name in ALGORITHMS if name != "exact_gradient" and not name.endswith("_local") and name != "lfednest"]
QUICK = ("primal_dual", "average", "afl", "simfbo", "fednest_general", "fedavg", "scaffold", "a_fedpd")
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in HERE if name not in QUICK]


@pytest.mark.parametrize("factor", [math.nan, 255.0], ids=["missing pixels", "pixels 0 to 255"])
@pytest.mark.parametrize("algorithm", [*QUICK, *SLOW])
def test_a_broken_client_costs_next_to_nothing(digits, algorithm, factor):
    """In every family: at most a point against the federation without that client, whose draws are the same."""
    problem = "client_weighting" if algorithm in fitting("client_weighting") else "consensus"
    rounds = 12 if algorithm in QUICK else 40
    without = trained(loop(digits, algorithm, range(BAD), rounds=rounds, problem=problem))
    broken = trained(loop(digits, algorithm, factor=factor, rounds=rounds, problem=problem))
    assert accuracy_of(broken) >= accuracy_of(without) - 0.01
    screen = broken.context.screen
    if algorithm != "validation_only":
        assert set(screen.rounds_left_out) == {BAD}
        assert screen.rounds_left_out[BAD] >= rounds - 3
    if math.isnan(factor) and algorithm in ("primal_dual", "afl", "simfbo"):  # its weight neither gains nor loses
        assert float(broken.state.variables["x"][BAD]) == pytest.approx(1 / 6, abs=1e-3)
    assert all(bool(value.isfinite().all()) for value in broken.state.variables.values())
    assert all(bool(value.isfinite().all()) for value in broken.state.memory.values())


@pytest.mark.parametrize(
    ("algorithm", "heads", "rounds", "eta_x", "eta_y", "factor"),
    [
        ("lfednest", "local", 30, 0.1, 0.3, math.nan),
        ("lfednest", "local", 30, 0.1, 0.3, 255.0),
        pytest.param("lfednest", "shared", 30, 0.1, 0.3, 255.0, marks=pytest.mark.slow),
        pytest.param("fedbio_local", "local", 40, 0.04, 0.2, math.nan, marks=pytest.mark.slow),
        pytest.param("fedbioacc_local", "local", 15, 0.1, 0.4, math.nan, marks=pytest.mark.slow),
    ],
)
def test_a_broken_client_costs_next_to_nothing_below_a_body(digits, algorithm, heads, rounds, eta_x, eta_y, factor):
    """Lower levels on the clients: a head each, or one for all. Nothing says who is broken, so every client's head is
    tested; the broken one's is the others' mean."""
    sizes = {f"algorithms.{algorithm}.eta_x": eta_x, f"algorithms.{algorithm}.eta_y": eta_y}
    sizes |= {"problems.hyper_representation.heads": heads}
    how = {"rounds": rounds, "problem": "hyper_representation", **sizes}
    without = trained(loop(digits, algorithm, range(BAD), **how))
    broken = trained(loop(digits, algorithm, factor=factor, **how))
    assert accuracy_of(without) > 0.6
    assert accuracy_of(broken) >= accuracy_of(without) - 0.01
    assert broken.context.screen.rounds_left_out == {BAD: rounds}
    if heads == "local":  # its own head is as it was
        assert torch.equal(broken.state.memory["Y"][BAD], broken.context.problem.initial_lower(0))


@pytest.mark.parametrize("factor", [math.nan, 255.0])
def test_a_broken_client_costs_next_to_nothing_where_hessians_are_dense(digits, factor):
    """`exact_gradient`, on a network that is small enough for it."""
    how = {"rounds": 8, "model.name": "tests.oracles.bad_clients.coarse"}
    how |= {"algorithms.exact_gradient.eta_w": 4.0, "algorithms.exact_gradient.inner_steps": 20}
    without = trained(loop(digits, "exact_gradient", range(BAD), **how))
    broken = trained(loop(digits, "exact_gradient", factor=factor, **how))
    assert accuracy_of(without) > 0.6
    assert accuracy_of(broken) >= accuracy_of(without) - 0.01
    assert set(broken.context.screen.rounds_left_out) == {BAD}
    assert all(bool(value.isfinite().all()) for value in broken.state.variables.values())


@pytest.mark.parametrize("algorithm", ["average", "fedavg", "fedprox"])
def test_the_model_is_that_of_the_federation_without_the_client(digits, algorithm):
    """Equal shares of those that remain, to rounding. (Methods with duals count an absent client among N.)"""
    runs = [
        trained(loop(digits, algorithm, clients, factor, rounds=6, **{"train.precision": "64-true"}))
        for clients, factor in ((range(BAD), 1.0), (range(6), math.nan))
    ]
    torch.testing.assert_close(*(run.state.variables["w"] for run in runs), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("estimator", ["paper", "normalised", "memory"])
def test_under_partial_participation_too(digits, estimator):
    settings = {"federation.participation": 0.5, "algorithms.primal_dual.estimator": estimator}
    run = trained(loop(digits, "primal_dual", factor=math.nan, rounds=20, **settings))
    assert set(run.context.screen.rounds_left_out) == {BAD}
    assert accuracy_of(run) > 0.8
    assert all(bool(value.isfinite().all()) for value in run.state.memory.values())


@pytest.mark.parametrize("algorithm", ["primal_dual", "simfbo", "fedavg"])
def test_without_screening_one_client_ruins_the_run(digits, algorithm):
    with pytest.raises(NotFinite):
        trained(loop(digits, algorithm, factor=math.nan, rounds=3, **{"screening.leave_out": False}))


@pytest.mark.parametrize("algorithm", ["primal_dual", "simfbo", "fedavg"])
def test_a_healthy_run_is_the_same_without_screening(digits, algorithm, monkeypatch):
    """To the last bit, also where every client is looked at in every round; no honest answer is left out."""
    monkeypatch.setattr(screening, "LOOK_EVERY", 1)
    a, b = (
        trained(loop(digits, algorithm, rounds=8, **{"screening.leave_out": on, "federation.participation": 0.6}))
        for on in (True, False)
    )
    assert not a.context.screen.strikes
    assert a.context.screen.reference["gradient"] > 0
    for name, value in a.state.variables.items():
        assert torch.equal(value, b.state.variables[name]), name


def test_a_client_that_breaks_later_is_noticed_by_the_sum(digits):
    """No look is due: the sum itself is too long, or not finite."""
    run = loop(digits, "average", rounds=12)
    for _ in range(5):
        run.step()
    data = replace(run.context.oracle.problem.data, factor=-1e4)
    broken = loop(digits, "average", rounds=12).context
    problem = replace(broken.oracle.problem, data=data)
    oracle = broken.oracle_for(problem, "fused", broken.share, run.context.screen)
    run.context = replace(run.context, oracle=oracle)
    run.step()
    assert run.context.screen.left_out == [BAD]


# ----------------------------------------------------------------------------------------------------- the judgement


def screen(**more):
    made = Screen(**{"factor": 100.0, "bad_rounds": 0.5, "clients": 5} | more)
    made.begin(1, 1)
    return made


def judged(made, *sizes, round_=1, kind="gradient", clients=None):
    """The clients left out."""
    made.begin(round_, 1)
    ids = torch.arange(len(sizes)) if clients is None else torch.tensor(clients)
    made.watch(kind, ids, torch.tensor(sizes))
    with contextlib.suppress(LeftOut):
        made.judge()
    return [i for i, s in made.strikes.items() if s.at == (round_, 1)]


@pytest.mark.parametrize("unit", [1e-12, 1.0, 1e12])
def test_the_limit_has_no_units(unit):
    made = screen()
    assert judged(made, 1 * unit, 2 * unit, 3 * unit, 199 * unit, 50 * unit) == []
    assert judged(screen(), 1 * unit, 2 * unit, 3 * unit, 4 * unit, 301 * unit) == [4]


def test_honest_answers_may_stay_large_when_the_others_are_fitted():
    made = screen()
    assert judged(made, 1.0, 1.0, 1.0, 2.0, 2.0) == []
    assert judged(made, 1e-6, 1e-6, 1e-6, 20.0, 99.0, round_=2) == []
    assert judged(made, 1e-6, 1e-6, 1e-6, 20.0, 101.0, round_=3) == [4]


def test_a_minority_cannot_raise_the_reference():
    made = screen()
    assert judged(made, 1.0, 1.0, 1.0, 1e9, 1e9) == [3, 4]
    assert made.reference == {"gradient": 1.0}


def test_what_is_not_finite_is_left_out_unless_nothing_is():
    assert judged(screen(), 1.0, math.nan, 1.0, math.inf, 1.0) == [1, 3]
    assert judged(screen(), math.nan, math.nan, math.inf) == []  # the model has diverged
    assert judged(screen(), math.nan, clients=[2]) == [2]


def test_nothing_is_out_of_proportion_to_zero_and_a_cross_product_to_nothing():
    assert judged(screen(), 0.0, 0.0, 0.0, 0.0, 7.0) == []
    assert judged(screen(), 1.0, 1.0, 1.0, 1.0, 1e6, kind="cross product") == []


def test_rests_double_and_factors_halve():
    made, out = screen(), []
    everyone = torch.arange(5)
    for t in range(1, 200):
        made.begin(t, 1)
        present = made.present(everyone, (t, 1))
        if 4 not in present:
            continue
        out.append(t)
        judged(made, 1.0, 1.0, 1.0, 1.0, 10.0 if t > 30 else 101.0, round_=t)
    assert out == [1, 2, 4, 8, 16, 32, 64, 128, 192]  # ten times the reference no longer counts by then
    made.begin(1000, 1)
    assert judged(made, 1.0, 1.0, 1.0, 1.0, 99.0, round_=1000) == []  # forgiven


def test_a_client_is_left_out_from_the_step_on_in_which_it_failed():
    """Asked again about an earlier step of the round, the context gives the clients of that step."""
    made = screen()
    made.begin(3, 2)
    made.watch("gradient", torch.arange(3), torch.tensor([1.0, 1.0, math.nan]))
    with pytest.raises(LeftOut):
        made.judge()
    assert made.present(torch.arange(3), (3, 1)).tolist() == [0, 1, 2]
    assert made.present(torch.arange(3), (3, 2)).tolist() == [0, 1]
    assert made.present(torch.arange(3), (4, 1)).tolist() == [0, 1, 2]
    with pytest.raises(NoAnswers):
        made.present(torch.tensor([2]), (3, 2))


def test_too_many_bad_rounds_end_the_run_with_the_clients_names():
    def rounds(made, times):
        for t in times:
            judged(made, 1.0, 1.0, math.nan, math.nan, math.nan, round_=t)
            made.present(torch.arange(5), (t, 1))
            made.close()

    names = ["north", "south", "east", "west", "centre"]
    made = screen(names=names)
    rounds(made, range(1, 10))
    with pytest.raises(BadAnswers, match=r"round 10: 10 of the last 10 rounds.*clients east, west, centre.*Fix"):
        rounds(made, [10])
    rounds(screen(names=names, bad_rounds=1.0), range(1, 30))  # which goes on


def test_a_round_without_any_client_changes_nothing(digits):
    run = loop(digits, "fedavg", rounds=3)
    run.step()
    before = run.state.variables["w"].clone()
    run.context.screen.strikes = {i: screening._Strikes(1, (2, 1), 3) for i in range(6)}
    run.step()
    assert torch.equal(run.state.variables["w"], before)
    run.step()
    assert not torch.equal(run.state.variables["w"], before)


def test_the_state_of_the_judgement_is_saved():
    made = screen()
    judged(made, 1.0, 1.0, 1.0, 1.0, math.nan)
    made.present(torch.arange(5), (1, 1))
    made.close()
    again = screen()
    again.load_state_dict(made.state_dict())
    assert again.state_dict() == made.state_dict()
    assert (again.left_out, again.rounds_left_out, again.reference) == ([4], {4: 1}, {"gradient": 1.0})


def test_a_notice_names_the_client_once():
    said = []
    made = screen(notice=said.append, names=list("abcde"))
    for t in (1, 2, 4):
        judged(made, 1.0, 1.0, 1.0, 1.0, 1e3, round_=t)
    assert len(said) == 1
    assert "round 1: the answers of client e are left out" in said[0]
