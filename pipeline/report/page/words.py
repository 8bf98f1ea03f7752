"""Numbers as a reader takes them in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def percent(share: float | None, digits: int = 1) -> str:
    """0.9694 -> 96.9 %; empty for None and nan."""
    return "" if share is None or share != share else f"{100 * share:.{digits}f} %"


def large(value: float) -> str:
    """12345678 -> 12.3 million; small whole numbers in full."""
    for size, name in ((1e12, "trillion"), (1e9, "billion"), (1e6, "million")):
        if abs(value) >= size:
            return f"{value / size:.3g} {name}"
    return f"{value:,.0f}" if value == int(value) else f"{value:,.3g}"


def duration(seconds: float) -> str:
    """75 -> 1 min 15 s."""
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def counted(count: int, one: str, many: str = "") -> str:
    """1 client, 2 clients."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def listed(names: Sequence[str], most: int = 12) -> str:
    """a, b and c; of many the first, and how many more."""
    if len(names) > most:
        return f"{', '.join(names[:most])} and {len(names) - most} more"
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def plain(value: Any) -> str:
    """A setting as it stands in params.yaml."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)
