"""Methods as the registry has them, for tests that every method of a family passes without being named in them."""

from collections.abc import Collection

from pipeline.methods import ALGORITHMS


def family_of(context: type) -> list[str]:
    """Methods whose steps have that kind of context."""
    return [name for name, algorithm in ALGORITHMS.items() if algorithm.context is context]


def unnamed(context: type, named: Collection[str]) -> list[str]:
    """Those that a table of settings leaves out: they take their defaults."""
    return [name for name in family_of(context) if name not in named]
