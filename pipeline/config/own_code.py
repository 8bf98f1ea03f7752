"""A user's own objects by their dotted path, such as ``my_methods.trimmed.TRIMMED``, and the files that define them."""

from __future__ import annotations

import difflib
import importlib
import sys
from modulefinder import ModuleFinder
from pathlib import Path
from typing import Any

from pipeline.errors import UserError

FOLDERS = ("examples", "my_methods", "networks")
"""Folders that dvc.yaml's stages depend on: an edit of a file in them runs again what it must."""


def found_at(key: str, path: str, kind: type | None, noun: str, how: str = "") -> Any:
    """What stands at the path; modules in the current folder (the project's root) can be imported.

    key: of params.yaml, for the messages. kind: what it must be an instance of; None = anything callable. noun: that,
    in a word. how: its form, where a word is not enough. UserError, in one line, for a module that cannot be imported,
    a name that is not there, and an object of another kind.
    """
    label, (module, _, attribute) = f"{key} = {path!r}", path.rpartition(".")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        values = vars(importlib.import_module(module))
    except Exception as error:
        raise UserError(
            f"{label}: importing {module!r} failed ({cause(error)})."
            f" Fix: put the module into the project's folder, or correct the path: package.module.{noun.lower()}."
        ) from error
    found = values.get(attribute)
    if callable(found) if kind is None else isinstance(found, kind):
        return found
    if found is not None and kind is not None:
        raise UserError(
            f"{label}: {attribute} in {module!r} is of type {type(found).__name__}, not {noun}. Fix: define it{how}."
        )
    public = [name for name, value in values.items() if (callable(value) if kind is None else isinstance(value, kind))]
    near = difflib.get_close_matches(attribute, public, n=1) or (public if len(public) == 1 and kind else [])
    fix = f"write {module}.{near[0]}" if near else f"define {attribute} there{how}"
    raise UserError(f"{label}: module {module!r} has no {noun} {attribute!r}. Fix: {fix}.")


def cause(error: Exception) -> str:
    """The exception in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def source_files(path: str) -> list[Path]:
    """The files that define an object that has been found: its module and all it imports from beside it.

    They belong into the fingerprint of whatever was computed with it. Of an installed package, whose version the
    environment fixes, only the module itself.
    """
    module = path.rpartition(".")[0]
    origin = getattr(sys.modules[module], "__file__", None)
    if origin is None:
        return []
    file = Path(origin).resolve()
    if "site-packages" in file.parts:
        return [file]
    root = file.parents[module.count(".") + (file.name == "__init__.py")]
    top = module.partition(".")[0]
    finder = ModuleFinder([str(root)], excludes=[] if top == "pipeline" else ["pipeline"])
    finder.import_hook(module)
    found = (getattr(module, "__file__", None) for module in finder.modules.values())
    return sorted({Path(path) for path in found if path} | {file})


def unwatched(path: str) -> Path | None:
    """The module of an object that has been found, where it lies in the project but in none of `FOLDERS`."""
    file = Path(getattr(sys.modules[path.rpartition(".")[0]], "__file__", None) or "/").resolve()
    root = Path.cwd().resolve()
    if root not in file.parents or "site-packages" in file.parts:
        return None
    place = file.relative_to(root)
    return None if place.parts[0] in (*FOLDERS, "pipeline") else place
