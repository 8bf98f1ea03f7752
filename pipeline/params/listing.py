"""What other files say of the registries: the schema, the lists in params.yaml and README.md, the page of all methods.

`python -m pipeline.params` writes them, so that a new entry of a registry needs no other edit.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pipeline.data.sets.registry import NAMES as DATASETS
from pipeline.methods import ALGORITHMS
from pipeline.methods.base import Algorithm
from pipeline.methods.registry import ROOMS as METHODS
from pipeline.methods.registry import fits
from pipeline.params import reference
from pipeline.params.reading import schema
from pipeline.problems.registry import PROBLEMS

ROOMS = {
    "client_weighting": ("client weights", "client weighting", "clients answer at one shared model"),
    "bilevel": ("general bilevel", "general bilevel", "an upper and a lower variable"),
    "consensus": ("local steps", "consensus", "many local steps, then the server"),
}
"""Folder of methods -> its title in params.yaml, its title in README.md and what its methods have in common."""
README, PARAMS, PAGE = Path("README.md"), Path("params.yaml"), Path("docs/methods.md")


def written() -> dict[Path, str]:
    """Every file that holds a derived text, with its whole content as it ought to be."""
    params = PARAMS.read_text(encoding="utf-8")
    for room, (title, *_) in ROOMS.items():
        names = ", ".join(method.name for method in methods_in(room))
        params = re.sub(rf"^# {title}: .*$", f"# {title}: {names}", params, flags=re.MULTILINE)
    kinds = dict(DATASETS.groups)
    for title, members in kinds.items():
        old = rf"^  # {re.escape(title)}: .*$"
        params = re.sub(old, f"  # {title}: {' | '.join(members)}", params, flags=re.MULTILINE)
    sets = "; ".join(f"{title}: {', '.join(members)}" for title, members in kinds.items())
    readme = _between(README.read_text(encoding="utf-8"), "methods", _families())
    return {
        Path("params.schema.json"): json.dumps(schema(), indent=2) + "\n",
        PARAMS: params,
        README: re.sub(r"^(\| another data set \| `data.name`: ).*$", rf"\1{sets} |", readme, flags=re.MULTILINE),
        PAGE: _page(),
        **_reference(),
    }


def _reference() -> dict[Path, str]:
    families = {
        title.replace(" ", "-").removeprefix("general-"): (title, methods_in(room))
        for room, (_, title, _) in ROOMS.items()
    }
    pages = {f"{name}.md": reference.methods_page(*each) for name, each in families.items()}
    pages["settings.md"] = reference.settings_page()
    pages["partition-and-problems.md"] = reference.dealt_page()
    pages["commands.md"] = reference.commands_page(Path("Makefile").read_text(encoding="utf-8"))
    pages["python.md"] = reference.python_page()
    return {reference.FOLDER / name: text for name, text in pages.items()}


def methods_in(room: str) -> list[Algorithm[Any]]:
    """The methods of a folder, in the registry's order."""
    return [ALGORITHMS[name] for name in METHODS[room]]


def problems_of(methods: Iterable[Algorithm[Any]]) -> list[str]:
    """What at least one of them fits."""
    listed = list(methods)
    return [problem for problem in PROBLEMS if any(fits(method, problem) for method in listed)]


def _families() -> str:
    lines = ["| family | methods | problems |", "|---|---|---|"]
    for room, (_, title, text) in ROOMS.items():
        methods = methods_in(room)
        names = ", ".join(f"`{method.name}`" for method in methods)
        problems = ", ".join(problems_of(methods))
        lines.append(f"| [{title}](pipeline/methods/{room}): {text} | {names} | {problems} |")
    return "\n".join(lines)


def _page() -> str:
    lines = ["# Methods", "", "Written by `python -m pipeline.params` from the registry.", ""]
    for room, (_, title, text) in ROOMS.items():
        lines += [
            f"## {title.capitalize()}: {text}",
            "",
            "| `algorithm` | what | problems | equations |",
            "|---|---|---|---|",
        ]
        for method in methods_in(room):
            module = method.options.__module__
            link = f"[{module.rpartition('.')[2]}.py](../{module.replace('.', '/')}.py)"
            lines.append(f"| `{method.name}` | {method.summary} | {', '.join(problems_of([method]))} | {link} |")
        lines.append("")
    return "\n".join(lines)


def _between(text: str, name: str, block: str) -> str:
    """The text with another block between its two comments of that name."""
    begin, end = f"<!-- {name}: written by `python -m pipeline.params` -->", f"<!-- end of {name} -->"
    before, _, rest = text.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}\n{block}\n{end}{after}"
