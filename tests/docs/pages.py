"""README and docs/ taken apart: fenced blocks, commands, links, headings."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
_FENCE = re.compile(r"^( *)```([\w{}]*)[^\n]*\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"`((?:[A-Z_]+=\S+ )*(?:make|git|mlflow|\.venv/bin/[\w-]+)\s[^`]*)`")
_LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^)\s]+)\)")


@dataclass(frozen=True)
class Block:
    """A fenced block: its page, its first line there, its language, its text without the page's indentation."""

    page: Path
    line: int
    language: str
    text: str

    @property
    def name(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(*languages: str) -> list[Block]:
    found = []
    for page in PAGES:
        content = page.read_text()
        for match in _FENCE.finditer(content):
            indent, language, text = match.groups()
            if language in languages:
                lines = [line.removeprefix(indent) for line in text.splitlines()]
                number = content[: match.start()].count("\n") + 1
                found.append(Block(page, number, language, "\n".join(lines)))
    return found


def without_blocks(page: Path) -> str:
    return _FENCE.sub("", page.read_text())


def commands_of(block: Block) -> list[str]:
    """The lines of a shell block without comments; a script is one."""
    if block.text.startswith("#!"):
        return [block.text]
    lines = [re.sub(r"(^|\s)#.*", "", line).strip() for line in block.text.replace("\\\n", " ").splitlines()]
    return list(filter(None, lines))


def commands_within_sentences(pages: list[Path] = PAGES) -> list[str]:
    return [" ".join(command.split()) for page in pages for command in _COMMAND.findall(without_blocks(page))]


def commands() -> list[tuple[str, str]]:
    """(place, command) of every line of a shell block that is no script, and of every command within a sentence."""
    found = []
    for block in blocks("bash", "sh"):
        if not block.text.startswith("#!"):  # a script's syntax is checked as a whole
            found += [(block.name, command) for command in commands_of(block)]
    for page in PAGES:
        found += [(str(page.relative_to(ROOT)), command) for command in commands_within_sentences([page])]
    return found


def links() -> list[tuple[Path, str]]:
    """(page, target) of every relative link and picture."""
    return [
        (page, target)
        for page in PAGES
        for target in _LINK.findall(without_blocks(page))
        if not re.match(r"[a-z]+:", target)
    ]


def anchors(page: Path) -> set[str]:
    """What its headings are called in addresses, as code forges and MyST do."""
    found: dict[str, int] = {}
    names = set()
    for title in re.findall(r"^#{1,4} (.*)$", without_blocks(page), re.MULTILINE):
        slug = re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-")
        names.add(slug if slug not in found else f"{slug}-{found[slug]}")
        found[slug] = found.get(slug, 0) + 1
    return names
