"""Samples in memory, arrays or frames, as a data set of named clients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pipeline.data.own import given
from pipeline.data.own.assembling import with_notes
from pipeline.data.raw import RawDataset
from pipeline.data.sets.arrays import SETS, from_arrays
from pipeline.data.sets.table import from_frames
from pipeline.errors import UserError

Samples = tuple[Any, Any]
"""X and y: numpy arrays, torch tensors, or a pandas DataFrame and a Series; y may also be a list."""
TARGET = "y"


def assembled(parts: dict[str, Any], settings: dict[str, Any], groups: Mapping[str, Any] | None) -> RawDataset:
    """The samples as a data set in memory. parts: clients, and (X, y) or None of each of the server's sets. groups: of
    each client's samples."""
    clients = _named(parts["clients"])
    server = {part: pair for part, pair in parts.items() if part != "clients" and pair is not None}
    whole = {name: given.checked(name, pair) for name, pair in (clients | server).items()}
    X: dict[str, Any] = {name: pair[0] for name, pair in whole.items()}
    y = {name: pair[1] for name, pair in whole.items()}
    given.require_one_kind_of_targets(y)
    kinds = {name: hasattr(each, "columns") for name, each in X.items()}
    if len(set(kinds.values())) > 1:
        frame = next(name for name, is_frame in kinds.items() if is_frame)
        array = next(name for name, is_frame in kinds.items() if not is_frame)
        raise UserError(f"{frame} is a DataFrame and {array} an array. Fix: the same kind everywhere.")
    owners = np.repeat(np.array(list(map(str, parts["clients"])), dtype=object), [len(y[name]) for name in clients])
    targets = {"clients": np.concatenate([y[name] for name in clients])} | {part: y[part] for part in server}
    grouped = _grouped(groups, parts["clients"], y, server)
    task = settings.get("task", settings.get("data.task", "auto"))
    if next(iter(kinds.values())):
        import pandas as pd

        chosen = list(next(iter(X.values())).columns)
        notes = given.passed_over(X, chosen)
        X = given.alike(X, chosen)
        frames = {"clients": pd.concat([X[name] for name in clients], ignore_index=True)}
        frames |= {part: X[part] for part in server}
        return with_notes(from_frames(frames, targets, chosen, owners, grouped, "table", task, TARGET), notes)
    given.require_one_kind_of_arrays(X)
    found = {"X": np.concatenate([X[name] for name in clients]), "client": owners.astype(str)}
    if grouped:
        found["group"] = grouped["clients"]
    found |= {f"X{SETS[part]}": X[part] for part in server}
    found |= {f"y{SETS[part]}": values for part, values in targets.items()}
    return from_arrays(found, "arrays", task, "fit")


def _grouped(
    groups: Any, clients: Mapping[str, Samples], y: Mapping[str, np.ndarray], server: Mapping[str, Any]
) -> dict[str, np.ndarray] | None:
    """Groups of each set's samples, the server's each of its own; None if none are given."""
    if groups is None:
        return None
    if not isinstance(groups, Mapping):
        raise UserError(f"groups is {type(groups).__name__}. Fix: a dictionary, client -> one value per sample.")
    if other := [name for name in (*groups, *clients) if name not in groups or name not in clients]:
        what = "is no client" if other[0] in groups else "is missing there"
        raise UserError(f"groups: {other[0]!r} {what}. Fix: one value per sample of every client.")
    held = [
        given.groups(place, groups[name], len(y[place])) for place, name in zip(_named(clients), clients, strict=True)
    ]
    alone = {part: np.array([f"{part} {row}" for row in range(len(y[part]))]) for part in server}
    return {"clients": np.concatenate(held)} | alone


def _named(clients: Any) -> dict[str, Any]:
    """Each client's pair under what the messages call it."""
    if not isinstance(clients, Mapping):
        raise UserError(
            f"clients is {type(clients).__name__}. Fix: a dictionary, name -> (X, y), such as"
            ' {"north": (X1, y1), "south": (X2, y2)}.'
        )
    if len(clients) < 2:
        raise UserError(f"clients: at least two are needed, and there is {len(clients)}. Fix: more of them.")
    by_text: dict[str, Any] = {}
    for name in clients:
        if not str(name).strip():
            raise UserError(f"clients: {name!r} is no name. Fix: name that client.")
        if str(name) in by_text:
            raise UserError(f"clients: {by_text[str(name)]!r} and {name!r} have the same name. Fix: rename one.")
        by_text[str(name)] = name
    return {f"client {name!r}": pair for name, pair in clients.items()}
