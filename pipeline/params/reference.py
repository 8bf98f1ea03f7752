"""The pages of docs/reference: every key of params.yaml, the commands, the Python interface.

`python -m pipeline.params` writes them, as it writes what is in `listing`.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, get_type_hints

from pipeline.config.loading import describe
from pipeline.config.spec import Section
from pipeline.methods.base import Algorithm
from pipeline.params.tree import Params

FOLDER = Path("docs/reference")
HEAD = "Written by `python -m pipeline.params`.\n"
_SYMBOL = re.compile(r" \(the paper's (.+)\)$")


DEALT = ("partition", "problems")
"""Sections with a page of their own: one section inside them for each scheme and each problem."""


def settings_page() -> str:
    """Every key but the methods', the schemes' and the problems'."""
    lines = ["# Settings", "", HEAD]
    lines += [
        "Keys of `params.yaml` by section. A key that is left out has its default; `auto` follows the rule given.",
        "",
    ]
    lines += [
        "On other pages: [`partition` and `problems`](partition-and-problems.md), and `algorithms`, the methods' own"
    ]
    lines += [
        "keys: [client weighting](client-weighting.md), [general bilevel](bilevel.md), [consensus](consensus.md).",
        "",
    ]
    lines += ["## At the top", "", *_table(Params, _names(Params)), ""]
    return _of(lines, [name for name, _ in _inner(Params) if name not in ("algorithms", *DEALT)])


def dealt_page() -> str:
    """Schemes and problems: each has its section."""
    return _of(["# Settings: partition and problems", "", HEAD], DEALT)


def _of(lines: list[str], names: Iterable[str]) -> str:
    for field in dataclasses.fields(Params):
        if field.name in names and (record := _record(Params, field.name)):
            lines += _sections(field.name, record, str(field.metadata["description"]))
    return "\n".join(lines).rstrip() + "\n"


def methods_page(title: str, methods: Iterable[Algorithm[Any]]) -> str:
    """The keys of a family: first those that all its methods share, then each method's own."""
    methods = list(methods)
    rows = [{name: _row(m.options, name) for name in _names(m.options)} for m in methods]
    shared = [name for name in rows[0] if all(each.get(name) == rows[0][name] for each in rows)]
    lines = [f"# Settings: {title}", "", HEAD]
    lines += ["Each method has its section, `algorithms.<method>`; only the one that `algorithm` names is in use.", ""]
    if shared:
        lines += ["## Of all of them", "", *_head(), *(rows[0][name] for name in shared), ""]
    for method, own in zip(methods, rows, strict=True):
        lines += [f"## `{method.name}`", "", f"{method.summary[0].upper()}{method.summary[1:]}.", ""]
        rest = [row for name, row in own.items() if name not in shared]
        lines += [*_head(), *rest, ""] if rest else []
        for name, record in _inner(method.options):
            lines += [f"`{method.name}.{name}`:", "", *_table(record, _names(record)), ""]
    return "\n".join(lines).rstrip() + "\n"


def commands_page(makefile: str) -> str:
    """What `make` does, by the comments of the Makefile, and the modules that can be run."""
    found = re.findall(r"^([a-z-]+):.*?## (.*)$", makefile, re.MULTILINE)
    lines = ["# Commands", "", HEAD, "| command | what |", "|---|---|"]
    lines += [f"| `make {name}` | {_cell(text)} |" for name, text in found]
    lines += ["", "After `make setup` the tools are in `.venv/bin`:", "", "| command | what |", "|---|---|"]
    lines += [f"| `.venv/bin/{command}` | {text} |" for command, text in TOOLS.items()]
    lines += [
        "",
        "Every stage takes `--debug`, or `FEDBILEVEL_DEBUG=1`, which shows the traceback of a mistake too.",
        "",
    ]
    lines += ["| variable | what |", "|---|---|", *(f"| `{name}` | {text} |" for name, text in VARIABLES.items())]
    return "\n".join(lines) + "\n"


TOOLS = {
    "dvc repro": "the pipeline; runs again what an edit changes",
    "dvc exp run -S KEY=VALUE": "the same with other settings",
    "dvc exp show --only-changed": "a table of the runs",
    "dvc metrics show": "the figures of the last run",
    "dvc plots show": "a page of its pictures",
    "python -m stages.check": "is params.yaml in order?",
    "python -m pipeline.params": "schema, lists and reference pages; `--check`: are they up to date?",
    "python -m pipeline.tracking": "send the results to the tracker, again (`make publish`)",
    "python -m pipeline.federation server FOLDER": "the server of a [federation of real sites](../federation.md)",
    "python -m pipeline.federation site FOLDER": "one of its sites",
    "python -m benchmarks": "the [benchmarks](../benchmarks.md)",
    "python -m experiments STUDY plan PROFILE": "what a study would run, and how long it takes here",
}
VARIABLES = {
    "FEDBILEVEL_DATA_MIRROR": "folder or address that holds `<data set>/<original files>`; wins over `data.mirror`",
    "FEDBILEVEL_DEBUG": "1: show tracebacks",
    "MLFLOW_TRACKING_URI": "the tracker, where `tracking.uri` is null",
    "MLFLOW_TRACKING_USERNAME, MLFLOW_TRACKING_PASSWORD": "its credentials; they are never written",
    "OMP_NUM_THREADS": "threads of the mathematics",
}


def python_page() -> str:
    """What `import fedbilevel` gives, from signatures and docstrings."""
    import fedbilevel

    lines = ["# Python", "", HEAD, "```python", "import fedbilevel as fb", "```", ""]
    for name in sorted(fedbilevel.__all__, key=lambda name: (not name.islower(), name)):
        lines += _documented(f"fb.{name}", getattr(fedbilevel, name))
    return "\n".join(lines).rstrip() + "\n"


def _documented(name: str, thing: Any) -> list[str]:
    if not inspect.isclass(thing):
        return [f"## `{name}`", "", *_signature(name, thing), "", inspect.cleandoc(thing.__doc__ or ""), ""]
    lines = [f"## `{name}`", "", inspect.cleandoc(thing.__doc__ or ""), ""]
    public = {key: value for key, value in vars(thing).items() if not key.startswith("_")}
    described = [(key, value) for key, value in public.items() if getattr(value, "__doc__", None) and not _plain(value)]
    if described:
        lines += ["| | |", "|---|---|"]
    for key, value in described:
        call = _call(value) if inspect.isfunction(value) else ""
        lines.append(f"| `{key}{call}` | {_cell(' '.join(inspect.cleandoc(value.__doc__).split()))} |")
    return [*lines, ""]


def _call(method: Any) -> str:
    parts = [str(each).partition(":")[0] for each in inspect.signature(method).parameters.values()]
    return f"({', '.join(parts[1:])})"


def _plain(value: Any) -> bool:
    return isinstance(value, str | int | float | tuple | dict)


def _signature(name: str, function: Any) -> list[str]:
    parts = [str(each) for each in inspect.signature(function).parameters.values()]
    keyword = next(
        (i for i, e in enumerate(inspect.signature(function).parameters.values()) if e.kind == e.KEYWORD_ONLY), 0
    )
    if keyword:
        parts.insert(keyword, "*")
    return ["```text", f"{name}(", *(f"    {part}," for part in parts), ")", "```"]


# ------------------------------------------------------------------------------------------- tables


def _sections(place: str, record: type, text: str) -> list[str]:
    """A section and those inside it."""
    names = _names(record)
    lines = [f"## `{place}`", "", f"{text[0].upper()}{text[1:]}.", ""]
    lines += [*_table(record, names), ""] if names else []
    for name, inner in _inner(record):
        summary = (inspect.getdoc(inner) or "").partition("\n")[0]
        lines += [f"### `{place}.{name}`", "", summary, ""]
        lines += [*_table(inner, _names(inner)), ""] if _names(inner) else []
    return lines


def _table(record: type, names: Iterable[str]) -> list[str]:
    return [*_head(), *(_row(record, name) for name in names)]


def _head() -> list[str]:
    return ["| key | default | allowed | symbol | what |", "|---|---|---|---|---|"]


def _row(record: type, name: str) -> str:
    field = {each.name: each for each in dataclasses.fields(record)}[name]
    text = field.metadata["description"]
    symbol = found[1] if (found := _SYMBOL.search(text)) else ""
    allowed = describe(get_type_hints(record, include_extras=True)[name], field.metadata)
    default = getattr(record(), name)
    cells = f"`{name}`", f"`{json.dumps(default)}`", allowed, symbol, _SYMBOL.sub("", text)
    return f"| {' | '.join(map(_cell, cells))} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;") if "`" not in text else text.replace("|", "\\|")


def _names(record: type) -> list[str]:
    """Keys that are no sections."""
    return [field.name for field in dataclasses.fields(record) if not _record(record, field.name)]


def _inner(record: type) -> list[tuple[str, type]]:
    found = [(field.name, _record(record, field.name)) for field in dataclasses.fields(record)]
    return [(name, inner) for name, inner in found if inner]


def _record(record: type, name: str) -> type | None:
    """The record of a section; None of a key."""
    hint = get_type_hints(record).get(name)
    return hint if isinstance(hint, type) and issubclass(hint, Section) else None
