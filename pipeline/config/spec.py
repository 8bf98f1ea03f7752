"""How a parameter is declared: a default, what it does, its range, and the paper's symbol."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeVar, get_type_hints

Auto = Literal["auto"]


@dataclasses.dataclass(frozen=True)
class Within:
    """Bounds inside a union, as in ``PositiveInt | Auto``, where bounds of the whole field cannot stand."""

    ge: float | None = None
    gt: float | None = None
    lt: float | None = None
    le: float | None = None

    @property
    def bounds(self) -> dict[str, float]:
        return {name: bound for name, bound in vars(self).items() if bound is not None}

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        """pydantic's hook for foreign annotations; nothing of pydantic is imported for it."""
        return {**handler(source), **self.bounds}


PositiveInt = Annotated[int, Within(ge=1)]
NonNegativeInt = Annotated[int, Within(ge=0)]
NonNegativeFloat = Annotated[float, Within(ge=0)]
PositiveFloat = Annotated[float, Within(gt=0)]
Fraction = Annotated[float, Within(ge=0, lt=1)]
Ratio = Annotated[float, Within(gt=0, le=1)]


@dataclasses.dataclass(frozen=True)
class Named:
    """One of these names, as in ``Annotated[str, Named(...)]``; or the dotted path of your own object.

    own: what that object is, for the messages; None where there is no such choice. groups: the names by kind, for the
    messages; those in no group come first.
    """

    names: tuple[str, ...]
    own: str | None = None
    groups: tuple[tuple[str, tuple[str, ...]], ...] = ()

    PATH: ClassVar[str] = r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+"

    @property
    def listed(self) -> str:
        """The names in words, kind by kind."""
        if not self.groups:
            return ", ".join(self.names)
        grouped = {name for _, names in self.groups for name in names}
        alone = [name for name in self.names if name not in grouped]
        return "; ".join([*alone, *(f"{title}: {', '.join(names)}" for title, names in self.groups)])

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        allowed = [*map(re.escape, self.names), *([self.PATH] if self.own else [])]
        return {**handler(source), "pattern": f"^({'|'.join(allowed)})$"}

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> Any:
        """Editors offer the names."""
        names = {"enum": list(self.names)}
        return {"anyOf": [names, {"type": "string", "pattern": f"^{self.PATH}$"}]} if self.own else names


class Section:
    """Base of every parameter record.

    pydantic reads this configuration at the edges: no unknown key, no silent conversion ("3" is not 3, true is
    not 1), no infinity where a number is asked for.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = {
        "extra": "forbid",
        "strict": True,
        "allow_inf_nan": False,
    }


def param(
    default: Any,
    description: str,
    *,
    gt: float | None = None,
    ge: float | None = None,
    le: float | None = None,
    lt: float | None = None,
    symbol: str | None = None,
    secret: bool = False,
) -> Any:
    """A dataclass field. ``metadata`` uses pydantic's names, so ranges and schema come from one place.

    symbol: the paper's letter, shown in the schema's description. secret: may hold a password, so no message shows
    a value of the wrong kind, in which it could stand anywhere.
    """
    text = f"{description} (the paper's {symbol})" if symbol else description
    ranges = {"gt": gt, "ge": ge, "le": le, "lt": lt}
    metadata: dict[str, Any] = {"description": text} | {k: v for k, v in ranges.items() if v is not None}
    if secret:
        metadata["secret"] = True
    if isinstance(default, list | dict):
        return dataclasses.field(default_factory=lambda: type(default)(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def section(kind: type, description: str) -> Any:
    """A nested section: its record with its own defaults."""
    return dataclasses.field(default_factory=kind, metadata={"description": description})


class OpenSection(Section):
    """A section that holds one section per entry of a registry; see `one_section_each`."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...


Kind = TypeVar("Kind", bound=OpenSection)


def one_section_each(records: Mapping[str, tuple[type, str]]) -> Callable[[type[Kind]], type[Kind]]:
    """Class decorator: adds a nested section for each name. records: name -> (its record, what it is)."""

    def completed(kind: type[Kind]) -> type[Kind]:
        fields = [(name, record, section(record, text)) for name, (record, text) in records.items()]
        namespace = {"__doc__": kind.__doc__, "__module__": kind.__module__}
        return dataclasses.make_dataclass(kind.__name__, fields, bases=(kind,), namespace=namespace, frozen=True)

    return completed


def override(record: Any, settings: dict[str, Any]) -> Any:
    """The same parameters with some of them changed, by dotted name: `{"algorithms.primal_dual.gamma": 1.0}`.

    Raises KeyError for a name that does not exist, but in a mapping, which may have any (`model.options`); ranges are
    checked where params.yaml is read, not here.
    """
    changes: dict[str, Any] = {}
    inner: dict[str, dict[str, Any]] = {}
    for dotted, value in settings.items():
        name, _, rest = dotted.partition(".")
        if not isinstance(record, dict) and name not in {field.name for field in dataclasses.fields(record)}:
            raise KeyError(f"no parameter {dotted!r} in {type(record).__name__}")
        if rest:
            inner.setdefault(name, {})[rest] = value
        else:
            changes[name] = value
    if isinstance(record, dict):
        return record | changes | {name: override(record.get(name, {}), part) for name, part in inner.items()}
    changes |= {name: override(getattr(record, name), part) for name, part in inner.items()}
    return dataclasses.replace(record, **changes)


@functools.cache
def hints_of(record: type) -> dict[str, Any]:
    """The types of a record's fields, with what `param` says of them."""
    return get_type_hints(record, include_extras=True)


def continuous(record: type) -> list[str]:
    """Names of the parameters that are any number within their range: neither whole numbers nor words."""
    hints = get_type_hints(record)
    return [field.name for field in dataclasses.fields(record) if hints[field.name] is float]


def dotted(params: Any) -> dict[str, Any]:
    """Every parameter under its dotted params.yaml name."""
    return flat(dataclasses.asdict(params))


def flat(tree: dict[str, Any]) -> dict[str, Any]:
    """Nested sections under dotted names."""
    return dict(_flatten(tree, ""))


def _flatten(tree: dict[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, dict) and value:
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value
