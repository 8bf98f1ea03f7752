"""Recipes: the shipped ones are in order, and one is written into params.yaml as a whole or not at all."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.config.spec import override
from pipeline.errors import UserError
from pipeline.params import Params
from pipeline.params.reading import load_params
from pipeline.params.recipes import read_recipe, titles, write_recipe
from pipeline.params.rules import check_rules
from stages import recipe

ROOT = Path(__file__).parents[2]
SHIPPED = titles(ROOT / "recipes")


@pytest.fixture
def project(tmp_path, monkeypatch) -> Path:
    """A folder with params.yaml and the recipes, where the command runs."""
    shutil.copy(ROOT / "params.yaml", tmp_path)
    shutil.copytree(ROOT / "recipes", tmp_path / "recipes")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def cook(project: Path, text: str, name: str = "mine") -> None:
    (project / "recipes" / f"{name}.yaml").write_text(text)


# ----------------------------------------------------------------------------------------------- the shipped ones


@pytest.mark.parametrize("name", SHIPPED)
def test_a_recipe_tells_where_its_settings_come_from(name):
    head = re.match(r"(#.*\n)+", (ROOT / "recipes" / f"{name}.yaml").read_text())[0]
    assert re.match(r"# \S.*\n#\n# \S", head), "a line of what it is for, an empty one, then how it was found"
    for word in ("seed", "test", "Measured", "2026-"):  # seeds, the test set's part, result, date and machine
        assert word in head
    assert re.search(r"Xeon|EPYC|/pages/", head)


@pytest.mark.parametrize("name", SHIPPED)
def test_a_recipe_changes_its_values_and_nothing_else(name, project):
    path = project / "params.yaml"
    before, settings = path.read_text().splitlines(), read_recipe(name)
    changes = write_recipe(name, path)
    after = path.read_text().splitlines()
    different = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
    assert len(different) == len(changes) > 0
    for old, new in different:
        key, comment = old.split(":")[0] + ": ", old[old.index(" # ") :]
        assert new.startswith(key)
        assert new.endswith(comment)
        assert new.removesuffix(comment) == new.removesuffix(comment).rstrip()
    params = load_params(path)
    check_rules(params)
    assert params == override(Params(), settings)
    assert settings["data.name"] == params.data.name  # what they were tuned for
    assert write_recipe(name, path) == []


# ------------------------------------------------------------------------------------------------------- writing


def test_layout_comments_quotes_and_null_stay(project):
    path = project / "params.yaml"
    text = path.read_text().replace("seed: 0 #", "seed: 3 # mine: 'keep'\n#   and this\n#")
    text = text.replace("experiment: fedbilevel", 'experiment: "my runs"')
    path.write_text(text)
    cook(project, "# mine\nmodel.options: {hidden: [8, 4]}\npartition.lead.groups: [[0, 1], [2]]\ntrain.rounds: 7\n")
    write_recipe("mine", path)
    expected = text.replace("options: {}", "options: {hidden: [8, 4]}").replace("rounds: 500", "rounds: 7")
    expected = expected.replace("groups: auto", "groups: [[0, 1], [2]]", 1)
    assert "uri: null #" in expected
    assert path.read_text() == expected


def test_what_was_set_already_is_no_change(project):
    cook(project, "# mine\nseed: 0\ntrain.rounds: 500\nfederation.participation: 0.5\n")
    (change,) = write_recipe("mine", project / "params.yaml")
    assert str(change) == "federation.participation: 1.0 -> 0.5"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("train.roundz: 3", "recipe mine: train.roundz is not a known parameter. Did you mean train.rounds? Fix: "),
        ("train: {rounds: 3}", "recipe mine: train is not a known parameter."),
        ("seed: 3\ntrain.rounds: many", 'recipe mine: train.rounds = "many" is not allowed: it must be a whole number'),
        ("federation.participation: 1.5", "recipe mine: federation.participation = 1.5 is not allowed: "),
        ("algorithm: fedavg\ndata.name: toy", "recipe mine, with the rest of params.yaml: algorithm: fedavg does not"),
        ("train.rounds: [3", "mine.yaml, line 3: not valid YAML"),
        ("seed: 1\nseed: 2", "mine.yaml, line 3: not valid YAML"),
        ("", "mine.yaml: must hold `key: value` lines"),
    ],
)
def test_a_recipe_that_cannot_be_written_leaves_the_file(text, said, project):
    path = project / "params.yaml"
    before, files = path.read_bytes(), sorted(os.listdir(project))
    cook(project, f"# mine\n{text}\n")
    with pytest.raises(UserError) as caught:
        write_recipe("mine", path)
    assert str(caught.value).startswith(said)
    assert "Fix:" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert path.read_bytes() == before
    assert sorted(os.listdir(project)) == files


def test_what_is_wrong_in_params_yaml_is_said_of_params_yaml(project):
    path = project / "params.yaml"
    path.write_text(path.read_text().replace("rounds: 500", "rounds: many"))
    before = path.read_bytes()
    with pytest.raises(UserError, match=r'^params\.yaml: train\.rounds = "many"'):
        write_recipe("digits-partial", path)
    assert path.read_bytes() == before


def test_a_write_that_is_cut_off_leaves_the_file(project, monkeypatch):
    path = project / "params.yaml"
    before = path.read_bytes()
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("killed")))
    with pytest.raises(OSError, match="killed"):
        write_recipe("digits-partial", path)
    assert path.read_bytes() == before


# --------------------------------------------------------------------------------------------------- the command


def command(monkeypatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["stages.recipe", *arguments])
    recipe.main()


def test_the_command_prints_every_change(project, monkeypatch, capsys):
    command(monkeypatch, "fashion-mnist")
    lead = "algorithms.primal_dual"
    assert capsys.readouterr().out.splitlines() == [
        "data.name: digits -> fashion-mnist",
        "train.rounds: 500 -> 6000",
        f"{lead}.dual: residual -> printed",
        f"{lead}.weight_step: scaled -> plain",
        f"{lead}.curvature_limit: 2.0 -> 0.0",
        f"{lead}.eta_w: 0.4 -> 0.1",
        f"{lead}.eta_x: 0.07 -> 0.02",
        f"{lead}.dual_damping: 0.0 -> 0.02",
        f"{lead}.gamma_schedule: constant -> rising",
    ]
    command(monkeypatch, "fashion-mnist")
    assert capsys.readouterr().out == "params.yaml holds all of it already\n"


@pytest.mark.parametrize("arguments", [[], ["--list"]])
def test_the_command_lists_names_and_first_lines(project, monkeypatch, capsys, arguments):
    before = (project / "params.yaml").read_bytes()
    command(monkeypatch, *arguments)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == sorted(SHIPPED)
    assert [line.split(maxsplit=1)[1] for line in lines] == list(SHIPPED.values())
    assert (project / "params.yaml").read_bytes() == before


def test_the_command_names_what_there_is(project, monkeypatch, capsys):
    before = (project / "params.yaml").read_bytes()
    for wrong, fix in (("prnted", "make recipe NAME=printed"), ("../params", "make recipe, which lists them")):
        with pytest.raises(SystemExit) as caught:
            command(monkeypatch, wrong)
        assert caught.value.code == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert line == f"error: recipe = {wrong!r} is not allowed: it must be one of {', '.join(SHIPPED)}. Fix: {fix}."
    assert (project / "params.yaml").read_bytes() == before


def test_make_recipe_runs_the_command():
    made = subprocess.run(
        ["make", "-n", "--no-print-directory", "-o", ".venv/.installed", "recipe", "NAME=printed"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert made.stdout.strip() == ".venv/bin/python -m stages.recipe printed"
