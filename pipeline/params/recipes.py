"""Recipes: settings tuned for one data set, each a YAML file in `recipes/`, written into params.yaml by name.

A recipe maps dotted parameters to values. Its comment says in the first line what it is for, and below how the settings
were found.
"""

from __future__ import annotations

import difflib
import io
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap
from ruamel.yaml.representer import RoundTripRepresenter

from pipeline.config.loading import parsed, read_yaml
from pipeline.config.spec import dotted
from pipeline.errors import UserError, not_allowed
from pipeline.params.reading import load_params, params_from
from pipeline.params.rules import check_rules
from pipeline.params.tree import Params

FOLDER = Path("recipes")


@dataclass(frozen=True)
class Change:
    """A parameter and its values before and after."""

    name: str
    old: Any
    new: Any

    def __str__(self) -> str:
        return f"{self.name}: {_shown(self.old)} -> {_shown(self.new)}"


def titles(folder: Path = FOLDER) -> dict[str, str]:
    """Name -> first line of every recipe."""
    texts = {path.stem: path.read_text(encoding="utf-8") for path in folder.glob("*.yaml")}
    return {name: texts[name].partition("\n")[0].lstrip("# ") for name in sorted(texts)}


def write_recipe(name: str, params: Path, folder: Path = FOLDER) -> list[Change]:
    """Put the recipe's settings into params.yaml, whose comments and layout stay; returns what changed.

    UserError, and params.yaml as it was, for an unknown recipe, an unknown parameter, a value that is not allowed, and
    settings that do not go together with the rest of params.yaml.
    """
    load_params(params)  # what is wrong there already is not the recipe's fault
    settings = read_recipe(name, folder)
    yaml = _round_trip()
    tree = read_yaml(params, yaml)
    defaults = dotted(Params())
    changes = [change for key, value in settings.items() if (change := _set(tree, key, value, defaults[key]))]
    text = io.StringIO()
    yaml.dump(tree, text)
    after = params_from(parsed(text.getvalue(), params.name), f"recipe {name}")
    try:
        check_rules(after)
    except UserError as error:
        raise UserError(f"recipe {name}, with the rest of {params.name}: {error}") from None
    if changes:
        partial = params.with_name(f".{params.name}.partial")
        partial.write_text(text.getvalue(), encoding="utf-8")
        os.replace(partial, params)
    return changes


def read_recipe(name: str, folder: Path = FOLDER) -> dict[str, Any]:
    """Dotted parameter -> value; UserError for an unknown recipe or parameter."""
    known = list(titles(folder))
    if name not in known:
        near = _nearest(name, known)
        fix = f"make recipe NAME={near}" if near else "make recipe, which lists them"
        raise not_allowed("recipe", name, f"one of {', '.join(known)}", fix)
    settings = read_yaml(folder / f"{name}.yaml", _round_trip())  # `[1, 2]` stays on its line
    parameters = list(dotted(Params()))
    for key in settings:
        if key not in parameters:
            near = _nearest(str(key), parameters)
            hint = f" Did you mean {near}?" if near else ""
            raise UserError(f"recipe {name}: {key} is not a known parameter.{hint} Fix: a dotted name of params.yaml.")
    return settings


def _nearest(word: str, known: list[str]) -> str | None:
    return next(iter(difflib.get_close_matches(word, known, n=1, cutoff=0.5)), None)


def _set(tree: Any, key: str, value: Any, default: Any) -> Change | None:
    """Set one parameter in a round-trip tree; None if it has that value already. default: what it is if left out."""
    *sections, last = key.split(".")
    for section in sections:
        tree = tree.setdefault(section, CommentedMap())
    old = tree.get(last, default)
    if old == value:
        return None
    tree[last] = value
    if comment := tree.ca.items.get(last, [None] * 3)[2]:
        comment.start_mark.column = 0  # one blank before it, however long the value
    return Change(key, old, value)


class _Representer(RoundTripRepresenter):
    """Writes null where ruamel leaves the place empty."""


_Representer.add_representer(type(None), lambda self, _: self.represent_scalar("tag:yaml.org,2002:null", "null"))


def _round_trip() -> YAML:
    """Keeps comments, quotes and long lines."""
    yaml = YAML()
    yaml.Representer = _Representer
    yaml.preserve_quotes = True
    yaml.width = 2**16
    return yaml


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
