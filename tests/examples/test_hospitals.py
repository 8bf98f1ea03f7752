"""The notebook runs, finds the two bad hospitals, and its outputs are in the file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.examples.notebook import run

NOTEBOOK = Path(__file__).parents[2] / "examples" / "hospitals.ipynb"


def test_the_notebook_of_the_hospitals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    kept = [cell["outputs"] for cell in notebook["cells"] if cell["cell_type"] == "code"]
    names = run(notebook)
    assert names["found"].suspicious == ["Kiel", "Lyon"] or names["found"].suspicious == ["Lyon", "Kiel"]
    assert (tmp_path / "hospitals.html").is_file()
    fresh = [cell["outputs"] for cell in notebook["cells"] if cell["cell_type"] == "code"]
    kinds = [[sorted(output.get("data", output["output_type"])) for output in outputs] for outputs in fresh]
    assert kinds == [[sorted(output.get("data", output["output_type"])) for output in outputs] for outputs in kept]
    assert sum("image/png" in output.get("data", {}) for outputs in kept for output in outputs) == 2
    assert any("100%" in "".join(output.get("text", "")) for outputs in kept for output in outputs)
    assert NOTEBOOK.stat().st_size < 80_000
