"""The parts of a user's own data together: a data set in memory, with notes on what looks odd."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from pipeline.data.own import targets
from pipeline.data.own.scales import Scales
from pipeline.data.raw import SELECTION, VALIDATION, RawDataset, row_hashes
from pipeline.errors import UserError

SERVER = {"validation": VALIDATION, "selection": SELECTION}
LEAK = 0.99
"""Share of rows whose class a single column gives away, from which on it is suspected to be the class itself."""


@dataclass
class FoundSets:
    """Features X [M, C, H, W] and targets y [M] as they were found, of each set that there is: clients, validation,
    selection, test. owners: each client row's name; None: the rows are a pool. groups: of any kind, of each set. keys:
    equal for equal samples, [M] of each set; None: those of X."""

    X: dict[str, np.ndarray]
    y: dict[str, np.ndarray]
    owners: np.ndarray | None
    groups: dict[str, np.ndarray] | None = None
    notes: list[str] = field(default_factory=list)
    keys: dict[str, np.ndarray] | None = None


def assembled(name: str, parts: FoundSets, record: dict[str, Any], task: str, label: str) -> RawDataset:
    """record: of the features; the targets' is added. label: what complaints call the target."""
    for part, values in parts.y.items():
        targets.require_present(label, values, part)
    everything = np.concatenate(list(targets.one_kind(label, parts.y).values()))
    target = targets.described(label, everything, task)
    y = {part: targets.encoded(target, _like(everything, values), label) for part, values in parts.y.items()}
    names, owners = _owners(parts.owners, len(y["clients"]))
    held = [part for part in ("clients", *SERVER) if part in y]
    codes = [owners if part == "clients" else np.full(len(y[part]), SERVER[part]) for part in held]
    groups = None
    if parts.groups:
        whole = np.concatenate([parts.groups[part].astype(str) for part in held])
        groups = np.unique(whole, return_inverse=True)[1].reshape(-1).astype(np.int64)
    classes = target["classes"]
    notes = [*parts.notes, *_class_notes(y, classes), *_client_notes(names, owners), *_twins(parts)]
    if not classes:
        codes_of, server = owned(parts.owners, len(y["clients"])), {part: y[part] for part in y if part != "clients"}
        scales = Scales(*codes_of, 1)
        scales.sound(label, y["clients"], server)
        notes += scales.notes
    if len(classes) > targets.MOST_CLASSES and task == "auto":
        notes.append(f"{label} is taken for {len(classes)} classes, such as {classes[0]!r}")
    if len(classes) > targets.MOST_CLASSES and targets.fractions(everything):
        notes.append(f"{label} holds {len(classes)} different numbers, such as {classes[0]}, each a class of its own")
    empty = parts.X["clients"][:0], y["clients"][:0]
    return RawDataset(
        name,
        len(classes),
        _joined([parts.X[part] for part in held]),
        np.concatenate([y[part] for part in held]),
        *((parts.X["test"], y["test"]) if "test" in y else empty),
        owners=np.concatenate(codes).astype(np.int64),
        client_names=tuple(names),
        groups=groups,
        class_names=tuple(classes),
        preprocessing=record | {"target": target},
        notes=tuple(notes),
    )


def _joined(arrays: list[np.ndarray]) -> np.ndarray:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def _like(everything: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The values in the kind of all of them: one set may write 1, another 1.0."""
    if everything.dtype.kind == "O" and values.dtype.kind != "O":
        return np.array([targets.class_name(value) for value in values], dtype=object)
    return values if everything.dtype.kind == "O" else values.astype(everything.dtype)


def owned(found: np.ndarray | None, rows: int) -> tuple[np.ndarray, list[str]]:
    """Each row's client and the clients' names, before either is checked; one client of no name for a pool."""
    if found is None:
        return np.zeros(rows, dtype=np.int64), [""]
    names, which = np.unique(found.astype(str), return_inverse=True)
    return which.reshape(-1), names.tolist()


def _owners(found: np.ndarray | None, rows: int) -> tuple[list[str], np.ndarray]:
    """Names of the clients and each row's client; no names for a pool."""
    if found is None:
        return [], np.zeros(rows, dtype=np.int64)
    missing = targets.is_missing(found)
    if missing.any():
        raise UserError(
            f"data.client: {missing.sum()} of {rows} rows name no client, the first is row {int(missing.argmax()) + 1}."
            " Fix: name one, or remove them."
        )
    distinct, which = np.unique(found.astype(str) if found.dtype.kind == "O" else found, return_inverse=True)
    if len(distinct) < 2:
        raise UserError(
            f"data: there is one client only, {targets.class_name(distinct[0])!r}. Fix: data of at least two."
        )
    names = [targets.class_name(value) for value in distinct]
    if strange := [name for name in names if not name.isprintable()]:
        raise UserError(f"data: the client's name {strange[0]!r} holds a line break or the like. Fix: rename it.")
    return names, which.reshape(-1).astype(np.int64)


# --------------------------------------------------------------------------------------------- notes


def _class_notes(y: dict[str, np.ndarray], classes: Sequence[str]) -> list[str]:
    if not classes:
        return []
    by_word: dict[str, str] = {}
    notes = [
        f"classes {other!r} and {name!r} differ by upper case or blanks alone: are they one?"
        for name in classes
        if (other := by_word.setdefault(name.strip().casefold(), name)) != name
    ]
    held = {part: np.bincount(values, minlength=len(classes)) > 0 for part, values in y.items()}
    for part, there in held.items():
        if part == "clients":
            continue
        if not (there & held["clients"]).any():
            raise UserError(
                f"{part}: none of its classes, such as {classes[int(there.argmax())]!r}, is a client's; theirs are"
                f" {_some(np.array(classes)[held['clients']].tolist())}. Fix: the same names everywhere."
            )
        alone = [classes[c] for c in np.flatnonzero(there & ~held["clients"]).tolist()]
        if alone:
            notes.append(f"class {_some(alone)} is in the {part} set alone: no client can learn it")
        absent = [classes[c] for c in np.flatnonzero(~there & held["clients"]).tolist()]
        if absent:
            notes.append(f"class {_some(absent)} is missing in the {part} set")
    return notes


def _some(names: Sequence[str]) -> str:
    """The first ten."""
    return ", ".join(map(repr, names[:10])) + (f" and {len(names) - 10} more" if len(names) > 10 else "")


def _client_notes(names: Sequence[str], owners: np.ndarray) -> list[str]:
    counts = np.bincount(owners)
    single = [name for i, name in enumerate(names) if counts[i] == 1]
    return [f"client {', '.join(map(repr, single[:5]))} has one sample only"] if single else []


def _twins(sets: FoundSets) -> list[str]:
    """Samples that are in two sets, or on two rows of the clients."""
    found = sets.keys or {part: row_hashes(samples) for part, samples in sets.X.items()}
    parts, notes = list(found), []
    for i, first in enumerate(parts):
        for second in parts[i + 1 :]:
            both = int(np.isin(found[second], found[first]).sum())
            if both:
                notes.append(f"{both} of {len(found[second])} {second} samples are also among the {first} samples")
    own = found["clients"]
    again = len(own) - len(np.unique(own))
    if again:
        notes.append(f"{again} of {len(own)} clients' samples occur more than once")
    return notes


def missing(empty: dict[str, np.ndarray], owners: np.ndarray | None) -> list[str]:
    """Notes on clients of which every value is missing; UserError for a set of the server's. empty: of each set, which
    of its rows hold no value at all, bool [m]. Their features would be averages, whatever the samples were."""
    for part, rows in empty.items():
        if rows.all():
            raise UserError(
                f"{part}: every value of its samples is missing. Fix: samples with values, or leave it out."
            )
    whose = np.zeros(len(empty["clients"]), dtype=str) if owners is None else owners.astype(str)
    names, inverse = np.unique(whose, return_inverse=True)
    held = np.bincount(inverse.reshape(-1), weights=~empty["clients"], minlength=len(names))
    bare = names[held == 0].tolist()
    return [f"client {', '.join(map(repr, bare[:5]))}: every value of its samples is missing"] if bare else []


def with_notes(raw: RawDataset, notes: Sequence[str]) -> RawDataset:
    return replace(raw, notes=(*raw.notes, *notes))


CELLS = 2_000_000
"""Most that `with_leaks` looks at."""


def with_leaks(raw: RawDataset, columns: dict[str, np.ndarray]) -> RawDataset:
    """With notes on columns that give the target away by themselves. columns: what to call each -> its values, [M], of
    the clients' rows; nan = missing."""
    y = raw.train_labels[: len(next(iter(columns.values())))]
    most = min(len(y), 20_000, max(1000, CELLS // len(columns)))
    rows = np.linspace(0, len(y) - 1, most).astype(int)
    y, notes, words = y[rows], [], ": is it the label in other words?"
    if raw.classes and np.bincount(y).max() / len(y) > 0.95:
        return raw
    for name, column in columns.items():
        values = column[rows]
        there = ~np.isnan(values)
        if there.sum() < 20:
            continue
        if raw.classes:
            share = _share_predicted(values[there], y[there])
            if share >= LEAK:
                notes.append(f"{name} gives away the class of {100 * share:.1f} % of the rows{words}")
        elif values[there].std() and abs(np.corrcoef(values[there], y[there])[0, 1]) > 0.999:
            notes.append(f"{name} goes along with the target nearly exactly{words}")
    return with_notes(raw, notes)


def _share_predicted(values: np.ndarray, y: np.ndarray) -> float:
    """Share of rows that have the commonest class of their value; where values are many, of their 50th part, or of ten
    rows together."""
    distinct, bins = np.unique(values, return_inverse=True)
    most = min(50, len(values) // 10)
    if len(distinct) > most:
        bins = np.searchsorted(np.quantile(values, np.linspace(0, 1, most + 1)[1:-1]), values)
    table = np.zeros((int(bins.max()) + 1, int(y.max()) + 1), dtype=np.int64)
    np.add.at(table, (bins.reshape(-1), y), 1)
    return float(table.max(axis=1).sum() / len(y))
