"""What the tree itself must keep: one name for one thing, one step loop, imports that point one way."""

from __future__ import annotations

import ast
from collections import defaultdict
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = [file for room in ("pipeline", "experiments", "stages") for file in sorted((ROOT / room).rglob("*.py"))]
LONGEST = 400
PARALLEL = {
    *("__init__", "__main__", "base", "registry", "settings"),  # the same part of each room
    *("arrays", "few_shot", "toy"),  # a data set or a scheme, and the problem made for it
    *("clients", "model", "sweep"),  # a section of the page, and what it shows
    *("images", "tables"),  # own samples, and what is computed on them or shown of them
    "steps",  # of the weighting methods, and of a round over a network
}
"""Names that several rooms of the library have a module of."""


def test_no_two_classes_have_one_name():
    places = defaultdict(list)
    for file in SOURCES:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(file)
    assert len(places) > 200
    assert [name for name, files in places.items() if len(files) > 1] == []


def test_modules_of_one_name_play_one_part():
    places = defaultdict(list)
    for file in (ROOT / "pipeline").rglob("*.py"):
        places[file.stem].append(file)
    assert len(places) > 150
    assert {name for name, files in places.items() if len(files) > 1} - PARALLEL == set()


def test_every_file_can_be_read_in_one_go():
    assert len(SOURCES) > 200
    assert [file for file in SOURCES if len(file.read_text(encoding="utf-8").splitlines()) > LONGEST] == []


def test_one_function_takes_a_method_a_round_further():
    """Nothing but `advance` counts a method's inner steps."""
    found = [file for file in SOURCES if ".inner_steps(" in file.read_text(encoding="utf-8")]
    assert found == [ROOT / "pipeline/methods/base.py"]


def test_imports_between_rooms_point_one_way():
    """A room is a folder of the library, or a module at its top; CycleError names those that import each other."""
    rooms = defaultdict(set)
    for file in (ROOT / "pipeline").rglob("*.py"):
        place = file.relative_to(ROOT / "pipeline").with_suffix("").parts[0]
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "pipeline":
                paths = [f"{node.module}.{alias.name}" for alias in node.names]
                rooms[place] |= {path.split(".")[1] for path in paths} - {place}
    assert {"methods", "training", "report"} <= rooms.keys()
    assert "methods" in rooms["training"]
    TopologicalSorter(rooms).prepare()
