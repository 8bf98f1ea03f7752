"""What the size and the cleanness of the validation set decide: given federations whose server holds less of it.

`<federation>-v20` keeps the first 20 validation samples, which were drawn at random: a class may be missing.
`<federation>-v50-dirty` keeps 50, a tenth of them with another label.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial

import numpy as np

from experiments.trust.given import GIVEN
from experiments.trust.record import Federation

BASES = ("digits-2of8", "digits-5of8", "digits-moved-2of6", "digits-skewed-3of10", "table-2of12", "table-linear-6of12")
"""Those with at least 60 validation samples of two or ten classes."""
SIZES = (50, 20, 10)
WRONG = 0.1


def limited(made: Federation, size: int, wrong: float = 0.0, seed: int = 0) -> Federation:
    """The federation whose server holds `size` validation samples, a share `wrong` of them with another label."""
    X, y = (part[:size] for part in made.validation)
    rng = np.random.default_rng([seed, size, 4711])
    hit = rng.permutation(size)[: round(wrong * size)]
    y = y.copy()
    y[hit] = (y[hit] + rng.integers(1, made.classes, len(hit))) % made.classes
    return dataclasses.replace(made, name=f"{made.name}-v{size}", validation=(X, y))


def _limited(base: str, size: int, wrong: float, seed: int) -> Federation:
    return limited(GIVEN[base](seed), size, wrong, seed)


VALIDATION: dict[str, Callable[[int], Federation]] = {
    name: partial(_limited, base, size, wrong)
    for base in BASES
    for name, size, wrong in (*((f"{base}-v{size}", size, 0.0) for size in SIZES), (f"{base}-v50-dirty", 50, WRONG))
}
"""Name -> the federation of a seed."""
SETTINGS = {"": "all", **{f"-v{size}": str(size) for size in SIZES}, "-v50-dirty": "50, 5 wrong"}
"""How a name ends, and what that is called."""


def setting(federation: str) -> tuple[str, str]:
    """(base, how its name ends)."""
    for ending in sorted(SETTINGS, key=len, reverse=True):
        base = federation.removesuffix(ending) if ending else federation
        if base in BASES and f"{base}{ending}" == federation:
            return base, ending
    return federation, ""
