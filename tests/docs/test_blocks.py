"""Every block and every command of README and docs/ is run, or read and checked by what would run it.

Shell commands are run by tests/stages/test_documented.py; here their syntax, programs and settings are checked.
"""

from __future__ import annotations

import importlib.util
import itertools
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from pipeline.config.loading import checked, parsed
from pipeline.federation.settings import Server, SiteSettings
from pipeline.params.reading import params_from
from pipeline.params.resolve import foreseen
from pipeline.params.rules import check_rules
from stages.recipe import list_recipes
from tests.docs.pages import ROOT, Block, blocks, commands
from tests.stages.project import BIN

NOT_RUN = {
    "from pathlib import Path\nfrom pipeline.federation.p": "needs NVFlare: tests/federation/test_flare.py",
    "from pathlib import Path\nfrom pipeline.federation.m": "needs a finished run: tests/federation/test_model.py",
    "import mlflow.pyfunc\nimport pandas": "needs a finished run: tests/federation/test_model.py",
    "found = fb.fit(hospitals": "three trainings: tests/test_api.py makes them on smaller data",
    "import mlflow, pandas": "needs a finished run: tests/tracking/test_model.py serves one",
}
"""How the python blocks begin that are compiled, not run: why."""
OTHER_YAML = {
    "sites:": Server,
    "name: north": SiteSettings,
    "privacy:": SiteSettings,
    "data:\n  path: data.csv\n  validation:": SiteSettings,
}
"""How a yaml block begins that is no params.yaml: what reads it."""
REQUIRED = {SiteSettings: {"name": "north", "data": {"path": "data.csv"}, "engine": {"host": "h", "port": 1}}}
"""What a block that shows one section leaves out."""
MAKE = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
DVC = {"repro", "exp", "commit", "remote", "push", "pull", "metrics", "plots", "queue"}
SHELL = {"git", "cd", "cat", "head", "rm", "pip", "export", "mlflow", "curl"}


@pytest.mark.parametrize("block", blocks("python"), ids=lambda block: block.name)
def test_python_runs(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code = compile(block.text, block.name, "exec")
    if not block.text.startswith(tuple(NOT_RUN)):
        exec(code, {"__name__": "__main__"})


@pytest.mark.parametrize("block", blocks("yaml"), ids=lambda block: block.name)
def test_yaml_is_accepted(block: Block) -> None:
    kind = next((kind for begin, kind in OTHER_YAML.items() if block.text.startswith(begin)), None)
    tree = parsed(block.text, block.name)
    if kind is None:
        params = params_from(tree, block.name)
        check_rules(params)
        foreseen(params)
    else:
        checked(kind, REQUIRED.get(kind, {}) | tree, block.name)


@pytest.mark.parametrize("block", blocks("bash", "sh"), ids=lambda block: block.name)
def test_shell_is_shell(block: Block) -> None:
    done = subprocess.run(["bash", "-n"], input=block.text, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_no_other_language_hides_code() -> None:
    known = {"python", "yaml", "bash", "sh", "text", "{toctree}"}
    assert {block.language for block in blocks(*known, "", "console", "shell", "yml", "py")} <= known


@pytest.mark.parametrize(("place", "command"), commands(), ids=str)
def test_commands_exist_and_their_settings_are_allowed(place: str, command: str) -> None:
    words = shlex.split(command)
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
        words.pop(0)
    program, rest = words[0], words[1:]
    if program == "make":
        assert rest[0] in MAKE, place
        assert all(re.fullmatch(r"[A-Z]+=\S*", word) for word in rest[1:]), place
    elif program == ".venv/bin/python" and rest[0] == "-m":
        assert importlib.util.find_spec(rest[1]), place
    elif program == ".venv/bin/python":
        compile(rest[1], place, "exec")
    elif program == ".venv/bin/dvc":
        assert rest[0] in DVC, place
        overrides = [value for flag, value in itertools.pairwise(rest) if flag == "-S" and "KEY" not in value]
        if overrides and "..." not in command:
            check_rules(params_from(_tree(overrides), place))
    elif program.startswith(".venv/bin/"):
        assert (BIN / Path(program).name).exists(), place
    else:
        assert program in SHELL, place


def _tree(overrides: list[str]) -> dict:
    """As `dvc exp run -S` makes it of params.yaml."""
    tree: dict = {}
    for override in overrides:
        name, _, value = override.partition("=")
        *rooms, last = name.lstrip("+").split(".")
        room = tree
        for each in rooms:
            room = room.setdefault(each, {})
        room[last] = YAML(typ="safe", pure=True).load(value)
    return tree


def test_make_help_lists_every_documented_target() -> None:
    said = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for _, command in commands():
        if command.startswith("make "):
            assert re.search(rf"^{command.split()[1]} ", said, re.MULTILINE), command


def test_the_recipes_that_pages_name_exist(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(ROOT)
    list_recipes()
    listed = {line.split()[0] for line in capsys.readouterr().out.splitlines()}
    named = {match[1] for _, command in commands() if (match := re.search(r"NAME=([\w-]+)", command))}
    assert named
    assert named <= listed
