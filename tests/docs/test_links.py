"""Pages link to what exists, name tests that exist, and list what the code makes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from pipeline.training.history import COSTS
from tests.docs.pages import PAGES, ROOT, anchors, links

DOCS = ROOT / "docs"
GENERATED = {"methods.md", *(page.name for page in (DOCS / "reference").glob("*.md"))} - {"files.md"}
LONGEST = 260
OLDER = {"results.md"}
"""Pages of measurements, which are looked things up in."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    for source, target in links():
        if source == page:
            path, _, anchor = target.partition("#")
            place = (page.parent / path).resolve() if path else page
            assert place.exists(), target
            if anchor and place.suffix == ".md":
                assert anchor in anchors(place), target


def test_every_page_is_in_the_table_of_contents_and_in_the_readme_or_linked_there() -> None:
    index = (DOCS / "index.md").read_text()
    listed = set(re.findall(r"^([\w/-]+)$", index, re.MULTILINE))
    assert listed == {page.relative_to(DOCS).with_suffix("").as_posix() for page in PAGES[1:]} - {"index"}


def test_a_page_is_read_in_one_sitting() -> None:
    for page in PAGES[1:]:
        if page.name not in GENERATED | OLDER:
            assert len(page.read_text().splitlines()) <= LONGEST, page.name


def test_a_test_stands_behind_every_fault() -> None:
    tests = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    known = set(re.findall(r"^def (test_\w+)", tests, re.MULTILINE))
    rows = [line for line in (DOCS / "faults.md").read_text().splitlines() if re.match(r"\| (?!fault |--)", line)]
    rows = [row for row in rows if not row.startswith("|---")]
    assert len(rows) > 25
    for row in rows:
        named = re.findall(r"`(test_\w+)`", row.split("|")[-2])
        assert named, row
        assert set(named) <= known, row


def test_the_list_of_files_is_dvc_s() -> None:
    page = (DOCS / "reference" / "files.md").read_text()
    stages = YAML(typ="safe").load((ROOT / "dvc.yaml").read_text())["stages"]
    for stage in stages.values():
        for out in [*stage["outs"], *stage.get("metrics", [])]:
            name = out if isinstance(out, str) else next(iter(out))
            assert f"`{name}`" in page, name
    for counter in COSTS:
        assert f"`{counter}`" in page, counter


def test_twelve_questions_each_with_a_link() -> None:
    questions = re.findall(r"^\*\*(.+?)\*\* (.+?)(?=\n\n|\Z)", (DOCS / "faq.md").read_text(), re.MULTILINE | re.DOTALL)
    assert len(questions) == 12
    for question, answer in questions:
        assert question.endswith("?")
        assert "](" in answer, question
        assert len(answer) < 400, question
