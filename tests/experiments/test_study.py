"""Studies: what their params.yaml declares becomes cells, winners, tables and figures."""

from __future__ import annotations

import argparse
import dataclasses
import math
import shutil

import pytest

from experiments import __main__ as commands
from experiments import cells, report, study
from experiments.a_fedpd import more as table_4
from experiments.params import Panel, Part, Search
from experiments.results import append, read
from experiments.simfbo import more
from experiments.study import Study, load_study, studies
from pipeline.config.loading import read_yaml
from pipeline.errors import UserError

TINY = {"data.name": "digits", "model.name": "linear", "train.rounds": 4, "train.eval_every": 2}
PART = Part(
    title="Two methods",
    settings=TINY | {"problem": "client_weighting"},
    panels={
        "few": Panel(settings={"train.rounds": 8}, published={"one": [90.0, 1.0]}),
        "many": Panel(settings={"federation.participation": 0.5}, rows={"one": {"gamma": 3.0}}, leave_out=["two"]),
    },
    rows={"one": {"algorithm": "primal_dual", "eta_w": 0.07}, "two": {"algorithm": "rfho"}},
    seeds=[0, 1],
    grids={"one": {"eta_w": [0.1, 0.2], "eta_x": [0.01]}},
    search=Search(panel="few", settings={"partition.selection_per_label": 3}, share=0.5, seed=7),
    measures=["clean_weight"],
    reach=[50.0],
)


@pytest.fixture
def small(tmp_path, monkeypatch):
    """The study of PART, its files in a folder of the test's."""
    monkeypatch.setattr(study, "ROOT", tmp_path)
    return Study("small", "quick", "A small study", {"p": PART})


def finish(made, slot, accuracy=0.5, failed=None, **outcome):
    """The row of a cell that was run."""
    costs = {"communication_rounds": 4, "floats_up": 300, "floats_down": 100, "gradients": 8, "hvps": 0, "seconds": 1.0}
    curve = {"round": [0, 2, 4], "test_accuracy": [0.1, 0.5, accuracy], "communication_rounds": [0, 2, 4]}
    curve |= {"floats": [0, 200, 400], "gradients": [0, 4, 8], "hvps": [0, 0, 0], "seconds": [0, 0.5, 1]}
    content = {"machine": {"device": "d", "date": "2026-01-01", "seconds": 60.0}}
    content |= {"failed": failed} if failed else {"costs": costs, "curve": curve, "kinds": []}
    content |= {} if failed else {"outcome": {"test_accuracy": accuracy} | outcome}
    append(made.results, {"key": slot.cell.name, **content})


def declared():
    """Every study's profiles."""
    return [
        (name, key)
        for name in studies()
        for key in study.PROFILES
        if key in read_yaml(study.ROOT / name / "params.yaml")
    ]


def test_every_study_declares_what_the_library_admits_and_finds_its_finished_cells():
    """None counts as missing because its name has changed. (Eleven rows of simfbo are of step sizes that are searched
    no more.)"""
    found = {}
    assert {"simfbo", "fedbio", "a_fedpd", "client_weights", "primal_dual_weighting"} == set(studies())
    for name, profile in declared():
        made = load_study(name, profile)
        slots = [slot for part in made.parts for slot in made.table(part)]
        assert len({(slot.part, slot.panel, slot.row, slot.cell.seed) for slot in slots}) == len(slots) > 10
        if profile == "full":
            own = {cell.name for part in commands.parts_of(made) for cell in commands.cells_of(made, part)}
            rows = read(made.results)
            found[name] = (len(own & rows.keys()), len(rows))
    assert found == {
        "a_fedpd": (27, 27),
        "fedbio": (45, 45),
        "primal_dual_weighting": (159, 159),
        "simfbo": (59, 70),
    }


def test_a_later_level_overrides_an_earlier_one(small):
    slots = {(slot.panel, slot.row, slot.cell.seed): slot.cell.settings for slot in small.table("p")}
    assert len(slots) == 6  # two rows and one, two seeds
    assert slots["few", "one", 1]["train.rounds"] == 8
    assert slots["many", "one", 0]["train.rounds"] == 4
    assert slots["few", "one", 0]["algorithms.primal_dual.eta_w"] == 0.07
    assert "algorithms.primal_dual.gamma" not in slots["few", "one", 0]
    assert slots["many", "one", 0]["algorithms.primal_dual.gamma"] == 3.0
    assert slots["many", "one", 0]["federation.participation"] == 0.5


def test_a_row_may_ask_for_todays_defaults(small):
    rows = PART.rows | {"two": {"algorithm": "rfho", "defaults": "current"}}
    made = dataclasses.replace(small, parts={"p": dataclasses.replace(PART, rows=rows)})
    own = {slot.row: cells.in_use(slot.cell.settings) for slot in made.table("p")}
    assert own["two"]["rfho"]["weight_step"] == "scaled"
    assert "weight_step" not in own["one"]["primal_dual"]


def test_trials_are_shorter_and_their_winner_serves_every_panel(small):
    trials = list(small.trials("p"))
    assert [tried for _, tried in trials] == [{"eta_w": 0.1, "eta_x": 0.01}, {"eta_w": 0.2, "eta_x": 0.01}]
    assert {slot.cell.settings["train.rounds"] for slot, _ in trials} == {4}
    assert {slot.cell.seed for slot, _ in trials} == {7}
    assert {slot.cell.settings["partition.selection_per_label"] for slot, _ in trials} == {3}
    assert small.waiting("p") == {"one"}
    for slot, _ in trials:
        finish(small, slot, failed="round 2: no longer finite")
    assert small.waiting("p") == {"one"}  # all diverged: no step sizes are known to work
    finish(small, trials[0][0], accuracy=0.9, selection_accuracy=0.6, selection_loss=1.0)
    finish(small, trials[1][0], accuracy=0.2, selection_accuracy=0.7, selection_loss=2.0)
    assert small.waiting("p") == set()
    assert small.winner("p", "one") == {"eta_w": 0.2, "eta_x": 0.01}
    for slot in small.table("p"):
        found = slot.cell.settings.get("algorithms.primal_dual.eta_w")
        assert found == (0.2 if slot.row == "one" else None)
    assert small.winner("p", "two") == {}


def test_a_row_like_another_one_waits_for_its_winner_and_takes_it(small):
    """Below its own settings: of the winner's eta_w and eta_x it keeps one."""
    rows = PART.rows | {"three": {"like": "one", "gamma": 2.0, "eta_x": 0.5}}
    made = dataclasses.replace(small, parts={"p": dataclasses.replace(PART, rows=rows)})
    assert made.waiting("p") == {"one", "three"}
    for slot, _ in made.trials("p"):
        finish(made, slot, selection_accuracy=0.6, selection_loss=1.0)
    assert made.waiting("p") == set()
    own = next(slot.cell.settings for slot in made.table("p") if slot.row == "three")
    found = [own[f"algorithms.primal_dual.{name}"] for name in ("eta_w", "eta_x", "gamma")]
    assert (own["algorithm"], found) == ("primal_dual", [0.1, 0.5, 2.0])


def test_no_page_is_made_of_changed_code(small, monkeypatch):
    monkeypatch.setattr(commands.provenance, "changes", lambda: " M pipeline/seeds.py")
    with pytest.raises(UserError, match=r"page is not made.*pipeline/seeds.py"):
        commands.page(small)
    assert not small.page.exists()


def test_a_budget_buys_rounds_by_what_a_trial_costs(small):
    """4 rounds of the trial sent 300 + 100 floats: 1,000 floats pay for 10 rounds; without such a cost, as declared."""
    rich = dataclasses.replace(PART.panels["few"], budget={"floats": 1000.0})
    poor = dataclasses.replace(PART.panels["few"], budget={"hvps": 1000.0})
    part = dataclasses.replace(PART, panels={"few": PART.panels["few"], "rich": rich, "poor": poor})
    made = dataclasses.replace(small, parts={"p": part})
    for slot, _ in made.trials("p"):
        finish(made, slot, selection_accuracy=0.5, selection_loss=1.0)
    rounds = {(slot.panel, slot.row): slot.cell.settings["train.rounds"] for slot in made.table("p")}
    assert rounds["rich", "one"] == 10
    assert rounds["poor", "one"] == rounds["few", "one"] == 8
    assert rounds["rich", "two"] == 8


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"grids": {"three": {"eta_w": [0.1]}}}, "no row three"),
        ({"search": Search(panel="none")}, "search.panel = 'none' is not allowed: it must be one of few, many"),
        ({"rows": {"one": {"algorithm": "primal_dual", "eta_q": 1.0}}, "panels": {"few": Panel()}}, "eta_q"),
        ({"rows": {"one": {"algorithm": "primal_dual", "eta_w": -1.0}}, "panels": {"few": Panel()}}, "eta_w = -1.0"),
        ({"settings": {"problem": "data_cleaning"}}, "primal_dual"),
        ({"figures": {"test_accuracy": ["gradient"]}}, "figures = .'gradient'. is not allowed"),
        ({"panels": {"few": Panel(budget={"flops": 1.0})}}, "budget = .'flops'. is not allowed"),
        ({"panels": {"few": Panel(published={"missing": [1.0]})}}, "no row missing"),
        ({"search": Search(panel="few", settings={"partition.selection_per_label": 0})}, "at least 1, for trials"),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_is(small, change, words):
    made = dataclasses.replace(small, parts={"p": dataclasses.replace(PART, **change)})
    with pytest.raises(UserError, match=words):
        study._check(made, "params.yaml")


def test_a_wrong_declaration_is_named(small, tmp_path):
    (tmp_path / "small").mkdir()
    file = tmp_path / "small" / "params.yaml"
    file.write_text("title: t\nquick: {p: {titel: x}}\n")
    with pytest.raises(UserError, match=r"quick\.p\.titel.*unexpected"):
        load_study("small", "quick")
    with pytest.raises(UserError, match="no profile full"):
        load_study("small", "full")


def test_rows_whose_trials_wait_are_not_run(small, monkeypatch):
    """Row `one` has two trials, of which one is kept from running; row `two` has none."""
    asked = []

    def runner(made, path, workers, data):
        asked.extend((cell.row, cell.table) for cell in made)

    monkeypatch.setattr(commands, "run_all", runner)
    trials = list(small.trials("p"))
    finish(small, trials[0][0], selection_accuracy=0.6, selection_loss=1.0)
    commands.run(small, "p", "", 1)
    assert [row for row, part in asked if part == "p-search"] == ["one", "one"]
    assert {row for row, part in asked if part == "p"} == {"two, few"}
    finish(small, trials[1][0], failed="diverged")
    asked.clear()
    commands.run(small, "p", "", 1)
    assert {row for row, part in asked if part == "p"} == {"two, few", "one, few", "one, many"}
    assert small.winner("p", "one") == {"eta_w": 0.1, "eta_x": 0.01}


def test_the_first_evaluation_at_a_target():
    curve = {"test_accuracy": [0.1, 0.6, 0.5, 0.7], "floats": [0, 10, 20, 30]}
    assert report.first_reaching(curve, 0.6, "floats") == 10
    assert report.first_reaching(curve, 0.65, "floats") == 30
    assert report.first_reaching(curve, 0.9, "floats") == math.inf


def test_tables_tell_what_was_run_and_what_was_not(small):
    slots = list(small.table("p"))
    at = {(slot.panel, slot.row, slot.cell.seed): slot for slot in slots}
    finish(small, at["few", "one", 0], accuracy=0.8, clean_weight=0.9)
    finish(small, at["few", "one", 1], accuracy=0.6, clean_weight=0.7)
    finish(small, at["few", "two", 0], failed="w is no longer finite")
    one, two = report.summarise(slots, "few", PART, small.results)
    assert one["accuracy %"] == pytest.approx(70)
    assert one["standard deviation"] == pytest.approx(math.sqrt(200))
    assert one["difference"] == pytest.approx(-20)
    assert one["clean_weight"] == pytest.approx(0.8)
    assert one["communication rounds to 50 %"] == 2
    assert one["floats sent"] == 400
    assert (two["accuracy %"], two["diverged"], two["runs"]) == (None, 1, "0 of 2")
    text = report.markdown([one, two])
    assert "70.00 ± 14.14" in text
    assert "-20.00" in text
    assert "diverged" in text
    (alone,) = report.summarise(slots, "many", PART, small.results)
    assert "not run" in report.markdown([alone])


def test_measures_are_means_over_the_last_fifth_and_accuracies_per_cent(small):
    """Rounds 0, 10, ..., 100: the last fifth is 90 and 100, whose drifts are 3 and 5."""
    curve = {"round": [*range(0, 101, 10)], "drift": [9.0] * 9 + [3.0, 5.0]}
    result = {"outcome": {"average_accuracy": 0.123, "weights": [1.0]}, "curve": curve}
    assert report._measure(result, "drift") == 4.0
    assert report._measure(result, "average_accuracy") == 0.123
    assert report._measure(result, "unknown") is None
    assert report._measure({"outcome": {"weights": [0.0, 0.0]}, "curve": curve}, "drift") is None
    slots = list(small.table("p"))
    finish(small, slots[0], average_accuracy=0.123)
    part = dataclasses.replace(PART, measures=["average_accuracy"])
    text = report.markdown(report.summarise(slots, slots[0].panel, part, small.results))
    assert "| average accuracy % |" in text
    assert "| 12.30 |" in text


def test_names_that_are_no_part_or_cell_are_refused(small, monkeypatch):
    monkeypatch.setattr(commands, "load_study", lambda name, profile: small)
    asked = {"study": "small", "profile": "quick", "what": "run", "workers": 1}
    for wrong, words in (
        ({"part": "q", "only": ""}, "one of p"),
        ({"part": None, "only": "no such cell"}, "p-search/one_p1"),
    ):
        with pytest.raises(UserError, match=words):
            commands.perform(argparse.Namespace(**asked, **wrong))
    with pytest.raises(UserError, match="belong to `run`"):
        commands.perform(argparse.Namespace(**asked | {"what": "page"}, part="p", only=""))


def test_the_page_of_runs_that_were_made(small, tmp_path):
    data = tmp_path / "data"
    cells.fetch("digits", data)
    part = dataclasses.replace(PART, panels={"few": Panel()}, seeds=[0], grids={}, rows={"one": PART.rows["one"]})
    made = dataclasses.replace(small, parts={"p": part, "q": PART})
    for slot in made.table("p"):
        append(made.results, {"key": slot.cell.name} | cells.run(slot.cell, tmp_path / "resume", data, "1234567"))
    page = report.write_page(made)
    text = page.read_text()
    assert "![Two methods: test accuracy](p_test_accuracy.png)" in text
    assert "1 of 1 cells" in text
    assert "*Not run yet: one, two on few, many.*" in text
    assert (page.parent / "p_test_accuracy.png").stat().st_size > 5000
    lines = (page.parent / "curves.csv").read_text().splitlines()
    assert lines[0].split(",")[:5] == ["part", "panel", "method", "test_accuracy", "round"]
    assert [line.split(",")[4] for line in lines[1:]] == ["0.0", "2.0", "4.0"]
    assert (page.parent / "table.csv").read_text().count("\np,few,one,1 of 1,") == 1
    full = dataclasses.replace(made, profile="full")
    append(full.results, next(iter(read(made.results).values())))
    assert "1 of 1 cells" in report.write_page(full).read_text()
    assert list(full.page.glob("*.csv")) == []  # git keeps results/full.jsonl
    assert not (page.parent / "q_test_accuracy.png").exists()
    shutil.rmtree(page.parent)


def test_example_b_by_hand():
    """The specification's stationary points, and that ShroFBO reaches the true one and SimFBO the reweighted one."""
    assert more.stationary([0.5, 0.5]).tolist() == pytest.approx([14 / 65, 57 / 65, -4 / 65])
    for method, p in (("shrofbo", [0.5, 0.5]), ("simfbo", [0.25, 0.75])):
        assert more.limit(method, 0.0).tolist() == pytest.approx(more.stationary(p).tolist(), abs=1e-8)


def test_the_frame_of_a_figure_shows_where_the_lines_end():
    """Ends of 97 and 92 %: from 3 below the lower one to above the highest point; what ends at chance is left out."""
    bottom, top = report._frame([[10.0, 97.0], [98.0, 92.0], [10.0, 10.0]])
    assert (bottom, top) == (89.0, pytest.approx(98.45))
    assert report._frame([]) == (0.0, 100.0)


def test_rounds_to_the_same_accuracy_by_hand():
    """The other has .5 after 50 rounds and .8 after 100, we .6 after 20 and .8 after 40: 20/50 and 40/100; its fall to
    .7 does not count, and .9, which we never reach, does."""
    ours = [(0.0, 0.1), (20.0, 0.6), (40.0, 0.8)]
    assert more.shares_of_rounds(ours, [(0.0, 0.1), (50.0, 0.5), (100.0, 0.8), (150.0, 0.7)]) == [0.4, 0.4]
    assert more.shares_of_rounds(ours, [(0.0, 0.1), (50.0, 0.9)]) == [math.inf]
    points = [("SimFBO", 0.1, 0), ("SimFBO", 0.6, 20), ("FedNest", 0.1, 0), ("FedNest", 0.5, 50)]
    names = ("method", "test_accuracy", "communication_rounds")
    rows = [{"panel": "p"} | dict(zip(names, point, strict=True)) for point in points]
    assert "| p | FedNest | 0.40 |  |" in more.rounds_needed(rows)[2]


def test_table_4_by_hand(small, tmp_path):
    """Of the i.i.d. panel alone: reached after 40 rounds, never, and not run."""
    first = {"FedAvg": 40.0, "SCAFFOLD": math.inf, "FedSAM": None}
    rows = [{"method": method, "communication rounds to 81 %": value} for method, value in first.items()]
    assert table_4.first_rounds(rows, 81) == ["40", "never", *["not run"] * 5]
    assert table_4.first_rounds([], 81) == ["not run"] * 7
    assert table_4.sections(small) == []
    part = dataclasses.replace(
        PART,
        panels={"i.i.d.": Panel(), "Dirichlet 1.0": Panel()},
        rows={"FedAvg": {"algorithm": "fedavg", "problem": "consensus"}},
        search=Search(),
        grids={},
        reach=[40.0, 49.0, 81.0, 83.5],
        seeds=[0],
    )
    made = dataclasses.replace(small, profile="full", parts={"lenet_cifar10": part, "lenet_cifar100": part})
    assert "| | ours | not run | not run |" in table_4.sections(made)[2]
    for slot in made.table("lenet_cifar10"):
        finish(made, slot, accuracy=0.82 if slot.panel == "i.i.d." else 0.9)
    assert "| | ours | 4 | not run |" in table_4.sections(made)[2]
