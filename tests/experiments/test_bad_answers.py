"""The study of bad answers: its federations, its liars, its search, its page."""

import dataclasses
import json

import numpy as np
import pytest
import torch

from experiments.bad_answers import page, plan
from experiments.bad_answers.federations import DATA, FAULTS, HONEST, federation
from experiments.bad_answers.lying import Lying, oracle
from experiments.bad_answers.params import AnswersRuns, AnswersSearch, AnswersStudy, Profile
from experiments.bad_answers.plan import AnswersRun
from experiments.bad_answers.running import outcome
from pipeline.config.loading import read_yaml
from pipeline.errors import UserError
from pipeline.methods import ALGORITHMS
from pipeline.methods.base import Participation
from pipeline.methods.consensus.common import local_training
from pipeline.oracles.local import FusedLocal
from pipeline.oracles.screening import LeftOut, Screen
from pipeline.params import Algorithms
from pipeline.problems.client_weighting import ClientWeighting


def cell(row, fault="noise", share="third", data="table", rounds=6, screening=True, **options):
    own = tuple(options.items())
    return AnswersRun("main", row, data, fault, share, 0, rounds, 16, screening, own)


def lying(fault, screen=None, algorithm="fedavg"):
    made, factors = federation("table", fault, "third", 0)
    problem = Lying(made.model(), made.data(), factors=factors)
    method = ALGORITHMS[algorithm]
    context = method.context(
        oracle=oracle(method.context, problem, screen),
        hyper=getattr(Algorithms(), algorithm),
        federation=Participation(batch_size=16),
        seed=0,
        screen=screen,
    )
    return made, problem, context


@pytest.mark.parametrize("data", DATA)
def test_a_fault_changes_what_the_bad_clients_hold_and_nothing_else(data):
    made = {fault: federation(data, fault, "third", 3)[0] for fault in FAULTS}
    clean = made["scaled"]
    for fault in ("noise", "flips"):
        bad = made[fault].bad
        assert bad.sum() == 4
        assert np.array_equal(bad, clean.bad)
        for i, ((X, y), (X0, y0)) in enumerate(zip(made[fault].clients, clean.clients, strict=True)):
            assert np.array_equal(X, X0)
            assert np.array_equal(y, y0) != bad[i]
    without, factors = federation(data, HONEST, "third", 3)
    kept = [held for held, bad in zip(clean.clients, clean.bad, strict=True) if not bad]
    assert len(without.clients) == len(factors) == 8
    assert all(np.array_equal(a[1], b[1]) for a, b in zip(without.clients, kept, strict=True))
    assert np.array_equal(clean.test[1], without.test[1])


@pytest.mark.parametrize("algorithm", ["primal_dual", "simfbo"])
def test_answers_at_the_servers_model_are_multiplied(algorithm):
    made, problem, context = lying("signs", algorithm=algorithm)
    honest = ClientWeighting(made.model(), made.data())
    clients, k = torch.arange(12), torch.from_numpy(np.where(made.bad, -1.0, 1.0)).float()
    w = problem.initial(0)
    true = type(context.oracle)(honest) if algorithm == "primal_dual" else None
    if true:
        said, c = context.oracle.draw(5, clients, 8), torch.linspace(0, 1, 12)
        found = context.oracle.gradient_with_inner(w, w, said, c)
        expected = true.gradient_with_inner(w, w, true.draw(5, clients, 8), c)
        torch.testing.assert_close(found[1], k * expected[1])
        rows = true.gradients(w, true.draw(5, clients, 8))
        torch.testing.assert_close(found[0], (c * k) @ rows)
    else:
        X, Y = torch.full((12, 12), 1 / 12), w.expand(12, -1)
        batch = (clients, *problem.draw(5, clients, 8))
        one = context.oracle.lower_gradients(X, Y, batch)
        two = type(context.oracle)(dataclasses.replace(context.problem, problem=honest)).lower_gradients(
            X, Y, batch[:-1]
        )
        torch.testing.assert_close(one, k[:, None] * two)


@pytest.mark.parametrize("screen", [None, Screen(100.0, 1.0, 12)], ids=["all count", "screened"])
def test_local_steps_are_honest_and_their_change_is_multiplied(screen):
    made, problem, context = lying("scaled", screen)
    honest = dataclasses.replace(context, oracle=FusedLocal(problem.honest), screen=None)
    start, clients = problem.initial(0), torch.arange(12)
    said, true = (local_training.train(each, start, clients).models - start for each in (context, honest))
    k = torch.from_numpy(np.where(made.bad, 10.0, 1.0)).float()
    torch.testing.assert_close(said, k[:, None] * true, rtol=1e-4, atol=1e-6)


def test_screening_sees_what_is_sent():
    screen = Screen(100.0, 1.0, 12)
    made, problem, context = lying("huge", screen)
    screen.begin(1, 1)
    with pytest.raises(LeftOut):
        local_training.train(context, problem.initial(0), torch.arange(12))
    assert sorted(screen.strikes) == np.flatnonzero(made.bad).tolist()


def test_a_run_says_how_good_it_is_and_whom_it_left_out():
    row = outcome(cell("a", "huge", algorithm="average"), {"commit": "x"})
    assert row["left_out"] == {"bad": 1.0, "good": 0.0}
    assert row["commit"] == "x"
    assert 0.4 < row["accuracy"] <= 1
    assert row["bad"] == pytest.approx(4 / 12, abs=1e-3)
    without = outcome(cell("a", "huge", screening=False, algorithm="average", eta_w=50.0), {})
    assert without["accuracy"] < row["accuracy"] or "failed" in without
    krum = outcome(
        cell("k", HONEST, "half", algorithm="fedavg", **{"weights.mode": "plain", "robust.rule": "krum"}), {}
    )
    assert krum["accuracy"] > 0.4
    json.dumps([row, without, krum])


def test_the_winner_is_the_most_accurate_on_the_selection_sets():
    search = AnswersSearch(seeds=[9], federations=[["table", "noise", "third"], ["digits", "signs", "half"]])
    search = dataclasses.replace(search, grids={"a": {"eta_w": [0.1, 0.2, 0.3]}})
    profile = Profile(runs={"main": AnswersRuns(faults=["noise"], shares=["third"], data=["table"])}, search=search)
    study = AnswersStudy(rows={"a": {"algorithm": "average"}, "b": {"algorithm": "validation_only"}})
    trials = plan.searched(study, profile)
    assert len(trials) == 6
    scores = iter([0.9, 0.1, 0.6, 0.5, 0.5, 0.4])
    found = {trial.key: {"selection": next(scores), "accuracy": 1.0} for trial in trials}
    assert plan.winner(study, profile, "a", found) == {"eta_w": 0.2}
    first, second = plan.cells(study, profile, found)
    assert dict(first.options) == {"algorithm": "average", "eta_w": 0.2}
    assert dict(second.options) == {"algorithm": "validation_only"}
    with pytest.raises(KeyError):
        plan.cells(study, profile, {})


def test_the_declared_study_is_fair():
    """Load checks it; every row that is reported in full has as many trials as the others."""
    study = plan.load()
    assert set(study.full.search.grids) == set(study.rows)
    assert len(plan.cells(study, study.quick, None)) < 60


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        (lambda tree: tree["rows"]["average"].update(eta_v=1.0), ["eta_v"]),
        (lambda tree: tree["full"]["runs"]["main"].update(faults=["lies"]), ["faults", "lies", "noise"]),
        (lambda tree: tree["full"]["search"].update(seeds=[0]), ["search.seeds", "reported"]),
        (lambda tree: tree["full"]["search"]["grids"].update(average={"eta_w": [0.1]}), ["as many trials"]),
        (lambda tree: tree["full"].update(round=3), ["round", "params.py"]),
    ],
)
def test_mistakes_in_params_yaml_are_answered_before_anything_runs(change, parts, tmp_path):
    tree = json.loads(json.dumps(read_yaml(plan.HERE / "params.yaml")))
    change(tree)
    path = tmp_path / "params.yaml"
    path.write_text(json.dumps(tree))
    with pytest.raises(UserError) as caught:
        plan.load(path)
    for part in (*parts, "Fix:"):
        assert part in str(caught.value)


def test_the_page_compares_with_the_run_without_the_bad_clients(tmp_path):
    """Only data sets and seeds whose runs are all there count; a run lost 30 points at most."""
    study = AnswersStudy(rows={"a": {"algorithm": "average"}, "b": {"algorithm": "afl"}})
    profile = Profile(
        runs={"main": AnswersRuns(data=["table"], faults=[HONEST, "noise"], shares=["third"], seeds=[0, 1, 2])}
    )
    cells = plan.cells(study, profile, None)
    rows = []
    for each in cells:
        value = 0.9 if each.fault == HONEST else 0.8 - 0.2 * (each.row == "b") * each.seed
        about = {"device": "cpu", "date": "today", "commit": "abc"}
        rows.append({"key": each.key, "accuracy": value, **about})
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows[:-1]))  # of the last seed one is missing
    text = page.write_page(study, profile, cells, path, tmp_path / "out").read_text()
    assert "*8 of 12 runs, seeds 0, 1, " in text
    assert "| a | 90.0 | 80.0 | 10.0 |" in text
    assert "| b | 90.0 | 70.0 | 30.0 |" in text
    assert "code abc" in text
