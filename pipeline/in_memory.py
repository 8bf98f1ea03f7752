"""Samples in memory, arrays or frames, as a data set of named clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from pipeline.data.raw import RawDataset
from pipeline.data.sets.arrays import from_arrays
from pipeline.data.sets.table import from_frames
from pipeline.errors import UserError

Samples = tuple[Any, Any]
"""X and y: numpy arrays, torch tensors, or a pandas DataFrame and a Series; y may also be a list."""
TARGET = "y"


def assembled(parts: dict[str, Any], settings: dict[str, Any]) -> RawDataset:
    """The samples as a data set in memory."""
    clients = parts.pop("clients")
    if not isinstance(clients, Mapping) or len(clients) < 2:
        raise UserError("clients: at least two are needed. Fix: a dictionary, name -> (X, y).")
    pairs = {f"client {name!r}": _pair(f"client {name!r}", pair) for name, pair in clients.items()}
    server = {part: _pair(part, pair) for part, pair in parts.items() if pair is not None}
    sizes = [len(y) for _, y in pairs.values()]
    owners = np.repeat(np.array([str(name) for name in clients], dtype=object), sizes)
    if len(set(map(str, clients))) < len(clients):
        raise UserError("clients: two have the same name. Fix: rename one.")
    kinds = {name: hasattr(X, "columns") for name, (X, _) in (pairs | server).items()}
    if len(set(kinds.values())) > 1:
        frame = next(name for name, is_frame in kinds.items() if is_frame)
        array = next(name for name, is_frame in kinds.items() if not is_frame)
        raise UserError(f"{frame} is a DataFrame and {array} an array. Fix: the same kind everywhere.")
    task = settings.get("task", settings.get("data.task", "auto"))
    if next(iter(kinds.values())):
        import pandas as pd

        frames = {"clients": [X.assign(**{TARGET: np.asarray(y)}) for X, y in pairs.values()]}
        frames |= {part: [X.assign(**{TARGET: np.asarray(y)})] for part, (X, y) in server.items()}
        chosen = list(frames["clients"][0].columns.drop(TARGET))
        for name, (X, _) in (pairs | server).items():
            if TARGET in X.columns:
                raise UserError(f"{name}: a column of X is called {TARGET!r}. Fix: rename it.")
            if absent := [column for column in chosen if column not in X.columns]:
                raise UserError(f"{name}: X has no column {absent[0]!r}. Fix: the same columns everywhere.")
        whole = {part: pd.concat(each, ignore_index=True) for part, each in frames.items()}
        return from_frames(whole, chosen, TARGET, owners, None, "table", task)
    first = next(iter(pairs.values()))[0].shape[1:]
    for name, (X, _) in (pairs | server).items():
        if X.shape[1:] != first:
            raise UserError(f"{name}: samples of shape {X.shape[1:]}, and others of {first}. Fix: the same everywhere.")
    found = {"X": np.concatenate([X for X, _ in pairs.values()]), "client": owners.astype(str)}
    found["y"] = np.concatenate([np.asarray(y) for _, y in pairs.values()])
    for part, (X, y) in server.items():
        found |= {f"X_{part}": X, f"y_{part}": np.asarray(y)}
    return from_arrays(found, "arrays", task, "fit")


def _pair(name: str, pair: Any) -> Samples:
    """X as a DataFrame or an array, y as an array of as many targets."""
    if not isinstance(pair, Sequence) or len(pair) != 2:
        raise UserError(f"{name} is {type(pair).__name__}. Fix: a pair (X, y).")
    X, y = (plain(part) for part in pair)
    y = np.asarray(y)
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if np.ndim(X) == 0 or y.ndim == 0:
        raise UserError(f"{name}: X or y is a single value. Fix: a pair (X, y), X [m, features] and y [m].")
    if not len(y) or len(X) != len(y) or y.ndim != 1:
        raise UserError(f"{name}: {len(X)} samples and targets of shape {y.shape}. Fix: one target per sample.")
    return X, y


def plain(part: Any) -> Any:
    """A DataFrame as it is, everything else as an array on the host."""
    if isinstance(part, torch.Tensor):
        return part.detach().cpu().numpy()
    if hasattr(part, "columns"):
        return part
    return part.to_numpy() if hasattr(part, "to_numpy") else np.asarray(part)
