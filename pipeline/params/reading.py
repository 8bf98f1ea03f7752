"""params.yaml -> Params, and its JSON schema."""

from __future__ import annotations

import dataclasses
import difflib
from pathlib import Path
from typing import Any, get_type_hints

from pydantic import TypeAdapter

from pipeline.config.loading import checked, read_yaml
from pipeline.methods import ALGORITHMS
from pipeline.params.tree import Params, params_of


def load_params(path: Path) -> Params:
    """Read, check and return the parameters; UserError names every key at fault."""
    return params_from(read_yaml(path), path.name)


def params_from(tree: dict[str, Any], name: str) -> Params:
    """Nested dictionaries as parameters. name: where they come from, for the messages.

    A section of `algorithms` that no method shipped has, and whose name is close to none, belongs to a method of one's
    own; unless that is in use, it is not looked at.
    """
    algorithm, sections = tree.get("algorithm"), tree.get("algorithms")
    kind = params_of(algorithm) if isinstance(algorithm, str) and "." in algorithm else Params
    known = [field.name for field in dataclasses.fields(get_type_hints(kind)["algorithms"])]
    if isinstance(sections, dict):
        kept = {key: each for key, each in sections.items() if key in known or _misspelt(key, each)}
        tree = tree | {"algorithms": kept}
    return checked(kind, tree, name)


def _misspelt(key: Any, section: Any) -> bool:
    """Whether a key of `algorithms` is more likely a mistake than a method of one's own."""
    return not isinstance(section, dict) or bool(difflib.get_close_matches(str(key), ALGORITHMS, n=1, cutoff=0.75))


def schema() -> dict[str, Any]:
    """JSON schema of params.yaml, for editors: every key, its meaning, its range and its default."""
    result = TypeAdapter(Params).json_schema()
    result["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    result["title"] = "params.yaml of fedbilevel"
    return result
