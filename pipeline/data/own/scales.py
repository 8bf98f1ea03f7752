"""Numbers out of all proportion: a client's in other units than the others', and single ones far from all the rest.

Both are named in notes, and neither has a say in the scale that a column gets. The rules are robust themselves:

* Other units: of a client's 10 and 90 % quantiles, both the size and the distance are `UNITS` times those of the
  reference, or that fraction of them. The reference is the server's validation set; without one, the client in the
  middle, the smaller of two. Where most clients differ from the validation set alike, it is the one that is named.
* Far off: `FAR` times as far from the median as a value usually is, and `GAP` times as far as the next nearer one; at
  most one value in a hundred.

Of large data, rows at even distances are looked at for the quantiles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

UNITS = 8.0
FAR, GAP = 30.0, 5.0
LEAST = 10
"""Fewest values that show a scale."""
CELLS = 20_000_000
"""Most that the quantiles are taken of."""
MOST = 5
"""Notes of a kind, and names in a note."""


class Scales:
    """Looks at one column after another. notes: what was found, a line each.

    owners: whose each of the clients' rows is, [M], numbers of the names; columns: how many there are.
    """

    def __init__(self, owners: np.ndarray, names: Sequence[str], columns: int) -> None:
        self.owners, self.names = owners, names
        order, sizes = np.argsort(owners, kind="stable"), np.bincount(owners, minlength=len(names))
        rank = np.arange(len(owners)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        each = max(LEAST, int(np.clip(CELLS // max(columns, 1), 1000, 100_000)) // len(names))
        self._rows = order[rank % -(-sizes // each)[owners[order]] == 0]
        self._whose = owners[self._rows]
        self._units: dict[str, list[tuple[str, float]]] = {}
        self._far: list[str] = []

    def sound(self, column: str, values: np.ndarray, server: Mapping[str, np.ndarray]) -> np.ndarray:
        """Which of the clients' values, [M], nan where missing, have a say in the column's scale, bool [M].

        column: what notes call it. server: the values of each of the server's sets.
        """
        other = self._in_other_units(column, values, server)
        left = ~other[self.owners] & ~np.isnan(values)
        own = np.flatnonzero(left)
        parts = {part: held[~np.isnan(held)] for part, held in server.items() if part not in self._units}
        far, low, high = far_off(np.concatenate([values[own], *parts.values()]), len(own))
        if len(far):
            self._name(column, values, own, parts, far, (low, high))
        counted = ~other[self.owners]
        counted[own[far[far < len(own)]]] = False
        return counted

    @property
    def notes(self) -> list[str]:
        units = [
            f"{owner}: values are {_times([factor for _, factor in found])} times the others' in"
            f" {_some([column for column, _ in found])}: other units?"
            for owner, found in self._units.items()
        ]
        return [line for found in (units, self._far) for line in _first(found)]

    def _in_other_units(self, column: str, values: np.ndarray, server: Mapping[str, np.ndarray]) -> np.ndarray:
        """Of each client, bool [N]."""
        looked = values[self._rows]
        clients = _shape(looked, self._whose, len(self.names))
        shapes = {part: _shape(held, np.zeros(len(held), np.int64), 1) for part, held in server.items()}
        known = ~np.isnan(clients[0])
        other = np.zeros(len(self.names), dtype=bool)
        if not known.any():
            return other
        count = int(known.sum())
        middles = np.sort(clients[:, known], axis=1)[:, [(count - 1) // 2, count // 2]]
        reference = middles[:, :1]
        factors = _factors(clients, reference)
        if "validation" in shapes and not np.isnan(shapes["validation"]).any():
            reference = shapes["validation"]
            # Where clients lie apart, all together are wider than each: only who differs from another client as well.
            factors = _alike(_factors(clients, reference), [_factors(clients, middle[:, None]) for middle in middles.T])
            if (factors == 1).all():
                whole = _shape(looked, 0 * self._whose, 1)
                reference = np.concatenate([whole, middles], axis=1)
                against = _factors(np.repeat(shapes["validation"], 3, axis=1), reference)
                if (against > 1).all() or (against < 1).all():
                    self._units.setdefault("validation", []).append((column, float(against[0])))
                return other
        if (factors != 1).sum() > count / 2:  # they simply differ
            return other
        said = {f"client {self.names[i]!r}": factors[i] for i in np.flatnonzero(factors != 1).tolist()}
        said |= {part: _factors(shape, reference)[0] for part, shape in shapes.items()}
        for owner, factor in said.items():
            if factor != 1:
                self._units.setdefault(owner, []).append((column, float(factor)))
        return factors != 1

    def _name(
        self,
        column: str,
        values: np.ndarray,
        own: np.ndarray,
        parts: Mapping[str, np.ndarray],
        far: np.ndarray,
        ends: tuple[float, float],
    ) -> None:
        """Note whose values these are."""
        whole = np.concatenate([values[own], *parts.values()])
        sets = np.repeat(list(parts), [len(held) for held in parts.values()])

        def whose(i: int) -> str:
            if i >= len(own):
                return str(sets[i - len(own)])
            return f"client {self.names[self.owners[own[i]]]!r}" if len(self.names) > 1 else "a row"

        said = _some([f"{whose(i)} has {whole[i]:.6g}" for i in far.tolist()])
        self._far.append(
            f"{column}: {said}, and all other values lie within {ends[0]:.6g} to {ends[1]:.6g}: a mistake?"
        )


def far_off(values: np.ndarray, own: int) -> tuple[np.ndarray, float, float]:
    """Positions of values, none missing, that are far off; the least and the largest of the others. own: how many of
    them, from the first on, say what is usual."""
    nothing = np.zeros(0, dtype=np.int64)
    if own < 2 * LEAST:
        return nothing, 0.0, 0.0
    usual = np.sort(values[:own][:: -(-own // 20_000)])
    low, middle, high = (usual[round(share * (len(usual) - 1))] for share in (0.05, 0.5, 0.95))
    away = np.abs(values - middle)
    spread = (high - low) / 3.29  # of a normal distribution, the deviation
    if not spread:
        some = away[away > 0]
        spread = float(np.median(some)) if len(some) >= LEAST else 0.0
    order = np.flatnonzero(away > FAR * spread) if spread else nothing
    if not len(order) or len(order) > max(3, len(values) // 100):
        return nothing, 0.0, 0.0
    order = order[np.argsort(away[order], kind="stable")]
    rest = np.delete(away, order)
    steps = np.concatenate([[max(float(rest.max()), spread)], away[order]])
    gaps = np.flatnonzero(steps[1:] >= GAP * steps[:-1])
    if not len(gaps):
        return nothing, 0.0, 0.0
    far = order[gaps[0] :]
    others = np.delete(values, far)
    return far, float(others.min()), float(others.max())


def _shape(values: np.ndarray, owners: np.ndarray, count: int) -> np.ndarray:
    """[2, count]: size and distance of each owner's 10 and 90 % quantiles; nan of few values, or of equal ones."""
    counts = np.bincount(owners, ~np.isnan(values), minlength=count).astype(np.int64)
    starts = np.searchsorted(np.sort(owners), np.arange(count))
    held = values[np.lexsort((values, owners))]  # nan comes last
    found = np.full((2, count), np.nan)
    enough = counts >= LEAST
    low, high = (held[starts[enough] + np.round(share * (counts[enough] - 1)).astype(np.int64)] for share in (0.1, 0.9))
    found[:, enough] = np.maximum(np.abs(low), np.abs(high)), high - low
    found[:, found[1] == 0] = np.nan
    return found


def _factors(shapes: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """[count]: how many times as large as the reference's, [2, 1] or [2, count]; 1 where they are in the same units."""
    with np.errstate(invalid="ignore", divide="ignore"):
        ratios = shapes / reference
        other = (ratios >= UNITS).all(axis=0) | (ratios <= 1 / UNITS).all(axis=0)
        return np.where(other, np.sqrt(ratios.prod(axis=0)), 1.0)


def _alike(factors: np.ndarray, others: Sequence[np.ndarray]) -> np.ndarray:
    """1 where none of the others points the same way."""
    with_them = [np.sign(np.log(factors)) == np.sign(np.log(other)) for other in others]
    return np.where(np.any(with_them, axis=0), factors, 1.0)


def _times(factors: Sequence[float]) -> str:
    """From the least to the largest, to a digit."""
    least, largest = (f"{float(f'{factor:.1g}'):g}" for factor in (min(factors), max(factors)))
    return f"about {least}" if least == largest else f"{least} to {largest}"


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:MOST]) + (f" and {len(names) - MOST} more" if len(names) > MOST else "")


def _first(lines: list[str]) -> list[str]:
    return lines if len(lines) <= MOST else [*lines[:MOST], f"... and {len(lines) - MOST} more notes of this kind"]
