"""Cells: named by everything that is set, run once, read back; the tables made of them."""

from __future__ import annotations

import dataclasses
import json
import math
import re

import pytest
from experiments.primal_dual_weighting.grid import AS_PRINTED, HERE, ROWS, Plan, search_cells, table_cells
from experiments.primal_dual_weighting.params import Profile, ToyFigures

from experiments import cells, former, tracking
from experiments.cells import Cell
from experiments.primal_dual_weighting import figures, page, tables, toy, winners
from experiments.study import load_study
from pipeline.config.spec import dotted
from pipeline.errors import UserError
from pipeline.methods import ALGORITHMS, Cost
from pipeline.methods.bilevel.fednest_general import FedNestGeneral
from pipeline.params import Params
from tests.core.bilevel.helpers import make_context, one_round
from tests.core.bilevel.quadratic import random

TINY = {"data.name": "digits", "model.name": "linear", "train.rounds": 3, "train.eval_every": 3}


@pytest.fixture(scope="module")
def plan():
    return Plan.load("quick")


def test_a_cell_is_named_by_everything_in_use():
    base = Cell("t", "primal_dual", TINY)
    assert base.name == Cell("t", "primal_dual", dict(reversed(TINY.items()))).name
    others = [
        {"seed": 1},
        {"algorithms.primal_dual.gamma": 9.0},
        {"algorithms.primal_dual.clip_norm": 5.0},
        {"algorithms.primal_dual.gamma_schedule": "rising"},
        {"federation.participation": 0.5},
        {"train.rounds": 4},
    ]
    names = {Cell("t", "primal_dual", TINY | other).name for other in others}
    assert len(names | {base.name}) == 7
    unused = {"algorithms.rfho.eta_w": 0.7, "partition.iid.clients": 3, "train.checkpoint_every": 2}
    assert Cell("t", "primal_dual", TINY | unused).name == base.name
    assert "clip_norm" not in cells.in_use(TINY | {"algorithm": "rfho"})["rfho"]  # 0: as before there was one
    constant_steps = {"algorithms.primal_dual.gamma_schedule": "rising", "algorithms.primal_dual.schedule": "constant"}
    for same in (TINY, TINY | constant_steps):  # as before there was one
        assert "gamma_schedule" not in cells.in_use(same)["primal_dual"]


def test_every_finished_cell_of_the_full_pages_is_what_its_name_says():
    """Its settings on the defaults that it was run with give the name of its file."""
    files = list(cells.ROOT.glob("experiments/*/cells/full*/**/*.json"))
    named = [Cell(**json.loads(path.read_text())["cell"]).name.split("/")[-1] + ".json" for path in files]
    assert len(files) > 50
    assert named == [path.name for path in files]


def test_a_cell_is_run_with_the_former_defaults_unless_it_asks_for_others():
    """Its own settings come first; a name is another one if any option is."""
    lead, own = "algorithms.primal_dual.", {"algorithms.primal_dual.eta_x": 0.5}
    found, today = dotted(former.parameters(own)), dotted(Params())
    assert {name: found[name] for name in found if found[name] != today[name]} == former.SETTINGS | own
    expected = {"dual": "printed", "weight_step": "plain", "curvature_limit": 0.0, "eta_w": 0.1, "dual_damping": 0.02}
    assert {name: found[lead + name] for name in expected} == expected
    assert dotted(former.parameters(own | {"defaults": "current"})) == today | own
    method = cells.in_use(TINY)["primal_dual"]
    assert method["eta_x"] == 0.02
    assert not {"dual", "weight_step", "curvature_limit"} & method.keys()  # as before there were any
    changed = [{}, {"defaults": "current"}]
    changed += [{lead + "dual": "residual"}, {lead + "weight_step": "scaled"}, {lead + "curvature_limit": 2.0}]
    assert len({Cell("t", "primal_dual", TINY | more).name for more in changed}) == 5
    with pytest.raises(UserError, match=r"defaults = 'latest'.*former or current"):
        former.parameters({"defaults": "latest"})


def test_a_wrong_setting_is_refused():
    with pytest.raises(KeyError, match="gama"):
        _ = Cell("t", "primal_dual", {"algorithms.primal_dual.gama": 1.0}).name


def test_a_cell_runs_once_and_tells_what_came_out(tmp_path):
    data = tmp_path / "data"
    cells.fetch("digits", data)
    cell = Cell("t", "primal_dual", TINY)
    assert cells.read(cell, tmp_path / "cells") is None
    line = cells.run(cell, tmp_path / "cells", data)
    found = cells.read(cell, tmp_path / "cells")
    assert cell.name in line
    assert found["cell"]["settings"] == TINY
    assert found["curve"]["round"] == [0.0, 3.0]
    assert found["outcome"]["test_accuracy"] == found["curve"]["test_accuracy"][-1]
    assert sum(found["outcome"]["weights"]) == pytest.approx(1.0, abs=1e-5)
    assert found["costs"]["gradients"] == 30
    assert found["record"] == cells.RECORD
    assert {"device", "date", "commit", "seconds"} <= set(found["machine"])
    cells.run_all([cell], tmp_path / "cells", workers=1, data=tmp_path / "no such data")  # nothing left to run
    names = [name for name, _, _ in tracking.points(found)]
    steps = [(name, step) for name, _, step in tracking.points(found)]
    assert len(steps) == len(set(steps))
    assert {"test_accuracy", "client_weight/09", "cost/hvps", "clean_weight"} <= set(names)


def test_a_run_that_two_tables_share_is_run_once(tmp_path):
    """Same parameters in use: the file is taken over, with its own labels; other parameters: it is not."""
    one, same = Cell("search", "rfho", TINY), Cell("table", "rfho", TINY | {"train.checkpoint_every": 7})
    cells.save(one, tmp_path, {"cell": {"table": "search"}, "outcome": {"test_accuracy": 0.5}})
    cells.run_all([same], tmp_path, 1, tmp_path / "no data")
    assert cells.read(same, tmp_path) == {"cell": dataclasses.asdict(same), "outcome": {"test_accuracy": 0.5}}
    assert not cells.take_over(Cell("table", "rfho", TINY | {"seed": 1}), tmp_path)


def older(settings, **more):
    """A file of record 1, in the folder where cells lie; its cell."""
    return {"cell": {"table": "t", "row": "r", "settings": settings}, **more}


def reading(content, folder):
    cell = Cell(**content["cell"])
    cells.save(cell, folder, content)
    return cells.read(cell, folder)


def test_older_files_of_methods_with_two_models_are_read_with_the_model_that_the_method_returns(tmp_path):
    """They tested theta, with theta-bar beside it. FedDyn's model is theta, A-FedPD's theta-bar: whose losses are not
    known. A new file is what it says."""
    part = {"test_accuracy": 0.7, "average_accuracy": 0.8, "test_loss": 0.5}
    curve = {"round": [0], "test_accuracy": [0.2], "average_accuracy": [0.3], "validation_loss": [1.5]}
    a_fedpd = older({"algorithm": "a_fedpd"}, outcome=part, curve=curve)
    found = reading(a_fedpd, tmp_path)
    assert found["outcome"] == {"test_accuracy": 0.8, "average_accuracy": 0.8, "shifted_accuracy": 0.7}
    assert found["curve"] == {
        "round": [0],
        "test_accuracy": [0.3],
        "average_accuracy": [0.3],
        "shifted_accuracy": [0.2],
    }
    found = reading(older({"algorithm": "feddyn"}, outcome=part, curve=curve), tmp_path)
    assert found["outcome"] == part | {"shifted_accuracy": 0.7}
    assert found["curve"] == curve | {"shifted_accuracy": [0.2]}
    new = a_fedpd | {"record": cells.RECORD}
    assert reading(new, tmp_path) == new
    none = older({"algorithm": "scaffold"}, outcome={"test_accuracy": 0.7}, curve={"test_accuracy": [0.2]})
    assert reading(none, tmp_path) == none


def test_older_floats_of_fednest_are_counted_as_new_ones(tmp_path):
    """Two of ten clients in an exchange, T = 1, N = 3, d_x = 3, d_y = 4: as it was, every round sent
    2 (2T d_y + (N + 1) d_y + 2 d_x) = 60 up and 2 (T (d_x + 2 d_y) + (N + 2) d_y + 2 d_x) = 74 down. As a bare run
    counts it now."""
    hyper = "algorithms.fednest_general"
    settings = {"algorithm": "fednest", "problem": "hyper_representation", f"{hyper}.series_terms": 3}
    settings |= {"federation.sampling": "fixed", "federation.participation": 0.2, "train.rounds": 4, "seed": 7}
    problem, algorithm = random(clients=10), ALGORITHMS["fednest_general"]
    context = make_context(FedNestGeneral(series_terms=3), problem, 0.2, seed=7)
    state, now = algorithm.init(context), [Cost()]
    for t in range(1, 5):
        now.append(now[-1] + one_round(algorithm, state, dataclasses.replace(context, round=t)))
    assert now[-1].floats_up == 4 * 60
    costs = {"floats_up": 4 * 60, "floats_down": 4 * 74}
    curve = {"round": [0.0, 2.0, 4.0], "floats": [0.0, 2 * 134.0, 4 * 134.0]}
    content = older(settings, outcome={}, kinds=["clean"] * 10, costs=costs, curve=curve)
    found = reading(content, tmp_path)
    assert found["costs"] == {"floats_up": 4 * 60, "floats_down": now[-1].floats_down}
    assert found["curve"]["floats"] == [now[t].floats_up + now[t].floats_down for t in (0, 2, 4)]
    assert now[-1].floats_down > 4 * 74


@pytest.mark.parametrize(
    "same",
    [
        {"federation.participation": 1.0},
        {"algorithms.fednest_general.client_sets": "one"},
        {"algorithms.fednest_general.mode": "code_local_batch"},
        {"problem": "client_weighting"},
    ],
)
def test_floats_of_one_client_set_are_what_they_were(tmp_path, same):
    settings = {"algorithm": "fednest", "problem": "hyper_representation", "federation.participation": 0.5} | same
    content = older(settings, outcome={}, kinds=["clean"] * 4, costs={"floats_down": 9, "floats_up": 3}, curve={})
    assert reading(content, tmp_path) == content


def test_older_floats_that_cannot_be_counted_again_are_refused(tmp_path):
    settings = {"algorithm": "fednest_general", "problem": "hyper_representation", "federation.participation": 0.5}
    with pytest.raises(UserError, match=r"^the floats of t/r_p0\.5_seed0_\w+ .* Fix: delete its file"):
        reading(older(settings, outcome={}, kinds=["clean"] * 4, curve={}), tmp_path)


def test_the_record_of_a_fedpd_against_feddyn():
    """What docs/results.md says of the MNIST runs, in points, seed by seed: A-FedPD's mean model leads early and is
    level in the end, the model it hands out is behind."""
    study = load_study("a_fedpd", "full")
    curves = {(s.row, s.cell.seed): cells.read(s.cell, study.cells)["curve"] for s in study.table("mnist")}

    def lead(what, first, last):
        differences = []
        for seed in (0, 1, 2):
            ours, theirs = curves["A-FedPD", seed], curves["FedDyn", seed]
            both = zip(ours["round"], ours[what], theirs[what], strict=True)
            found = [100 * (a - b) for t, a, b in both if first <= t <= last]
            differences.append(sum(found) / len(found))
        return pytest.approx(differences, abs=0.006)

    assert lead("test_accuracy", 20, 50) == [0.49, 0.35, 0.52]
    assert lead("test_accuracy", 160, 200) == [0.03, 0.00, 0.01]
    assert lead("shifted_accuracy", 160, 200) == [-0.11, -0.05, -0.17]


def test_a_diverging_cell_says_so(tmp_path):
    data = tmp_path / "data"
    cells.fetch("digits", data)
    cell = Cell("t", "primal_dual", TINY | {"algorithms.primal_dual.eta_w": 1e38})
    cells.run(cell, tmp_path / "cells", data)
    assert "no longer finite" in cells.read(cell, tmp_path / "cells")["failed"]


def test_every_row_at_every_participation_and_equal_trials(plan):
    made = table_cells(plan, "table", {"rfho": {"eta_w": 0.05, "eta_x": 7.0}})
    rows = (*ROWS, "primal_dual, rising gamma")
    assert {(c.row, c.participation) for c in made} == {(r, p) for r in rows for p in plan.sizes.table.participation}
    assert len({c.name for c in made}) == len(made)
    rfho = next(c for c in made if c.row == "rfho")
    assert rfho.settings["algorithms.rfho.eta_x"] == 7.0
    varied = next(c for c in made if c.row == "primal_dual, rising gamma")
    assert cells.in_use(varied.settings)["primal_dual"]["gamma_schedule"] == "rising"
    printed = next(c for c in made if c.row == AS_PRINTED)
    assert printed.settings["algorithms.primal_dual.schedule"] == "constant"
    trials = [c.row for c in search_cells(Plan.load("full"))]
    assert {row: trials.count(row) for row in set(trials)} == {
        **dict.fromkeys(("primal_dual", "rfho", "fednest", "sustain", "afl"), 6),
        **dict.fromkeys(("average", "validation_only", "oracle_weights"), 3),
    }


def written(folder, cell, outcome, failed=None):
    path = cell.path(folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    machine = {"device": "d", "date": "2026-01-01", "seconds": 60.0}
    kinds = ["clean"] * 2 + ["noisy"] * 2
    content = {
        "machine": machine,
        "kinds": kinds,
        "outcome": outcome,
        "curve": {"round": [0, 1], "test_accuracy": [0, 1]},
    }
    path.write_text(json.dumps({"machine": machine, "failed": failed} if failed else content))


def test_the_winner_is_the_best_on_the_selection_set(plan, tmp_path):
    """Not on the test set; of equals the one of smallest loss; a diverged or missing trial never wins."""
    grids = {"rfho": {"eta_w": [0.1, 0.2], "eta_x": [1.0, 3.0]}, "afl": {"eta_x": [0.1]}}
    plan = dataclasses.replace(plan, sizes=dataclasses.replace(plan.sizes, grids=grids))
    rfho = [c for c in search_cells(plan) if c.row == "rfho"]
    written(tmp_path, rfho[0], {"selection_accuracy": 0.7, "selection_loss": 0.1, "test_accuracy": 0.99})
    written(tmp_path, rfho[1], {"selection_accuracy": 0.8, "selection_loss": 0.4, "test_accuracy": 0.2})
    written(tmp_path, rfho[2], {}, failed="gone")
    assert winners.choose(plan, tmp_path) == {"rfho": {"eta_w": 0.1, "eta_x": 3.0}}
    states = [row["state"] for row in winners.trials(plan, tmp_path) if row["method"] == "rfho"]
    assert states == ["done", "done", "diverged", "not run"]
    written(tmp_path, rfho[3], {"selection_accuracy": 0.8, "selection_loss": 0.3, "test_accuracy": 0.1})
    assert winners.choose(plan, tmp_path) == {"rfho": {"eta_w": 0.2, "eta_x": 3.0}}


def test_of_equal_trials_the_former_default_wins(plan, tmp_path):
    shipped = former.parameters({}).algorithms.primal_dual
    grid = {"eta_w": [shipped.eta_w, 0.01], "eta_x": [0.5, shipped.eta_x]}
    plan = dataclasses.replace(plan, sizes=dataclasses.replace(plan.sizes, grids={"primal_dual": grid}))
    for loss, cell in enumerate(search_cells(plan)):
        written(tmp_path, cell, {"selection_accuracy": 0.8, "selection_loss": float(loss)})
    assert winners.choose(plan, tmp_path) == {"primal_dual": {"eta_w": shipped.eta_w, "eta_x": shipped.eta_x}}


def test_the_table_by_hand(tmp_path):
    """Two runs of 98 and 99 %: mean 98.5, deviation sqrt(1/2); the paper's rfho has 98.34."""
    own = [Cell("t", "rfho", TINY | {"seed": seed, "algorithm": "rfho"}) for seed in range(3)]
    written(tmp_path, own[0], {"test_accuracy": 0.98, "weights": [0.5, 0.4, 0.06, 0.04]})
    written(tmp_path, own[1], {"test_accuracy": 0.99, "weights": [0.7, 0.3, 0.0, 0.0]})
    (row,) = tables.summarise(own, tmp_path, published=True)
    assert row["runs"] == "2 of 3"
    assert row["accuracy"] == pytest.approx(98.5)
    assert row["standard_deviation"] == pytest.approx(math.sqrt(0.5))
    assert row["difference"] == pytest.approx(0.16)
    assert row["weights"] == pytest.approx([0.6, 0.35])
    assert row["noise"] == pytest.approx(0.025)
    assert row["largest_noise"] == pytest.approx(0.06)
    text = tables.markdown([row], published=True)
    assert "98.50 ± 0.71" in text
    assert "98.34 ± 0.18" in text
    assert "+0.16" in text


def test_cells_that_were_not_run_are_shown_as_such(plan, tmp_path):
    path = page.write_page(plan, {}, tmp_path / "cells", tmp_path / "page")
    text = path.read_text()
    for row in ROWS:  # in the table of two participations, and in that of bad clients
        assert len(re.findall(rf"[:;] {row}[;.]", text)) == 3
    assert "No cell of this part has been run yet" in text
    assert figures.accuracy(table_cells(plan, "table", {}), tmp_path, "") is None


def test_detection_is_averaged_and_shown_by_kind(tmp_path):
    own = [Cell("t", "rfho", TINY | {"seed": seed, "algorithm": "rfho"}) for seed in range(2)]
    common = {"clean_weight": 0.9, "quality_correlation": 0.5}
    written(tmp_path, own[0], common | {"test_accuracy": 0.9, "detection_auc": 1.0, "detection_auc_small": 0.5})
    written(tmp_path, own[1], common | {"test_accuracy": 0.8, "detection_auc": 0.5, "detection_auc_small": 0.5})
    (row,) = tables.detections(own, tmp_path)
    assert row["detection_auc"] == pytest.approx(0.75)
    text = tables.detection_markdown([row])
    assert "| AUC, small |" in text
    assert "| 1 | rfho | 2 of 2 | 85.00 | 0.90 | 0.75 | 0.50 | 0.50 |" in text


def test_rounds_to_a_tenth():
    assert tables.first_below([1.0, 0.2, 0.1, 0.5], [0, 4, 8, 12]) == 8
    assert tables.first_below([1.0, 0.2], [0, 4]) == float("inf")


def test_a_toy_cell_holds_its_repetitions(tmp_path):
    """The exact gradient starts at w = 0, x = 1/N, whatever the method: one start per repetition."""
    tiny = Plan("quick", Profile(toy=ToyFigures(repetitions=2, rounds=2, inner_steps=[1], eval_every=1)))
    made = toy.toy_cells(tiny)
    assert len(made) == 14
    chosen = [c for c in made if "deterministic" in c.table and c.row.startswith(("primal_dual", "rfho"))]
    for cell in chosen:
        toy.run_toy(cell, tmp_path, tmp_path)
    a, b = (cells.read(cell, tmp_path) for cell in chosen)
    assert a["round"] == [0, 1, 2]
    assert [len(curve) for curve in a["stationarity"]] == [3, 3]
    assert [c[0] for c in a["stationarity"]] == [c[0] for c in b["stationarity"]]
    assert a["stationarity"][0] != a["stationarity"][1]
    assert figures.toy(made, tmp_path) is not None
    rows = tables.toy_claim(made, tmp_path)
    assert {row["method"] for row in rows} == {"primal_dual", "rfho"}
    assert {row["within_twice"] for row in rows} == {None}  # exact_gradient was not run
    steps = {name for name, _, _ in tracking.points(a)}
    assert steps == {"upper_value", "stationarity"}


def test_the_noisy_toy_by_hand(tmp_path):
    """Of three repetitions one is above its start in the last two thirds of 9 rounds (not: in round 3), one never is
    and one is no longer finite."""
    sizes = ToyFigures(repetitions=3, rounds=9, inner_steps=[1], eval_every=3, eta_x=[0.01])
    made = toy.toy_cells(Plan("quick", Profile(toy=sizes)))
    curves = {"upper_value": [[1.0, 2.0, 0.5, 0.4], [1.0, 0.5, 1.5, 0.4], [1.0, 0.5, math.inf, math.inf]]}
    curves |= {"stationarity": [[1.0, 1.0, 1.0, 0.1], [1.0, 1.0, 1.0, 0.2], [1.0, 1.0, 1.0, 0.6]]}
    chosen = next(cell for cell in made if toy.Label.of(cell) == toy.Label("noisy", "rfho", 1, 0.01))
    cells.save(chosen, tmp_path, {"round": [0, 3, 6, 9], **curves})
    (row,) = tables.toy_noise(made, tmp_path)
    assert row == {
        "setting": "noisy",
        "K": 1,
        "method": "rfho",
        "stationarity": pytest.approx(0.3),
        "gone": pytest.approx(2 / 3),
    }


def test_the_toys_claim_by_hand(tmp_path):
    """exact_gradient arrives after 4 and 8 rounds and once never; rfho after 8 (in time), 20 (late) and never."""
    sizes = ToyFigures(repetitions=3, rounds=8, inner_steps=[1], eval_every=4, eta_x=[0.01])
    made = toy.toy_cells(Plan("quick", Profile(toy=sizes)))
    never, rounds = [1.0, 0.5, 0.5, 0.5], [0, 4, 8, 20]
    curves = {
        "exact_gradient": [[1.0, 0.1, 0.1, 0.1], [1.0, 0.5, 0.1, 0.1], never],
        "rfho": [[1.0, 0.5, 0.1, 0.1], [1.0, 0.5, 0.5, 0.1], never],
        "sustain": [never, never, never],
    }
    for cell in made:
        if (label := toy.Label.of(cell)).setting == "deterministic" and label.method in curves:
            cells.save(cell, tmp_path, {"round": rounds, "stationarity": curves[label.method]})
    claim = {row["method"]: (row["median_rounds"], row["within_twice"]) for row in tables.toy_claim(made, tmp_path)}
    assert claim == {"exact_gradient": (8, 1.0), "rfho": (20, 0.5), "sustain": (math.inf, 0.0)}
    for cell in made:
        if toy.Label.of(cell).method == "exact_gradient":
            cells.save(cell, tmp_path, {"round": rounds, "stationarity": [never]})
    assert {row["within_twice"] for row in tables.toy_claim(made, tmp_path)} == {None}


def test_diverged_runs_are_called_so_everywhere(tmp_path):
    own = [Cell("t", "rfho", TINY | {"algorithm": "rfho"})]
    written(tmp_path, own[0], {}, failed="gone")
    assert figures.accuracy(own, tmp_path, "") is None
    assert "| diverged |" in tables.detection_markdown(tables.detections(own, tmp_path))
    assert "| diverged |" in tables.markdown(tables.summarise(own, tmp_path, published=False), published=False)


def sleepy(cell, folder, data):
    """A runner that fails for rfho."""
    if cell.row == "rfho":
        raise RuntimeError("no luck")
    return cell.name


def test_a_failing_cell_is_named_and_the_others_go_on(tmp_path, capsys):
    own = [Cell("t", row, {"data.name": "toy", "algorithm": row}) for row in ("rfho", "fednest")]
    with pytest.raises(UserError, match="1 cells failed: t/rfho"):
        cells.run_all(own, tmp_path, 1, tmp_path, sleepy)
    printed = capsys.readouterr().out
    assert "failed with RuntimeError: no luck" in printed
    assert "t/fednest" in printed


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("quick:", "quik:", ["quik", "quick"]),
        ("data: digits", "data: digit", ["data.name", "digits"]),
        ("seeds: [0]", "seeds: 0", ["seeds", "list of whole numbers"]),
        ("participation: [1.0, 0.5]", "participation: [1.5]", ["federation.participation", "1.5"]),
        ("    rfho: {eta_w", "    rhfo: {eta_w", ["grids.rhfo", "rfho"]),
        ("    rfho: {eta_w", "    rfho: {eta_v", ["grids.rfho", "eta_v"]),
        (
            "    rfho: {eta_w",
            "    rfho: {clip_norm: [2.0], eta_w",
            ["yaml: quick.grids.rfho: algorithms.rfho.clip"],
        ),
        ("eta_w: [0.1,", "eta_w: [-0.05,", ["eta_w", "-0.05"]),
        ("{gamma_schedule: rising}", "{gama: 1.0}", ["quick.table.variants.primal_dual, rising gamma", "gama"]),
        ("eval_every: 20,", "evalevery: 20,", ["evalevery", "eval_every"]),
    ],
)
def test_mistakes_in_the_experiments_parameters(tmp_path, old, new, said):
    path = tmp_path / "params.yaml"
    text = (HERE / "params.yaml").read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(UserError) as error:
        Plan.load("quick", path)
    for word in said:
        assert word in str(error.value)
