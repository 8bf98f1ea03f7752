"""The study of trust: its federations, a run of every method, results, commands, the search."""

import argparse
import dataclasses
import json

import numpy as np
import pytest
import torch

from experiments import provenance, results
from experiments.trust import commands, outcomes, own, plan, search
from experiments.trust.federations import FEDERATIONS, available, federation, federations
from experiments.trust.given import GIVEN, heart_file
from experiments.trust.own import OWN, SMALLEST
from experiments.trust.params import Runs, TrustSearch, TrustStudy
from experiments.trust.running import METHODS, run, trust
from experiments.trust.validation import BASES, SETTINGS, VALIDATION, setting
from pipeline.config.loading import read_yaml
from pipeline.errors import UserError

# Computed from the federations' original source: clients, samples they hold, bad ones, and the sums below.
CHECKSUMS = {
    "digits-2of8-0": (8, 1417, [1, 3], 704.430758, 6250229),
    "digits-5of8-0": (8, 1417, [1, 3, 4, 5, 7], 774.78933, 6575906),
    "digits-linear-2of8-0": (8, 1417, [1, 3], 817.164064, 7061529),
    "digits-moved-2of6-0": (6, 1437, [0, 5], 835.94849, 7169550),
    "digits-skewed-3of10-0": (10, 1397, [2, 6, 7], 892.169579, 8643861),
    "digits28-2of8-0": (8, 1417, [1, 3], 75540.904677, 5970944),
    "cancer-2of6-0": (6, 379, [0, 4], 22.61347, 253060),
    "cancer-moved-2of6-0": (6, 379, [0, 4], 24.399638, 276641),
    "table-2of12-0": (12, 3200, [3, 7], 754.40224, 10807857),
    "table-linear-6of12-0": (12, 3200, [1, 3, 5, 7, 9, 11], 713.797938, 10314968),
    "wine-1of4-0": (4, 106, [2], 0.603327, 27188),
    "heart-2of6-0": (6, 660, [1, 4], 12.520584, 542511),
    "digits-2of8-1": (8, 1417, [1, 3], 649.309607, 5686508),
    "cancer-moved-2of6-1": (6, 379, [0, 4], 21.132007, 238952),
    "table-2of12-1": (12, 3200, [3, 7], 687.277144, 9558143),
    "wine-1of4-1": (4, 104, [2], 0.519749, 25731),
}
RNG = np.random.default_rng(0)
X, Y = np.arange(12.0).reshape(4, 3), np.array([0, 1, 2, 1])


@pytest.mark.parametrize("name", CHECKSUMS)
def test_given_federations_hold_the_given_arrays(name):
    kind, seed = name.rsplit("-", 1)
    if kind == "heart-2of6" and not heart_file().is_file():
        pytest.skip("no heart-disease/heart.csv in FEDBILEVEL_DATA_MIRROR")
    made = federation(kind, int(seed))
    whole = tuple(np.concatenate(parts) for parts in zip(made.selection, made.test, strict=True))
    features = labels = 0.0
    for k, (A, b) in enumerate([*made.clients, made.validation, whole], 1):
        flat = A.reshape(len(b), -1)
        features += k * (np.arange(1, len(b) + 1) @ flat @ np.arange(1, flat.shape[1] + 1)) / 1e6
        labels += k * (np.arange(1, len(b) + 1) * (b + 1)).sum()
    held = sum(len(b) for _, b in made.clients)
    assert (len(made.clients), held, np.flatnonzero(made.bad).tolist()) == CHECKSUMS[name][:3]
    assert (features, labels) == pytest.approx(CHECKSUMS[name][3:], rel=1e-6)
    assert len(made.selection[1]) == round(0.4 * len(whole[1]))


def test_the_federation_of_a_missing_file_is_left_out(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("FEDBILEVEL_DATA_MIRROR", str(tmp_path))
    assert available(["wine-1of4", "heart-2of6"]) == ["wine-1of4"]
    assert capsys.readouterr().err.count("\n") == 1
    with pytest.raises(UserError, match=r"heart.csv does not exist.* Fix: set FEDBILEVEL_DATA_MIRROR"):
        federation("heart-2of6", 0)
    with pytest.raises(UserError, match="federations = 'nowhere'"):
        available(["nowhere"])


def test_our_federations_are_what_their_recipes_say():
    assert len(OWN) >= len(GIVEN)
    for made, name in zip(federations([3], OWN), OWN, strict=True):
        recipe = own.RECIPES[name]
        assert (len(made.clients), made.bad.sum()) == (recipe.clients + recipe.copies, recipe.bad)
        assert min(len(b) for _, b in made.clients) >= SMALLEST
        assert len(made.validation[1]) == recipe.validation
        for _, b in (*made.clients, made.validation, made.selection, made.test):
            assert 0 <= b.min() <= b.max() < made.classes
    sizes = [len(b) for _, b in federation("sizes-2of8", 0).clients]
    assert (min(sizes), max(sizes)) == (10, 10000)
    assert len(federation("many-100of300", 0).clients) == 300


def test_equal_seeds_give_equal_federations():
    one, again, other = (federation("digits-flips-3of9", seed) for seed in (4, 4, 5))
    for k in range(9):
        assert np.array_equal(one.clients[k][0], again.clients[k][0])
        assert np.array_equal(one.clients[k][1], again.clients[k][1])
    assert not np.array_equal(one.test[0], other.test[0])


def test_what_is_wrong_with_bad_clients():
    assert own.moved(X, Y, 3, RNG)[1].tolist() == [1, 2, 0, 2]
    assert own.flipped(X, Y, 3, RNG, pair=(0, 2))[1].tolist() == [2, 1, 0, 1]
    assert np.array_equal(own.scaled(X, Y, 3, RNG)[0], 100 * X)
    order = own.shuffled(X, Y, 3, np.random.default_rng(1))[0]
    assert np.array_equal(np.sort(order, 1), X)
    assert np.array_equal(np.diff(order, axis=0), np.full((3, 3), 3.0))  # one order for all samples
    rider, answers = own.free_riding(X, Y, 3, RNG)
    assert rider.tolist() == [[4.5, 5.5, 6.5]] * 4
    assert len(set(answers.tolist())) == 1
    labels = np.zeros(100_000, dtype=int)
    wrong = own.noisy(labels, labels, 4, np.random.default_rng(0), rate=0.4)[1] != 0
    assert wrong.mean() == pytest.approx(0.3, abs=0.01)  # a quarter of the random labels is right by chance


def test_a_copy_is_no_bad_client():
    made = federation("digits-copies-2of11", 0)
    copied = made.clients[list(made.kinds).index("clean")]
    assert [kind for kind in made.kinds if kind == "duplicate"] == ["duplicate"] * 3
    assert made.bad.sum() == 2
    assert all(held is copied for held, kind in zip(made.clients, made.kinds, strict=True) if kind == "duplicate")


def test_smaller_validation_sets_are_parts_of_the_whole():
    whole, twenty, dirty = (federation(f"table-2of12{ending}", 3) for ending in ("", "-v20", "-v50-dirty"))
    assert np.array_equal(twenty.validation[0], whole.validation[0][:20])
    assert np.array_equal(twenty.validation[1], whole.validation[1][:20])
    assert np.array_equal(dirty.validation[0], whole.validation[0][:50])
    assert (dirty.validation[1] != whole.validation[1][:50]).sum() == 5
    assert all(a is b or np.array_equal(a, b) for a, b in zip(twenty.test, whole.test, strict=True))
    assert {setting(name) for name in VALIDATION} == {(base, end) for base in BASES for end in SETTINGS if end}
    assert setting("table-2of12") == ("table-2of12", "")
    assert setting("wine-1of4-v20") == ("wine-1of4-v20", "")


def test_trust_by_hand():
    """Pairs: .5 over .2 and .1, .2 beside .2, .2 over .1: three and a half of four. The last one is a copy."""
    clean, bad = np.array([True, False, True, False, False]), np.array([False, True, False, True, False])
    found = trust(np.array([0.5, 0.2, 0.2, 0.1, 0.0]), clean, bad)
    assert found == pytest.approx({"auc": 0.875, "bad_weight": 0.3, "worst_bad": 0.2})
    assert trust(np.full(5, 0.2), ~bad, bad & clean) == {}
    assert "auc" not in trust(np.full(5, 0.2), clean & bad, bad)


@pytest.fixture(scope="module")
def small():
    """An image and a table federation."""
    return federation("digits-moved-2of6", 0), federation("wine-1of4", 0)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_runs(small, method):
    for made in small:
        row = run(made, method, 3, 0.5, seed=1, batch_size=4, every=2)
        assert "failed" not in row
        assert len(row["weights"]) == len(made.clients)
        assert len(row["curve"]) == 2
        assert row["best"] >= row["accuracy"] > 0
        json.dumps(row)


def test_a_row_is_its_seed_s(small):
    one, again, other = (
        {k: v for k, v in run(small[1], "primal_dual", 5, 0.5, seed, 4, eta_x=0.5).items() if k != "seconds"}
        for seed in (1, 1, 2)
    )
    assert one == again != other
    fixed = run(small[1], "fedavg", 2, **{"weights.mode": "plain"})
    assert fixed["weights"] == [0.25] * 4
    assert "client_state_bytes" in fixed["measures"]


def test_a_run_that_diverges_counts_as_nothing_learnt(small):
    row = run(small[1], "average", 5, eta_w=1e38, curvature_limit=0.0)
    assert "no longer finite" in row["failed"]
    assert (row["accuracy"], row["selection"], row["auc"]) == (0, 0, 0.5)
    assert row["weights"] == [0.25] * 4


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [("sgd", {}, "algorithm = 'sgd'"), ("afl", {"eta": 1.0}, "no parameter 'eta' in Afl. Fix: rename")],
)
def test_what_cannot_be_run_is_refused(small, method, options, message):
    with pytest.raises(UserError, match=message):
        run(small[1], method, 1, **options)


# ------------------------------------------------------------------------------------------------------- study and page

TINY = TrustStudy(
    batch_size=4,
    quick={"all": Runs(["primal_dual", "average", "oracle_weights"], ["wine-1of4", "iris-1of3"], rounds=[3])},
    full={"more": Runs(["afl"], ["wine-1of4"], rounds=[3])},
    search=TrustSearch(["iris-1of3"], [9], [2], [1.0], {"average": {"eta_w": [0.01, 0.3]}}),
)


def test_the_study_is_sound():
    """The same methods in both profiles and in the search, no cell twice; the full profile has every federation."""
    study = plan.load()
    for profile in ("quick", "full"):
        cells = plan.cells(study, profile)
        assert {cell.method for cell in cells} == set(study.search.grids) <= set(METHODS)
        assert len({cell.key for cell in cells}) == len(cells)
    assert {cell.federation for cell in plan.cells(study, "full")} == {*available(), *VALIDATION}
    assert FEDERATIONS.keys() == {*GIVEN, *OWN}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seeds": [10]}, r"search.seeds = \[10\].* no seed that is reported, as 10 is"),
        ({"grids": {"afl": {"eta_w": [0.1]}, "average": {"eta_w": [0.1, 0.2]}}}, "as many trials for every method"),
        ({"grids": {"afl": {"eta_q": [0.1]}}}, "no parameter 'eta_q'"),
        ({"grids": {"afl": {"eta_w": [-0.1]}}}, "eta_w = -0.1"),
        ({"grids": {"sgd": {"eta_w": [0.1]}}}, "methods = 'sgd'"),
        ({"federations": ["nowhere"]}, "federations = 'nowhere'"),
        ({"places": 3}, "unexpected keyword|extra"),
    ],
)
def test_a_study_that_cannot_be_run_is_refused(tmp_path, change, message):
    tree = read_yaml(plan.HERE / "params.yaml")
    tree["search"] |= change
    path = tmp_path / "params.yaml"
    path.write_text(json.dumps(tree))
    with pytest.raises(UserError, match=message):
        plan.load(path)


def test_a_changed_default_is_another_cell():
    cell = plan.PlannedRun("iris-1of3", 0, "average", 3, 1.0)
    same = dataclasses.replace(cell, options=(("schedule", "cosine"),))
    other = dataclasses.replace(cell, options=(("schedule", "constant"),))
    assert cell.key == same.key != other.key


def test_results_go_on_where_they_were_stopped(tmp_path, monkeypatch, capsys):
    path, ran = tmp_path / "results.jsonl", []

    def counted(cell, about):
        ran.append(cell)
        return {"wrong": "nothing", "accuracy": 0.5} | about

    monkeypatch.setattr(outcomes, "outcome", counted)
    cells = plan.cells(TINY, "quick")
    assert len(cells) == 6
    outcomes.run_cells(cells[:4], path, 1)
    path.write_bytes(path.read_bytes()[:-7])  # killed while it wrote the fourth
    assert list(results.read(path)) == [cell.key for cell in cells[:3]]
    outcomes.run_cells(cells, path, 1)
    assert ran == [*cells[:4], *cells[3:]]
    assert results.read(path).keys() == {cell.key for cell in cells}
    outcomes.run_cells(cells, path, 1)
    assert len(ran) == 7
    outcomes.run_cells(cells[:1], path, 1, again=True)
    assert len(ran) == 8
    assert "6 of 6 cells are done, 0 to run" in capsys.readouterr().out
    row = results.read(path)[cells[0].key]
    assert {"device", "date", "commit", "dirty"} <= row.keys()
    path.write_text("no row\n" + path.read_text())
    with pytest.raises(UserError, match="line 1 is no row"):
        results.read(path)


@pytest.mark.parametrize(("changes", "again"), [("", True), (" M pipeline/seeds.py", False)])
def test_what_changed_code_has_run_is_run_again_once_it_is_committed(tmp_path, monkeypatch, changes, again):
    path, cells, asked = tmp_path / "results.jsonl", plan.cells(TINY, "quick")[:2], []
    for cell, dirty in zip(cells, (True, False), strict=True):
        results.append(path, {"key": cell.key, "dirty": dirty})
    monkeypatch.setattr(provenance, "changes", lambda: changes)
    monkeypatch.setattr(outcomes, "run_missing", lambda missing, *others: asked.extend(missing))
    outcomes.run_cells(cells, path, 1)
    assert asked == [cells[0].key] * again


def test_a_cell_that_raises_does_not_stop_the_others(tmp_path, monkeypatch):
    cells = plan.cells(TINY, "quick")

    def failing(cell, about):
        if cell is cells[0]:
            raise ZeroDivisionError("by zero")
        return {"accuracy": 0.5}

    monkeypatch.setattr(outcomes, "outcome", failing)
    with pytest.raises(UserError, match=r"1 cells failed: primal_dual on wine-1of4-0, 3 rounds"):
        outcomes.run_cells(cells[:3], tmp_path / "results.jsonl", 1)
    assert len(results.read(tmp_path / "results.jsonl")) == 2


def test_the_commands_from_nothing_to_the_page(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(commands, "load", lambda: TINY)
    monkeypatch.setattr(commands, "HERE", tmp_path)
    monkeypatch.setattr(provenance, "changes", lambda: "")
    monkeypatch.setattr(commands, "RESULTS", tmp_path / "results.jsonl")
    monkeypatch.setattr(commands, "TRIALS", tmp_path / "search.jsonl")
    monkeypatch.setattr(commands, "INTERVALS", tmp_path / "coverage.jsonl")
    monkeypatch.setattr(commands, "CHANGES", tmp_path / "changes.jsonl")

    def perform(what, profile="quick", only="", again=False):
        commands.perform(argparse.Namespace(what=what, profile=profile, only=only, again=again, workers=1))

    threads = torch.get_num_threads()
    perform("page")
    assert "Nothing has been run yet" in (tmp_path / "page.md").read_text()
    perform("plan")
    assert "6 of 6 cells to run" in capsys.readouterr().out
    perform("run")
    perform("page")
    torch.set_num_threads(threads)
    text = (tmp_path / "page.md").read_text()
    assert "6 of 7 runs" in text
    assert "## 3 rounds, all clients in every round" in text
    assert "**Few validation samples** (iris-1of3)" in text
    assert (tmp_path / "page.png").stat().st_size > 1000
    with pytest.raises(UserError, match="--only = 'nowhere'"):
        perform("run", only="nowhere")
    monkeypatch.setattr(provenance, "changes", lambda: " M pipeline/seeds.py")
    with pytest.raises(UserError, match="page is not made"):
        perform("page")


def test_the_search_takes_the_trial_of_best_selection_accuracy(tmp_path):
    path = tmp_path / "search.jsonl"
    assert search.winners(TINY, path) == {}
    (_, (slow,)), (_, (fast,)) = plan.trials(TINY, "average")
    for cell, selection, accuracy in ((slow, 0.8, 0.1), (fast, 0.7, 0.9)):
        results.append(path, {"key": cell.key, "selection": selection, "accuracy": accuracy})
    search.run_search(TINY, path, 1)  # nothing is missing
    assert search.winners(TINY, path) == {"average": {"eta_w": 0.01}}
    found = results.read(path)["winner average"]
    assert (found["winner"], found["selection"], found["grid"]) == ({"eta_w": 0.01}, 0.8, {"eta_w": [0.01, 0.3]})
    study = dataclasses.replace(TINY, full={"tuned": Runs(["average", "afl"], ["iris-1of3"], winners=True)})
    tuned, plain = plan.cells(study, "full", search.winners(study, path))
    assert (tuned.options, plain.options) == ((("eta_w", 0.01),), ())
