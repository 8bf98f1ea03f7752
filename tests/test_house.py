"""What the tree itself must keep: one name for one thing."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_no_two_classes_have_one_name():
    sources = [file for room in ("pipeline", "experiments", "stages") for file in (ROOT / room).rglob("*.py")]
    trees = [ast.parse(file.read_text(encoding="utf-8")) for file in sources]
    names = Counter(node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    assert len(names) > 200
    assert [name for name, count in names.items() if count > 1] == []
