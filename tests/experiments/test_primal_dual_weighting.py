"""The lead paper's study: rows, winners, tables, the toy."""

from __future__ import annotations

import dataclasses
import math
import re

import pytest

from experiments import former, report, study, tracking
from experiments.cells import Cell, in_use, read
from experiments.primal_dual_weighting import figures, page, tables, toy
from experiments.results import append
from experiments.study import Study, load_study
from pipeline.config.loading import read_yaml
from pipeline.errors import UserError

TINY = {"data.name": "digits", "model.name": "linear", "train.rounds": 3, "train.eval_every": 3}
HERE = study.ROOT / "primal_dual_weighting"


@pytest.fixture
def quick(tmp_path, monkeypatch):
    """The quick profile, its files in a folder of the test's."""
    made = load_study("primal_dual_weighting", "quick")
    monkeypatch.setattr(study, "ROOT", tmp_path)
    return made


def with_table(made, **changes):
    return dataclasses.replace(made, parts=made.parts | {"table": dataclasses.replace(made.parts["table"], **changes)})


def laboratory(**sizes):
    return Study("primal_dual_weighting", "quick", "t", {}, {"toy": sizes})


def save(path, cell, **content):
    append(path, {"key": cell.name, **content})


def written(path, cell, outcome, failed=None):
    machine = {"device": "d", "date": "2026-01-01", "seconds": 60.0}
    kinds = ["clean"] * 2 + ["noisy"] * 2
    content = {"kinds": kinds, "outcome": outcome, "curve": {"round": [0, 1], "test_accuracy": [0, 1]}}
    save(path, cell, machine=machine, **({"failed": failed} if failed else content))


def test_every_row_at_every_participation_and_equal_trials(quick):
    grids = {"rfho": {"eta_w": [0.05], "eta_x": [7.0]}, "primal_dual": {"eta_w": [0.3]}}
    quick = with_table(quick, grids=grids)
    for slot, _ in quick.trials("table"):
        written(quick.results, slot.cell, {"selection_accuracy": 0.7, "selection_loss": 0.1})
    made = [slot.cell for slot in quick.table("table")]
    rows = quick.parts["table"].rows
    assert len(rows) == 10
    assert {(c.row, c.participation) for c in made} == {(row, p) for row in rows for p in (1.0, 0.5)}
    assert len({c.name for c in made}) == len(made)
    settings = {c.row: c.settings for c in made}
    lead = "algorithms.primal_dual"
    assert settings["rfho"]["algorithms.rfho.eta_x"] == 7.0
    assert settings["primal_dual"][f"{lead}.eta_w"] == settings["primal_dual, rising gamma"][f"{lead}.eta_w"] == 0.3
    assert in_use(settings["primal_dual, rising gamma"])["primal_dual"]["gamma_schedule"] == "rising"
    assert settings[page.AS_PRINTED][f"{lead}.schedule"] == "constant"
    assert settings[page.AS_PRINTED][f"{lead}.eta_w"] == 0.1
    bad = {c.cell.row: c.cell.settings for c in quick.table("bad_clients")}  # served by the same search
    assert bad["rfho"]["algorithms.rfho.eta_x"] == 7.0
    full = read_yaml(HERE / "params.yaml")["full"]["table"]["grids"]
    assert {row: math.prod(len(values) for values in grid.values()) for row, grid in full.items()} == {
        **dict.fromkeys(("primal_dual", "rfho", "fednest", "sustain", "afl"), 6),
        **dict.fromkeys(("average", "validation_only", "oracle_weights"), 3),
    }


def test_the_winner_is_the_best_on_the_selection_set(quick):
    """Not on the test set; of equals the one of smallest loss; a diverged or missing trial never wins."""
    quick = with_table(quick, grids={"rfho": {"eta_w": [0.1, 0.2], "eta_x": [1.0, 3.0]}, "afl": {"eta_x": [0.1]}})
    rfho = [slot.cell for slot, _ in quick.trials("table", "rfho")]
    written(quick.results, rfho[0], {"selection_accuracy": 0.7, "selection_loss": 0.1, "test_accuracy": 0.99})
    written(quick.results, rfho[1], {"selection_accuracy": 0.8, "selection_loss": 0.4, "test_accuracy": 0.2})
    written(quick.results, rfho[2], {}, failed="gone")
    assert quick.winner("table", "rfho") == {"eta_w": 0.1, "eta_x": 3.0}
    assert quick.winner("table", "afl") == {}
    states = [row["state"] for row in tables.trials(quick, "table") if row["method"] == "rfho"]
    assert states == ["done", "done", "diverged", "not run"]
    written(quick.results, rfho[3], {"selection_accuracy": 0.8, "selection_loss": 0.3, "test_accuracy": 0.1})
    assert quick.winner("table", "rfho") == quick.winner("bad_clients", "rfho") == {"eta_w": 0.2, "eta_x": 3.0}


def test_of_equal_trials_the_former_default_wins(quick):
    shipped = former.parameters({}).algorithms.primal_dual
    quick = with_table(quick, grids={"primal_dual": {"eta_w": [shipped.eta_w, 0.01], "eta_x": [0.5, shipped.eta_x]}})
    for loss, (slot, _) in enumerate(quick.trials("table")):
        written(quick.results, slot.cell, {"selection_accuracy": 0.8, "selection_loss": float(loss)})
    assert quick.winner("table", "primal_dual") == {"eta_w": shipped.eta_w, "eta_x": shipped.eta_x}
    search = dataclasses.replace(quick.parts["table"].search, default_first=False)
    assert with_table(quick, search=search).winner("table", "primal_dual") == {"eta_w": shipped.eta_w, "eta_x": 0.5}


def test_the_table_by_hand(tmp_path):
    """Two runs of 98 and 99 %: mean 98.5, deviation sqrt(1/2); the paper's rfho has 98.34."""
    path = tmp_path / "r.jsonl"
    own = [Cell("t", "rfho", TINY | {"seed": seed, "algorithm": "rfho"}) for seed in range(3)]
    written(path, own[0], {"test_accuracy": 0.98, "weights": [0.5, 0.4, 0.06, 0.04]})
    written(path, own[1], {"test_accuracy": 0.99, "weights": [0.7, 0.3, 0.0, 0.0]})
    (row,) = tables.summarise(own, path, published=True)
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


def test_cells_that_were_not_run_are_shown_as_such(quick):
    text = page.write_page(quick).read_text()
    for row in quick.parts["bad_clients"].rows:  # in the table of two participations, and in that of bad clients
        assert len(re.findall(rf"[:;] {row}[;.]", text)) == 3
    assert "No cell of this part has been run yet" in text
    assert "16 trials are not run" in text
    assert figures.accuracy([slot.cell for slot in quick.table("table")], quick.results, "") is None


def test_a_page_says_which_cells_no_commit_has_the_code_of(tmp_path):
    own = [Cell("t", "rfho", TINY | {"seed": seed, "algorithm": "rfho"}) for seed in range(3)]
    for cell, commit in zip(own, ("1", "1-dirty", "2-dirty"), strict=True):
        machine = {"device": "d", "date": "2026-01-01", "seconds": 60.0, "commit": commit}
        save(tmp_path / "r.jsonl", cell, machine=machine)
    assert "code 1, 1-dirty, 2-dirty. 2 of them ran before" in report.provenance(own, tmp_path / "r.jsonl")
    assert report.provenance(own[:1], tmp_path / "r.jsonl").endswith("code 1.*")


def test_detection_is_averaged_and_shown_by_kind(tmp_path):
    path = tmp_path / "r.jsonl"
    own = [Cell("t", "rfho", TINY | {"seed": seed, "algorithm": "rfho"}) for seed in range(2)]
    common = {"clean_weight": 0.9, "quality_correlation": 0.5}
    written(path, own[0], common | {"test_accuracy": 0.9, "detection_auc": 1.0, "detection_auc_small": 0.5})
    written(path, own[1], common | {"test_accuracy": 0.8, "detection_auc": 0.5, "detection_auc_small": 0.5})
    (row,) = tables.detections(own, path)
    assert row["detection_auc"] == pytest.approx(0.75)
    text = tables.detection_markdown([row])
    assert "| AUC, small |" in text
    assert "| 1 | rfho | 2 of 2 | 85.00 | 0.90 | 0.75 | 0.50 | 0.50 |" in text


def test_rounds_to_a_tenth():
    assert tables.first_below([1.0, 0.2, 0.1, 0.5], [0, 4, 8, 12]) == 8
    assert tables.first_below([1.0, 0.2], [0, 4]) == float("inf")


def test_a_toy_cell_holds_its_repetitions(tmp_path):
    """The exact gradient starts at w = 0, x = 1/N, whatever the method: one start per repetition."""
    made = toy.toy_cells(laboratory(repetitions=2, rounds=2, inner_steps=[1], eval_every=1))
    path = tmp_path / "r.jsonl"
    assert len(made) == 14
    chosen = [c for c in made if "deterministic" in c.table and c.row.startswith(("primal_dual", "rfho"))]
    for cell in chosen:
        append(path, {"key": cell.name} | toy.run(cell, code="1234567"))
    a, b = (read(cell, path) for cell in chosen)
    assert a["round"] == [0, 1, 2]
    assert a["machine"]["commit"] == "1234567"
    assert [len(curve) for curve in a["stationarity"]] == [3, 3]
    assert [c[0] for c in a["stationarity"]] == [c[0] for c in b["stationarity"]]
    assert a["stationarity"][0] != a["stationarity"][1]
    assert figures.toy(made, path) is not None
    rows = tables.toy_claim(made, path)
    assert {row["method"] for row in rows} == {"primal_dual", "rfho"}
    assert {row["within_twice"] for row in rows} == {None}  # exact_gradient was not run
    steps = {name for name, _, _ in tracking.points(a)}
    assert steps == {"upper_value", "stationarity"}


def test_the_noisy_toy_by_hand(tmp_path):
    """Of three repetitions one is above its start in the last two thirds of 9 rounds (not: in round 3), one never is
    and one is no longer finite."""
    made = toy.toy_cells(laboratory(repetitions=3, rounds=9, inner_steps=[1], eval_every=3, eta_x=[0.01]))
    path = tmp_path / "r.jsonl"
    curves = {"upper_value": [[1.0, 2.0, 0.5, 0.4], [1.0, 0.5, 1.5, 0.4], [1.0, 0.5, math.inf, math.inf]]}
    curves |= {"stationarity": [[1.0, 1.0, 1.0, 0.1], [1.0, 1.0, 1.0, 0.2], [1.0, 1.0, 1.0, 0.6]]}
    chosen = next(cell for cell in made if toy.Label.of(cell) == toy.Label("noisy", "rfho", 1, 0.01))
    save(path, chosen, round=[0, 3, 6, 9], **curves)
    (row,) = tables.toy_noise(made, path)
    assert row == {
        "setting": "noisy",
        "K": 1,
        "method": "rfho",
        "stationarity": pytest.approx(0.3),
        "gone": pytest.approx(2 / 3),
    }


def test_the_toys_claim_by_hand(tmp_path):
    """exact_gradient arrives after 4 and 8 rounds and once never; rfho after 8 (in time), 20 (late) and never."""
    made = toy.toy_cells(laboratory(repetitions=3, rounds=8, inner_steps=[1], eval_every=4, eta_x=[0.01]))
    path = tmp_path / "r.jsonl"
    never, rounds = [1.0, 0.5, 0.5, 0.5], [0, 4, 8, 20]
    curves = {
        "exact_gradient": [[1.0, 0.1, 0.1, 0.1], [1.0, 0.5, 0.1, 0.1], never],
        "rfho": [[1.0, 0.5, 0.1, 0.1], [1.0, 0.5, 0.5, 0.1], never],
        "sustain": [never, never, never],
    }
    for cell in made:
        if (label := toy.Label.of(cell)).setting == "deterministic" and label.method in curves:
            save(path, cell, round=rounds, stationarity=curves[label.method])
    claim = {row["method"]: (row["median_rounds"], row["within_twice"]) for row in tables.toy_claim(made, path)}
    assert claim == {"exact_gradient": (8, 1.0), "rfho": (20, 0.5), "sustain": (math.inf, 0.0)}
    for cell in made:
        if toy.Label.of(cell).method == "exact_gradient":
            save(path, cell, round=rounds, stationarity=[never])
    assert {row["within_twice"] for row in tables.toy_claim(made, path)} == {None}


def test_diverged_runs_are_called_so_everywhere(tmp_path):
    path = tmp_path / "r.jsonl"
    own = [Cell("t", "rfho", TINY | {"algorithm": "rfho"})]
    written(path, own[0], {}, failed="gone")
    assert figures.accuracy(own, path, "") is None
    assert "| diverged |" in tables.detection_markdown(tables.detections(own, path))
    assert "| diverged |" in tables.markdown(tables.summarise(own, path, published=False), published=False)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("quick:", "quik:", ["no profile quick"]),
        ("data.name: digits", "data.name: digit", ["data.name", "digits"]),
        ("seeds: [0, 1]", "seeds: 0", ["quick.table.seeds", "valid array"]),
        ("federation.participation: 0.5", "federation.participation: 1.5", ["federation.participation", "1.5"]),
        ("      rfho: {eta_w", "      rhfo: {eta_w", ["quick.table has no row rhfo"]),
        ("      rfho: {eta_w", "      rfho: {eta_v", ["quick.table, rfho", "eta_v"]),
        (
            "      rfho: {eta_w",
            "      rfho: {clip_norm: [2.0], eta_w",
            ["quick.table, rfho", "rfho.clip_norm"],
        ),
        ("eta_w: [0.1,", "eta_w: [-0.05,", ["eta_w", "-0.05"]),
        ("gamma_schedule: rising", "gama: 1.0", ["quick.table, primal_dual, rising gamma", "gama"]),
        ("{like: primal_dual,", "{like: primal_duel,", ["rising gamma.like = 'primal_duel'", "one of primal_dual"]),
        ("search: {part: table}", "search: {part: tabel}", ["quick.bad_clients.search.part = 'tabel'"]),
        ("train.eval_every: 20", "train.evalevery: 20", ["evalevery"]),
    ],
)
def test_mistakes_in_the_parameters(tmp_path, monkeypatch, old, new, said):
    text = (HERE / "params.yaml").read_text()
    assert old in text
    path = tmp_path / "primal_dual_weighting" / "params.yaml"
    path.parent.mkdir()
    path.write_text(text.replace(old, new, 1))
    monkeypatch.setattr(study, "ROOT", tmp_path)
    with pytest.raises(UserError) as error:
        load_study("primal_dual_weighting", "quick")
    for word in said:
        assert word in str(error.value)


@pytest.mark.parametrize(("sizes", "said"), [({"rounds": 0}, "rounds"), ({"repetition": 3}, "repetition")])
def test_mistakes_in_the_toy_s_sizes(sizes, said):
    with pytest.raises(UserError, match=rf"quick\.more\.toy\.{said}: .* Fix: see"):
        toy.toy_cells(laboratory(**sizes))
