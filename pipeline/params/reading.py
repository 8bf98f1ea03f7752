"""params.yaml -> Params, and its JSON schema."""

from __future__ import annotations

import dataclasses
import difflib
from pathlib import Path
from typing import Any, get_type_hints

from pydantic import TypeAdapter

from pipeline.config.loading import checked, read_yaml, require_plain
from pipeline.params.tree import Params, params_of


def load_params(path: Path) -> Params:
    """Read, check and return the parameters; UserError names every key at fault."""
    return params_from(read_yaml(path), path.name)


def params_from(tree: dict[str, Any], name: str) -> Params:
    """Nested dictionaries as parameters. name: where they come from, for the messages.

    A section of `algorithms`, `partition` or `problems` that nothing shipped has, and whose name is close to none,
    belongs to a custom method, scheme or problem; unless that is in use, it is ignored.
    """
    require_plain(tree, name)
    default, partition = Params(), tree.get("partition")
    algorithm = _own(tree.get("algorithm"), default.algorithm)
    scheme = _own(partition.get("scheme") if isinstance(partition, dict) else None, default.partition.scheme)
    kind = params_of(algorithm, scheme, _own(tree.get("problem"), default.problem))
    hints = get_type_hints(kind)
    kept = {
        key: _kept(tree[key], hints[key])
        for key in ("algorithms", "partition", "problems")
        if isinstance(tree.get(key), dict)
    }
    return checked(kind, tree | kept, name)


def _own(value: Any, default: str) -> str:
    """A dotted path; the default in place of a name, which is checked with all values."""
    return value if isinstance(value, str) and "." in value else default


def _kept(sections: dict[str, Any], record: type) -> dict[str, Any]:
    """Those that the record has or that are more likely a mistake than a section of custom code."""
    known = [field.name for field in dataclasses.fields(record)]

    def looked_at(key: Any) -> bool:
        alike = difflib.get_close_matches(str(key), known, n=1, cutoff=0.6)
        return key in known or bool(alike) or not isinstance(sections[key], dict)

    return {key: value for key, value in sections.items() if looked_at(key)}


def schema() -> dict[str, Any]:
    """JSON schema of params.yaml, for editors: every key, its meaning, its range and its default."""
    result = TypeAdapter(Params).json_schema()
    result["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    result["title"] = "params.yaml of fedbilevel"
    return result
