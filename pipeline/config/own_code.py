"""A user's own objects by their dotted path, such as ``my_methods.trimmed.TRIMMED``, and the files that define them."""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import inspect
import sys
from collections.abc import Container
from modulefinder import ModuleFinder
from pathlib import Path
from typing import Any, get_type_hints

from pipeline.errors import UserError

FOLDERS = ("examples", "my_methods", "networks")
"""Folders that dvc.yaml's stages depend on: an edit of a file in them runs again what it must."""


def registered(package: str, *places: str) -> dict[str, Any]:
    """Entries of a registry by the names they give themselves. places: module and variable, below the package."""
    found: dict[str, Any] = {}
    for place in places:
        module, _, variable = place.rpartition(".")
        entry = getattr(importlib.import_module(f"{package}.{module}"), variable)
        assert entry.name not in found, f"two entries of {package} are named {entry.name}"
        found[entry.name] = entry
    return found


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


def fault(own: Any, shipped: Container[str], settings: Any, base: type | None) -> str | None:
    """What is wrong with the name or the settings of a custom entry, and the fix; None if nothing is.

    shipped: names that are taken. settings: the record of its settings, derived from base; None = not looked at yet.
    """
    if not isinstance(own.name, str) or not own.name.isidentifier():
        return f"its name {own.name!r} cannot be a key of params.yaml. Fix: use letters, digits and underscores"
    if own.name in shipped:
        return f"its name {own.name!r} is taken by a shipped one. Fix: give it another name"
    if base is None:
        return None
    if not (inspect.isclass(settings) and issubclass(settings, base) and dataclasses.is_dataclass(settings)):
        where = f"{base.__module__}.{base.__name__}"
        return f"its settings {settings!r} are no dataclass derived from {base.__name__}. Fix: derive them from {where}"
    try:
        settings()
        get_type_hints(settings)
    except (TypeError, NameError) as error:
        return f"its settings cannot be made ({cause(error)}). Fix: give each of them a type and a default"
    return None


def not_called_with(function: Any, count: int) -> str | None:
    """What is wrong with a function that does not take `count` arguments; None if it does."""
    try:
        inspect.signature(function).bind(*[None] * count)
    except TypeError:
        name = getattr(function, "__name__", repr(function))
        return f"{name} cannot be called with {count} argument{'s' * (count > 1)}. Fix: give it that form"
    return None


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
