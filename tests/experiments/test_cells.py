"""Cells: named by everything that is set, run once, read back; the tables made of them."""

from __future__ import annotations

import json
import math

import pytest

from experiments import cells, tracking
from experiments.cells import Cell
from experiments.primal_dual_weighting import figures, page, tables, toy, winners
from experiments.primal_dual_weighting.grid import AS_PRINTED, ROWS, Plan, search_cells, table_cells

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
        {"federation.participation": 0.5},
        {"train.rounds": 4},
    ]
    names = {Cell("t", "primal_dual", TINY | other).name for other in others}
    assert len(names | {base.name}) == 5
    unused = {"algorithms.rfho.eta_w": 0.7, "partition.iid.clients": 3, "train.checkpoint_every": 2}
    assert Cell("t", "primal_dual", TINY | unused).name == base.name


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
    assert {"device", "date", "commit", "seconds"} <= set(found["machine"])
    cells.run_all([cell], tmp_path / "cells", workers=1, data=tmp_path / "no such data")  # nothing left to run
    names = [name for name, _, _ in tracking.points(found)]
    steps = [(name, step) for name, _, step in tracking.points(found)]
    assert len(steps) == len(set(steps))
    assert {"test_accuracy", "client_weight/09", "cost/hvps", "clean_weight"} <= set(names)


def test_a_diverging_cell_says_so(tmp_path):
    data = tmp_path / "data"
    cells.fetch("digits", data)
    cell = Cell("t", "primal_dual", TINY | {"algorithms.primal_dual.eta_w": 1e38})
    cells.run(cell, tmp_path / "cells", data)
    assert "no longer finite" in cells.read(cell, tmp_path / "cells")["failed"]


def test_every_row_at_every_participation_and_equal_trials(plan):
    made = table_cells(plan, "table", {"rfho": {"eta_w": 0.05, "eta_x": 7.0}})
    assert {(c.row, c.participation) for c in made} == {
        (r, p) for r in ROWS for p in plan.sizes["table"]["participation"]
    }
    assert len({c.name for c in made}) == len(made)
    rfho = next(c for c in made if c.row == "rfho")
    assert rfho.settings["algorithms.rfho.eta_x"] == 7.0
    printed = next(c for c in made if c.row == AS_PRINTED)
    assert printed.settings["algorithms.primal_dual.schedule"] == "constant"
    trials = [c.row for c in search_cells(plan)]
    assert len({trials.count(row) for row in set(trials)}) == 1


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
    """Not on the test set; of equals the first; a diverged or missing trial never wins."""
    rfho = [c for c in search_cells(plan) if c.row == "rfho"]
    assert len(rfho) == 4
    written(tmp_path, rfho[0], {"selection_accuracy": 0.7, "test_accuracy": 0.99})
    written(tmp_path, rfho[1], {"selection_accuracy": 0.8, "test_accuracy": 0.1})
    written(tmp_path, rfho[2], {}, failed="gone")
    found = winners.choose(plan, tmp_path)
    assert found == {"rfho": {"eta_w": 0.1, "eta_x": 3.0}}
    states = [row["state"] for row in winners.trials(plan, tmp_path) if row["method"] == "rfho"]
    assert states == ["done", "done", "diverged", "not run"]


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
    assert text.count("| 0 of 1 | not run |") == len(ROWS) * 3
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
    tiny = Plan("quick", {"toy": {"repetitions": 2, "rounds": 2, "inner_steps": [1], "eval_every": 1}}, {})
    made = toy.toy_cells(tiny)
    assert len(made) == 10
    chosen = [c for c in made if "deterministic" in c.table and c.row in ("primal_dual K=1", "rfho K=1")]
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
