"""A table of a user's own: numbers and categories, one column to predict, perhaps one that says whose row it is."""

from __future__ import annotations

import difflib
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.data.raw import RawDataset
from pipeline.data.sets.base import Contents, Dataset
from pipeline.errors import UserError, not_allowed


def check(data: Any) -> None:
    if not data.path:
        raise not_allowed("data.path", data.path, "the path of a table, or of a folder of tables", "name it")
    if not data.label:
        raise not_allowed("data.label", data.label, "the column to predict", "name it")
    roles = {"data.label": data.label, "data.client": data.client, "data.group": data.group}
    named = [(key, column) for key, column in roles.items() if column]
    for i, (key, column) in enumerate(named):
        for other, same in named[:i]:
            if same == column and "data.label" in (key, other):
                raise UserError(f"{key} = {column!r} is not allowed: it is {other} already. Fix: name another column.")
        if data.features != "auto" and column in data.features:
            raise UserError(f"data.features: {column!r} is {key} already. Fix: leave it out of data.features.")
    if data.features != "auto" and len(set(data.features)) < len(data.features):
        raise UserError(f"data.features = {data.features!r} names a column twice. Fix: name it once.")
    if data.features == []:
        raise not_allowed("data.features", [], "auto, or a list of columns", "set it to auto")
    if data.bad and not data.client:
        raise UserError("data.bad names clients, and no column says whose row it is. Fix: data.client.")


def read(contents: Contents, data: Any) -> RawDataset:
    from pipeline.data.own import assembling, tables

    check(data)
    place = Path(data.path).expanduser()
    files = tables.files(place)
    frames = {part: tables.read(file) for part, file in files.items()}
    clients = frames["clients"]
    for key in ("label", "client", "group"):
        if getattr(data, key):
            _require(f"data.{key}", getattr(data, key), clients, files["clients"])
    chosen = _chosen(data, clients, files["clients"])
    for part, frame in frames.items():
        for column in (data.label, *chosen):
            _require("column", column, frame, files[part])
    owners = _texts(clients[data.client]) if data.client else None
    groups = {part: _groups(data.group, frame, files[part]) for part, frame in frames.items()} if data.group else None
    targets = {part: _texts(frame[data.label]) for part, frame in frames.items()}
    raw = from_frames(frames, targets, chosen, owners, groups, data.name, data.task, f"data.label {data.label!r}")
    return assembling.with_notes(raw, tables.passed_over(place, files.values()) if place.is_dir() else [])


def from_frames(
    frames: dict[str, Any],
    targets: dict[str, np.ndarray],
    chosen: list[str],
    owners: np.ndarray | None,
    groups: dict[str, np.ndarray] | None,
    name: str,
    task: str,
    label: str,
) -> RawDataset:
    """frames: of each set that there is, emptied on the way. chosen: the columns to predict from. label: what
    complaints call the targets. owners, groups: as in `pipeline.data.own.assembling.FoundSets`."""
    from pipeline.data.own import assembling, columns, preprocessing
    from pipeline.data.own.scales import Scales

    clients = frames["clients"]
    whose, names = assembling.owned(owners, len(clients))
    scales = Scales(whose, names, len(chosen))

    def described(column: str) -> tuple[dict[str, Any] | None, str | None]:
        server = {part: _parsed(frame[column]) for part, frame in frames.items() if part != "clients"}
        sound = partial(scales.sound, f"column {column!r}", server=server)
        return columns.described(column, clients[column], whose, sound)

    found = [described(column) for column in chosen]
    record: dict[str, Any] = {"kind": "table", "columns": [column for column, _ in found if column]}
    if not record["columns"]:
        raise UserError(f"data: none of the columns {', '.join(map(repr, chosen))} says anything. Fix: other columns.")
    kept = [column["name"] for column in record["columns"]]
    codes = [_numbers(clients[column]) for column in kept]
    notes = [*(note for _, note in found if note), *scales.notes]
    empty = {part: frame[kept].isna().all(axis=1).to_numpy() for part, frame in frames.items()}
    notes += assembling.missing(empty, owners)
    X, keys = {}, {}
    for part in list(frames):
        frame = frames.pop(part)
        if part != "clients":
            notes += _strange(record, frame, part)
        try:
            X[part] = preprocessing.apply(record, frame)
        except UserError as error:
            raise UserError(f"{part}: {str(error).removeprefix('data: ')}") from None
        keys[part] = preprocessing.keys(record, frame, X[part])
    parts = assembling.FoundSets(X, targets, owners, groups, notes, keys)
    raw = assembling.assembled(name, parts, record, task, label)
    return assembling.with_leaks(
        raw, {f"column {column!r}": values for column, values in zip(kept, codes, strict=True)}
    )


def _strange(record: dict[str, Any], frame: Any, part: str) -> list[str]:
    """Notes on categories that only the server's set has."""
    from pipeline.data.own.features import unknown

    found = {column["name"]: unknown(column, frame[column["name"]]) for column in record["columns"]}
    return [
        f"column {name!r}: {', '.join(map(repr, texts[:3]))} is in the {part} set alone and counts as no category"
        for name, texts in found.items()
        if texts
    ]


def _chosen(data: Any, clients: Any, file: Path) -> list[str]:
    roles = (data.label, data.client, data.group)
    if data.features == "auto":
        return [name for name in clients.columns if name not in roles]
    for column in data.features:
        _require("data.features", column, clients, file)
    return list(data.features)


def _require(key: str, column: str, frame: Any, file: Path) -> None:
    if column not in frame.columns:
        names = [str(name) for name in frame.columns]
        near = difflib.get_close_matches(column, names, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        some = ", ".join(map(repr, names[:20])) + (" ..." if len(names) > 20 else "")
        raise UserError(f"{key} {column!r} is no column of {file}.{hint} Fix: one of {some}.")


def _texts(values: Any) -> np.ndarray:
    """Numbers as they are, dates as days, everything else as texts; None where missing."""
    from pipeline.data.own.features import is_date, is_number, numbers

    if is_number(values):
        return numbers(values) if is_date(values) else values.to_numpy()
    texts = values.astype(object)
    return texts.where(texts.notna(), None).to_numpy(dtype=object)


def _groups(column: str, frame: Any, file: Path) -> np.ndarray:
    _require("data.group", column, frame, file)
    if frame[column].isna().any():
        raise UserError(f"data.group: column {column!r} of {file} has empty cells. Fix: give every row its group.")
    return _texts(frame[column])


def _parsed(values: Any) -> np.ndarray:
    """Numbers; nan for whatever is none."""
    from pipeline.data.own.features import is_date, parsed

    return np.full(len(values), np.nan) if is_date(values) else parsed(values, date=False)[0]


def _numbers(values: Any) -> np.ndarray:
    """Categories as codes; nan = missing."""
    from pipeline.data.own.features import is_number, numbers

    if is_number(values):
        return numbers(values).astype(np.float32)
    codes = values.astype("category").cat.codes.to_numpy().astype(np.float32)
    return np.where(codes < 0, np.nan, codes)


TABLE = Dataset(
    name="table",
    summary="your own csv, tsv or parquet",
    read=read,
    check=check,
    reads=(
        *("path", "label", "client", "features", "task", "group", "bad"),
        *("validation_share", "selection_share", "test_share"),
    ),
)
