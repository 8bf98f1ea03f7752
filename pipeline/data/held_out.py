"""The server's sets of a user's own data, where none are given: shares of the clients' samples, held out.

The units are groups, or single samples. They are put in order of client, then target, then at random, and picked at
even distances: so each set has about the same share of every client and of every class, no group lies on both sides of
a split, and every client keeps one unit at least.
"""

from __future__ import annotations

import numpy as np

from pipeline.data.holdings import Draw


def held_out(
    owners: np.ndarray, targets: np.ndarray, groups: np.ndarray | None, shares: dict[str, float], draw: Draw
) -> dict[str, np.ndarray]:
    """Positions [n] of each set in the rows, ascending. owners, targets, groups: of the rows, [M]; shares: of each set.

    The random order depends on (seed, "held-out") alone, so a set of another size holds other samples, but a set that
    is given instead leaves the others as they are.
    """
    units, first, unit_of = _units(groups, len(owners))
    owner, target = owners[first], targets[first]
    order = np.lexsort((draw("held-out").random(units), target, owner))
    protected = np.zeros(units, dtype=bool)
    # A group may lie on several clients: each client's first unit stays.
    pairs = np.unique(owners * units + unit_of)
    protected[pairs[np.unique(pairs // units, return_index=True)[1]] % units] = True
    free = order[~protected[order]]
    found = {}
    for place, (name, share) in enumerate(shares.items()):
        left = len(free)
        wanted = min(round(share * units), left)
        offset = draw("held-out-offset", place).random()
        steps = np.floor(np.arange(left + 1) * (wanted / max(left, 1)) + offset)
        picked = np.diff(steps) > 0
        chosen = np.zeros(units, dtype=bool)
        chosen[free[picked]] = True
        found[name] = np.flatnonzero(chosen[unit_of])
        free = free[~picked]
    return found


def _units(groups: np.ndarray | None, rows: int) -> tuple[int, np.ndarray, np.ndarray]:
    """Their number, a row of each, and each row's unit."""
    if groups is None:
        every = np.arange(rows)
        return rows, every, every
    _, first, unit_of = np.unique(groups, return_index=True, return_inverse=True)
    return len(first), first, unit_of
