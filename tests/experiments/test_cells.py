"""Cells: named by everything that is set, run once, read back."""

from __future__ import annotations

import dataclasses
import json

import pytest

from experiments import cells, former, provenance, tracking
from experiments.cells import Cell
from experiments.results import append, read
from experiments.study import ROOT as STUDIES
from experiments.study import load_study, studies
from pipeline.config.spec import dotted
from pipeline.errors import UserError
from pipeline.params import Params

TINY = {"data.name": "digits", "model.name": "linear", "train.rounds": 3, "train.eval_every": 3}


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
    """Its settings on the defaults that it was run with give the key of its row."""
    rows = [row for name in studies() for row in read(STUDIES / name / "results" / "full.jsonl").values()]
    assert len(rows) > 250
    assert [row["key"] for row in rows] == [Cell(**row["cell"]).name for row in rows]


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


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    cells.fetch("digits", folder)
    return folder


def test_a_cell_runs_once_and_tells_what_came_out(tmp_path, data, capsys):
    cell, path = Cell("t", "primal_dual", TINY), tmp_path / "results" / "quick.jsonl"
    assert cells.read(cell, path) is None
    cells.run_all([cell], path, 1, data)
    assert f"{cell.name}: validation_loss" in capsys.readouterr().out
    found = cells.read(cell, path)
    assert found["cell"] == dataclasses.asdict(cell)
    assert found["curve"]["round"] == [0.0, 3.0]
    assert found["outcome"]["test_accuracy"] == found["curve"]["test_accuracy"][-1]
    assert sum(found["outcome"]["weights"]) == pytest.approx(1.0, abs=1e-5)
    assert found["costs"]["gradients"] == 30
    assert {"device", "date", "commit", "seconds"} <= set(found["machine"])
    assert not list((tmp_path / ".resume").glob("*/state.ckpt"))
    cells.run_all([cell], path, 1, tmp_path / "no such data")  # nothing left to run
    names = [name for name, _, _ in tracking.points(found)]
    steps = [(name, step) for name, _, step in tracking.points(found)]
    assert len(steps) == len(set(steps))
    assert {"test_accuracy", "client_weight/09", "cost/hvps", "clean_weight"} <= set(names)


def row_of(cell, commit="1234567", **machine):
    return {"key": cell.name, "cell": {"table": cell.table}, "machine": {"commit": commit, **machine}, "outcome": {}}


def test_a_run_that_two_tables_share_is_run_once(tmp_path):
    """Same parameters in use: the row is taken over, with its own labels; other parameters: it is not."""
    one, same = Cell("search", "rfho", TINY), Cell("table", "rfho", TINY | {"train.checkpoint_every": 7})
    other, path = Cell("table", "rfho", TINY | {"seed": 1}), tmp_path / "results" / "quick.jsonl"
    append(path, row_of(one))
    cells.run_all([same], path, 1, tmp_path / "no data")
    assert cells.read(same, path) == row_of(one) | {"key": same.name, "cell": dataclasses.asdict(same)}
    assert cells.take_over([other], read(path).values(), path) == set()


@pytest.mark.parametrize(
    ("commit", "machine", "changes", "again"),
    [
        ("1234567", {}, "", False),
        ("1234567-dirty", {}, "", True),
        ("1234567-dirty", {}, " M pipeline/seeds.py", False),
        ("1234567-dirty", {"kept": True}, "", False),
    ],
)
def test_what_changed_code_has_run_is_run_again_once_it_is_committed(
    tmp_path, monkeypatch, commit, machine, changes, again
):
    cell, path, asked = Cell("t", "rfho", {"data.name": "toy", "algorithm": "rfho"}), tmp_path / "r" / "q.jsonl", []
    append(path, row_of(cell, commit, **machine))
    monkeypatch.setattr(provenance, "changes", lambda: changes)

    def runner(missing, total, *others):
        asked.extend(missing)

    monkeypatch.setattr(cells, "run_missing", runner)
    cells.run_all([cell], path, 1, tmp_path)
    assert asked == [cell.name] * again


def test_the_record_of_a_fedpd_against_feddyn():
    """What docs/results.md says of the MNIST runs, in points, seed by seed: A-FedPD's mean model leads early and is
    level in the end, the model it hands out is behind."""
    study = load_study("a_fedpd", "full")
    curves = {(s.row, s.cell.seed): cells.read(s.cell, study.results)["curve"] for s in study.table("mnist")}

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


def test_a_diverging_cell_says_so(tmp_path, data):
    cell = Cell("t", "primal_dual", TINY | {"algorithms.primal_dual.eta_w": 1e38})
    found = cells.run(cell, tmp_path, data, "1234567")
    assert "no longer finite" in found["failed"]
    assert found["machine"]["commit"] == "1234567"
    json.dumps(found)
