"""A YAML file -> a record: read and checked in one place, with answers a person can act on.

A key or a section that is left out means its default. Order of complaints: unreadable YAML, unknown keys (the nearest
known one is suggested), wrong values, settings that do not go together. All complaints of one kind are given at once.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import types
import warnings
from collections.abc import Hashable, Iterator
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, cast, get_args, get_origin

from pydantic import TypeAdapter, ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, ReusedAnchorWarning, YAMLError

from pipeline.config.spec import Named, Section, hints_of
from pipeline.errors import UserError
from pipeline.masking import masked
from pipeline.text import clipped

Record = TypeVar("Record", bound=Section)
OTHER_WORDS = {"cuda": "gpu"}
"""What people write, and what it is called here."""


def load(kind: type[Record], path: Path, fix: str | None = None) -> Record:
    """The file as a record of that kind; UserError names every key at fault. fix: what to do where there is none."""
    return checked(kind, read_yaml(path, fix=fix), path.name)


def checked(kind: type[Record], tree: dict[str, Any], name: str) -> Record:
    """Nested dictionaries as a record of that kind. name: where they come from, for the messages."""
    complaints = list(_wrong_keys(kind, tree, prefix=""))
    if not complaints:
        complaints = list(_wrong_values(kind, tree))
    if complaints:
        raise UserError("\n".join(f"{name}: {line}" for line in complaints))
    return _validated(kind, tree)


def _validated(kind: type[Record], tree: dict[str, Any]) -> Record:
    """Through JSON, where pydantic's strict mode builds records from mappings; a YAML date becomes a text."""
    found: Record = _adapter(cast(Hashable, kind)).validate_json(json.dumps(tree, default=str), strict=True)
    return found


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    """Building one takes longer than a hundred validations."""
    return TypeAdapter(kind)


def read_yaml(path: Path, yaml: YAML | None = None, fix: str | None = None) -> dict[str, Any]:
    """The file as plain dictionaries, by the rules of YAML 1.2 (as DVC reads it); or as another parser has it. fix:
    what to do where there is none."""
    if path.exists() and not path.is_file():
        fix = fix or f"git checkout {path.name}"
        raise UserError(f"{path} is a folder or a device. Fix: move it away, and {fix}.")
    if not path.is_file():
        fix = fix or f"run from the project's root, or git checkout {path.name}"
        raise UserError(f"{path} does not exist. Fix: {fix}.")
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UserError(f"{path.name}: not a UTF-8 text. Fix: save it as UTF-8.") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}). Fix: make it readable for you.") from None
    return parsed(text, path.name, yaml, fix)


def parsed(text: str, name: str, yaml: YAML | None = None, fix: str | None = None) -> dict[str, Any]:
    """A text as `read_yaml` has a file. name: where it comes from, for the messages."""
    if len(text) > LENGTH or _brackets(text) > DEPTH:
        raise UserError(
            f"{name}: {len(text)} characters, nested in up to {_brackets(text)} brackets, are no settings. Fix: at most"
            f" {LENGTH} and {DEPTH}."
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ReusedAnchorWarning)  # YAML 1.2 allows it
            tree = (yaml or YAML(typ="safe", pure=True)).load(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f", line {mark.line + 1}" if mark else ""
        raise UserError(f"{name}{line}: not valid YAML: {_said(error)}. Fix: correct that line.") from None
    except RecursionError:
        raise UserError(f"{name}: nested too deeply. Fix: at most {DEPTH} levels.") from None
    except (YAMLError, ValueError, TypeError, ArithmeticError, LookupError, AttributeError) as error:
        # ruamel.yaml raises all of these for a scalar that is not what it seems to be: a date, a number, a tag.
        raise UserError(f"{name}: not valid YAML: {_said(error)}. Fix: correct that value, or quote it.") from None
    if not isinstance(tree, dict):
        raise UserError(f"{name}: must hold `key: value` lines. Fix: {fix or f'git checkout {name}'}.")
    require_plain(tree, name)
    return tree


DEPTH, VALUES, LENGTH = 30, 100_000, 1_000_000
"""Levels, values and characters that a file of settings may have; more come of a mistake, or of a recursive anchor."""


def require_plain(tree: dict[str, Any], name: str) -> None:
    """UserError unless the tree is what every reader after this one can take: text keys, numbers of at most 64 bits,
    texts that can be printed, no circle. name: where it comes from, for the messages."""
    left: list[tuple[Any, str, int]] = [(tree, "", 0)]
    seen = 0
    while left:
        value, key, depth = left.pop()
        seen += 1
        at = f"{name}: {key}" if key else name
        if depth > DEPTH:
            raise UserError(f"{name}: nested too deeply, or an anchor contains itself. Fix: at most {DEPTH} levels.")
        if seen > VALUES:
            raise UserError(f"{name}: more than {VALUES:,} values, as anchors repeat them. Fix: fewer of them.")
        if isinstance(value, dict):
            for word in value:
                if not isinstance(word, str):
                    raise UserError(f"{at}: the key {_shown(word)} is not a text. Fix: quote it, or remove it.")
                _printable(word, at)
            left += [(inner, f"{key}.{word}" if key else word, depth + 1) for word, inner in value.items()]
        elif isinstance(value, list | tuple):
            left += [(inner, key, depth + 1) for inner in value]
        elif isinstance(value, str):
            _printable(value, at)
        elif isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise UserError(f"{at}: a whole number of more than 18 digits. Fix: a smaller one.")


def _brackets(text: str) -> int:
    """Most brackets open at once: the parser takes quadratic time to find out."""
    depth = most = 0
    for letter in text:
        depth = max(0, depth + (letter in "[{") - (letter in "]}"))
        most = max(most, depth)
    return most


def _printable(text: str, at: str) -> None:
    """UserError for half a character, which no file and no terminal takes, and for a NUL, which no path does."""
    if "\0" in text or any("\ud800" <= letter <= "\udfff" for letter in text):
        raise UserError(f"{at}: {masked(text)[:60]!a} holds a character that cannot be written. Fix: remove it.")


def _said(error: Exception) -> str:
    """The heart of a parser's message, in one line."""
    text = str(getattr(error, "reason", None) or getattr(error, "problem", None) or error).partition("\n")[0]
    return text.encode("utf-8", "backslashreplace").decode()[:120] or type(error).__name__


def _shown(value: Any) -> str:
    return ascii(value)[:60]


# ---------------------------------------------------------------------------------------------- keys


def _wrong_keys(section: type, tree: Any, prefix: str) -> Iterator[str]:
    """Unknown keys of a section and of the sections inside it."""
    if not isinstance(tree, dict):
        name = prefix.rstrip(".")
        shown = _kind_of(tree) if _holds_secrets(section) else clipped(repr(tree), 200)
        yield f"{name} = {shown} is not allowed: it must be a section of keys. Fix: write keys below it."
        return
    hints = hints_of(section)
    fields = {f.name: f for f in dataclasses.fields(section)}
    for name in tree:
        if name not in fields:
            yield _unknown_key(prefix, str(name), list(fields))
    for name in fields:
        if name in tree and _is_section(hints[name]):
            yield from _wrong_keys(hints[name], tree[name], f"{prefix}{name}.")


def _unknown_key(prefix: str, name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    where = f"in {prefix.rstrip('.')}" if prefix else "at the top level"
    hint = f"Did you mean {prefix}{near[0]}?" if near else "Fix: remove it."
    return f"{prefix}{name} is not a known key. {hint} Allowed {where}: {', '.join(known)}."


def _is_section(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, Section)


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


# -------------------------------------------------------------------------------------------- values


def _wrong_values(record: type[Section], tree: dict[str, Any]) -> Iterator[str]:
    """One line per parameter whose value is not allowed."""
    try:
        yield from _booleans(record, _validated(record, tree), tree)
    except ValidationError as error:
        seen: set[str] = set()
        for problem in error.errors():
            key, field, hint = _locate(record, problem["loc"])
            if key not in seen:
                seen.add(key)
                yield _wrong_value(key, _value_at(tree, key), field, hint)


def _booleans(record: type[Section], found: Any, tree: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """Where true or false was taken for 1 or 0: pydantic does so among the words of a Literal."""
    hints = hints_of(cast(Any, record))
    for field in dataclasses.fields(cast(Any, record)):
        value, kept = tree.get(field.name), getattr(found, field.name)
        if isinstance(value, dict) and _is_section(hints[field.name]):
            yield from _booleans(hints[field.name], kept, value, f"{prefix}{field.name}.")
        elif isinstance(value, bool) and not isinstance(kept, bool):
            yield _wrong_value(f"{prefix}{field.name}", value, field, hints[field.name])


def _locate(record: type[Section], loc: tuple[int | str, ...]) -> tuple[str, dataclasses.Field[Any], Any]:
    """The parameter at fault: pydantic's location goes deeper, into lists and branches of unions."""
    kind: Any = record
    path: list[str] = []
    for part in loc:
        field = next(f for f in dataclasses.fields(kind) if f.name == part)
        hint = hints_of(kind)[str(part)]
        path.append(str(part))
        if not _is_section(hint):
            break
        kind = hint
    return ".".join(path), field, hint


def _value_at(tree: Any, key: str) -> Any:
    for part in key.split("."):
        tree = tree[part]
    return tree


def _wrong_value(key: str, value: Any, field: dataclasses.Field[Any], hint: Any) -> str:
    allowed = describe(hint, field.metadata)
    name, default = key.rsplit(".", 1)[-1], json.dumps(_default(field))
    near = ""
    if isinstance(value, str):
        words = [str(word) for word in _choices(hint)]
        meant = OTHER_WORDS.get(value.lower().partition(":")[0], value)
        close = [meant] if meant in words else difflib.get_close_matches(value, words, n=1, cutoff=0.5)
        near = f" Did you mean {close[0]}?" if close else ""
    shown = _kind_of(value) if field.metadata.get("secret") else clipped(json.dumps(value, default=str), 200)
    return (
        f"{key} = {shown} is not allowed: it must be {allowed}.{near}"
        f" Fix: for example `{name}: {default}` (the default)."
    )


def _kind_of(value: Any) -> str:
    """In place of a value that may hold a password."""
    kinds = {dict: "a mapping", list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return f"({kinds.get(type(value), 'a number')})"


def _holds_secrets(section: type) -> bool:
    return any(field.metadata.get("secret") for field in dataclasses.fields(section))


def _choices(hint: Any) -> list[Any]:
    """The words a parameter admits."""
    if get_origin(hint) is Annotated and isinstance(get_args(hint)[1], Named):
        return list(get_args(hint)[1].names)
    if get_origin(hint) is Literal:
        return list(get_args(hint))
    if get_origin(hint) in (Union, types.UnionType):
        return [word for part in get_args(hint) for word in _choices(part)]
    return []


def describe(hint: Any, metadata: Any) -> str:
    """Allowed values in words: "a number greater than 0", "one of a, b"."""
    if get_origin(hint) is Annotated:
        kind, bound = get_args(hint)
        if isinstance(bound, Named):
            own = f", or the dotted path of {bound.own}" if bound.own else ""
            return f"one of {bound.listed}{own}"
        return describe(kind, bound.bounds)
    if get_origin(hint) in (Union, types.UnionType):
        return " or ".join(describe(part, metadata) for part in get_args(hint))
    words = [str(word) for word in _choices(hint)]
    if words:
        return words[0] if len(words) == 1 else f"one of {', '.join(words)}"
    bounds = {"gt": "greater than", "ge": "at least", "lt": "below", "le": "at most"}
    limits = " and ".join(f"{text} {metadata[name]}" for name, text in bounds.items() if name in metadata)
    nouns: dict[Any, str] = {
        int: "a whole number",
        float: "a number",
        str: "a text",
        bool: "true or false",
        type(None): "null",
    }
    if hint in nouns:
        return f"{nouns[hint]}, {limits}" if limits else nouns[hint]
    if get_origin(hint) is list:
        (inner,) = get_args(hint)
        plural = {int: "whole numbers", float: "numbers", str: "texts"}.get(inner, "lists of whole numbers")
        return f"a list of {plural}"
    if get_origin(hint) is dict and get_origin(get_args(hint)[1]) is list:
        return "a mapping of names to lists of values"
    return "a mapping of names to values"
