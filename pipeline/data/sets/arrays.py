"""Arrays of a user's own, in an .npz file: X and y, perhaps client and group, and X and y of the server's sets."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.data.raw import UNREADABLE, RawDataset
from pipeline.data.sets.base import Contents, Dataset
from pipeline.errors import UserError, not_allowed

SETS = {"clients": "", "validation": "_validation", "selection": "_selection", "test": "_test"}
KNOWN = [f"{letter}{suffix}" for suffix in SETS.values() for letter in "Xy"] + ["client", "group"]


def check(data: Any) -> None:
    if not data.path:
        raise not_allowed("data.path", data.path, "the path of an .npz file", "name it")


def read(contents: Contents, data: Any) -> RawDataset:
    check(data)
    file = Path(data.path).expanduser()
    return from_arrays(_loaded(file), data.name, data.task, str(file))


def from_arrays(found: dict[str, np.ndarray], name: str, task: str, place: str) -> RawDataset:
    """found: arrays by the names KNOWN. place: where they come from, for the messages."""
    from pipeline.data.own import assembling, preprocessing

    X = {part: found[f"X{suffix}"] for part, suffix in SETS.items() if f"X{suffix}" in found}
    y = {part: found[f"y{suffix}"] for part, suffix in SETS.items() if f"X{suffix}" in found}
    for part, suffix in SETS.items():
        if part in X:
            _require_fit(X[part], y[part], X["clients"], suffix)
    extra = {name: found.get(name) for name in ("client", "group")}
    for each, values in extra.items():
        if values is not None and values.shape != y["clients"].shape:
            raise UserError(f"{place}: {each} has the shape {values.shape}. Fix: one per sample, {y['clients'].shape}.")
    owners = None if extra["client"] is None else _texts(extra["client"])
    record, notes = _record(X, *assembling.owned(owners, len(X["clients"])))
    if record["unit"] == "vectors":
        notes += assembling.missing({part: np.isnan(samples).all(axis=1) for part, samples in X.items()}, owners)
    groups = None
    if extra["group"] is not None:
        own = {part: np.array([f"{part} {i}" for i in range(len(y[part]))]) for part in X if part != "clients"}
        groups = {"clients": extra["group"].astype(str), **own}
    features = {part: preprocessing.apply(record, samples) for part, samples in X.items()}
    targets = {part: _texts(values) for part, values in y.items()}
    keys = {part: preprocessing.keys(record, X[part], features[part]) for part in X}
    parts = assembling.FoundSets(features, targets, owners, groups, notes, keys)
    raw = assembling.assembled(name, parts, record, task, "y")
    if record["unit"] != "vectors":
        return raw
    return assembling.with_leaks(raw, {f"feature {i} of X": column for i, column in enumerate(X["clients"].T)})


def _loaded(file: Path) -> dict[str, np.ndarray]:
    if file.exists() and not file.is_file():
        raise UserError(f"data.path: {file} is no file. Fix: the path of an .npz file.")
    write = "numpy.savez(file, X=X, y=y, client=client)"
    try:
        if file.exists() and not zipfile.is_zipfile(file):
            raise UserError(f"data.path: {file} is no .npz file, which holds several arrays. Fix: {write}.")
        with np.load(file, allow_pickle=False) as opened:
            found = {name: opened[name] for name in opened.files}
    except FileNotFoundError:
        raise UserError(f"data.path: {file} does not exist. Fix: the path of an .npz file.") from None
    except UNREADABLE as error:
        fix = "store numbers and texts, no Python objects" if "pickle" in str(error) else write
        raise UserError(f"data.path: {file} cannot be read ({' '.join(str(error).split())}). Fix: {fix}.") from None
    strange = [name for name in found if name not in KNOWN]
    if strange:
        raise UserError(f"{file}: array {strange[0]!r} has no meaning here. Fix: the names are {', '.join(KNOWN)}.")
    for suffix in SETS.values():
        pair = {f"X{suffix}", f"y{suffix}"}
        if len(pair & found.keys()) == 1 or (not suffix and not pair & found.keys()):
            absent = sorted(pair - found.keys())[0]
            raise UserError(f"{file}: there is no array {absent!r}. Fix: store it.")
    return found


def _require_fit(X: np.ndarray, y: np.ndarray, clients: np.ndarray, suffix: str) -> None:
    from pipeline.data.own.columns import require_finite

    if X.dtype.kind not in "biuf":
        raise not_allowed(f"dtype of X{suffix}", str(X.dtype), "numbers", "encode categories, or take data.name: table")
    if X.ndim not in (2, 3, 4):
        allowed = "[m, f] for vectors, [m, H, W] or [m, C, H, W] for images"
        raise not_allowed(f"shape of X{suffix}", X.shape, allowed, "reshape it")
    if X.shape[1:] != clients.shape[1:]:
        allowed = f"[m, {', '.join(map(str, clients.shape[1:]))}], as X"
        raise not_allowed(f"shape of X{suffix}", X.shape, allowed, "reshape it")
    if y.shape != X.shape[:1]:
        raise not_allowed(f"shape of y{suffix}", y.shape, f"[{len(X)}], one target per sample", "reshape it")
    if not len(X):
        raise UserError(f"X{suffix} holds no samples. Fix: store some, or leave it out.")
    if X.ndim > 2 and (X.dtype.kind == "f") != (clients.dtype.kind == "f"):
        raise not_allowed(
            f"dtype of X{suffix}", str(X.dtype), f"{clients.dtype}, as X", "one kind of pixels everywhere"
        )
    require_finite(f"X{suffix}", X, "nan for a missing number")


def _texts(values: np.ndarray) -> np.ndarray:
    return values.astype(object) if values.dtype.kind in "US" else values


def _record(X: dict[str, np.ndarray], owners: np.ndarray, names: list[str]) -> tuple[dict[str, Any], list[str]]:
    """How the arrays become features: pixels as they are, other images by one scale, vectors feature by feature."""
    from pipeline.data.own import columns
    from pipeline.data.own.features import channels_first
    from pipeline.data.own.scales import Scales

    clients = X["clients"]
    record: dict[str, Any] = {"kind": "arrays", "shape": list(clients.shape[1:]), "dtype": str(clients.dtype)}
    if clients.ndim > 2:
        sides = channels_first(clients[:1]).shape[2:]
        if sides[0] != sides[1]:
            allowed = "of square images: [m, H, W], [m, H, W, C] with 1 or 3 channels C, or [m, C, H, W]"
            raise not_allowed("shape of X", clients.shape, allowed, "pad, crop or transpose them")
        if clients.dtype == np.uint8:
            return record | {"unit": "pixels"}, []
        if np.isnan(clients).any():
            raise UserError("X: images have missing pixels (nan). Fix: fill them in.")
        brightness = {part: images.reshape(len(images), -1).mean(1).astype(np.float64) for part, images in X.items()}
        own, scales = brightness.pop("clients"), Scales(owners, names, 1)
        sound = scales.sound("the mean pixel of X", own, brightness)
        mean, deviation = columns.standard(own[sound], owners[sound])
        spread = float(np.abs((clients if sound.all() else clients[sound]) - mean).mean()) or deviation or 1.0
        return record | {"unit": "images", "mean": [mean], "deviation": [spread]}, scales.notes
    numbers = clients.astype(np.float64)
    scales, found = Scales(owners, names, numbers.shape[1]), []
    for i, column in enumerate(numbers.T):
        server = {part: samples[:, i].astype(np.float64) for part, samples in X.items() if part != "clients"}
        sound = scales.sound(f"feature {i} of X", column, server)
        found.append(columns.standard(column[sound], owners[sound]))
    missing = np.isnan(numbers).any(axis=0)
    means, deviations = ([pair[place] for pair in found] for place in (0, 1))
    constant = [str(i) for i, deviation in enumerate(deviations) if not deviation]
    if len(constant) == len(found) and not missing.any():
        raise UserError("X: every feature is constant. Fix: other features.")
    notes = [f"features {', '.join(constant[:10])} of X are constant and left out"] if constant else []
    vectors = {"unit": "vectors", "mean": means, "deviation": deviations, "missing": missing.tolist()}
    return record | vectors, [*notes, *scales.notes]


ARRAYS = Dataset(
    name="arrays",
    summary="your own .npz file",
    read=read,
    check=check,
    reads=("path", "task", "bad", "validation_share", "selection_share", "test_share"),
)
