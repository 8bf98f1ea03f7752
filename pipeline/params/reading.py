"""params.yaml -> Params, and its JSON schema."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from pipeline.config.loading import load
from pipeline.params.tree import Params


def load_params(path: Path) -> Params:
    """Read, check and return the parameters; UserError names every key at fault."""
    return load(Params, path)


def schema() -> dict[str, Any]:
    """JSON schema of params.yaml, for editors: every key, its meaning, its range and its default."""
    result = TypeAdapter(Params).json_schema()
    result["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    result["title"] = "params.yaml of fedbilevel"
    return result
