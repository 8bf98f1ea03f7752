"""All federations of the study by name: the given ones and our own."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from functools import cache

from experiments.trust.given import GIVEN, heart_file
from experiments.trust.own import OWN
from experiments.trust.record import Federation
from experiments.trust.validation import VALIDATION
from pipeline.errors import not_allowed

FEDERATIONS = GIVEN | OWN
"""What a study runs that names none."""
KNOWN = FEDERATIONS | VALIDATION
"""All that can be named."""


def available(names: Iterable[str] = FEDERATIONS) -> list[str]:
    """Those that can be made here, in that order; a line on standard error for the one that cannot."""
    names = list(names)
    for name in names:
        if name not in KNOWN:
            raise not_allowed("federations", name, f"one of {', '.join(KNOWN)}", "name one of them")
    if "heart-2of6" in names and not heart_file().is_file():
        _tell(f"trust: heart-2of6 is left out, for {heart_file()} does not exist")
        names.remove("heart-2of6")
    return names


@cache
def _tell(line: str) -> None:
    """On standard error, once."""
    print(line, file=sys.stderr)


def federation(name: str, seed: int) -> Federation:
    """One of them. Equal seeds give equal arrays."""
    return KNOWN[name](seed)


def federations(seeds: Iterable[int] = (0, 1), names: Iterable[str] = FEDERATIONS) -> Iterator[Federation]:
    """All that can be made here, seed by seed."""
    found = available(names)
    for seed in seeds:
        for name in found:
            yield federation(name, seed)
