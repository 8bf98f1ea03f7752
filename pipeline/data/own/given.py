"""Samples as they are given in Python, one set at a time: checked, and brought into one form.

Every complaint names the set and the place, as Python counts it: `client 'Lyon': X[3, 2] is inf`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from pipeline.data.own import features
from pipeline.data.own.columns import require_finite
from pipeline.data.own.targets import class_name
from pipeline.errors import UserError

NUMBERS = ("integer", "floating", "mixed-integer-float", "decimal", "boolean")
"""Kinds of objects, as pandas infers them, that are numbers."""
DATES = ("date", "datetime", "datetime64")


def plain(part: Any) -> Any:
    """A DataFrame as it is, everything else as an array on the host; UserError for rows of several lengths."""
    if isinstance(part, torch.Tensor):
        held = part.detach().cpu()
        return (held.float() if held.dtype == torch.bfloat16 else held).numpy()
    if isinstance(part, np.ma.MaskedArray):
        return _unmasked(part)
    if hasattr(part, "to_pandas"):
        part = part.to_pandas()
    if hasattr(part, "columns"):
        return part
    if hasattr(part, "to_numpy"):
        return part.to_numpy()
    try:
        return np.asarray(part)
    except ValueError:
        raise UserError("X or y: its rows have several lengths. Fix: the same number of features everywhere.") from None


def _unmasked(part: np.ma.MaskedArray) -> np.ndarray:
    """Masked cells as missing ones: nan in numbers, None elsewhere."""
    if not np.ma.getmaskarray(part).any():
        return part.data
    kind = part.dtype if part.dtype.kind == "f" else np.float64 if part.dtype.kind in "biu" else object
    held: np.ndarray = part.data.astype(kind)
    held[np.ma.getmaskarray(part)] = None if kind is object else np.nan
    return held


def asked(samples: Any, *, table: bool) -> Any:
    """Samples that are to be predicted, plain; UserError for what holds none. table: the clients' are frames."""
    kind, fix = type(samples).__name__, "a DataFrame of samples" if table else "an array of samples"
    if isinstance(samples, Mapping):
        raise UserError(f"X is {kind}. Fix: {'pandas.DataFrame(X), or DataFrame([X]) for one row' if table else fix}.")
    if table and hasattr(samples, "to_frame") and getattr(samples, "ndim", 0) == 1:
        raise UserError(f"X is {kind}. Fix: X.to_frame().T for one row, X.to_frame() for one column.")
    found = plain(samples)
    if np.ndim(found) == 0:
        raise UserError(f"X is {kind}. Fix: {fix}.")
    return found


def checked(name: str, pair: Any) -> tuple[Any, np.ndarray]:
    """X as a DataFrame or an array, y as an array of as many targets. name: of the set, for the messages."""
    if isinstance(pair, str | Mapping) or not isinstance(pair, Sequence) or len(pair) != 2:
        raise UserError(f"{name} is {type(pair).__name__}. Fix: a pair (X, y).")
    try:
        X = plain(pair[0])
    except UserError as error:
        raise UserError(f"{name}: {error}") from None
    if np.ndim(X) == 0:
        raise UserError(
            f"{name}: X is {type(pair[0]).__name__}. Fix: an array (of a sparse one .toarray()) or a DataFrame."
        )
    if not len(X):
        fix = "leave the client out" if name.startswith("client") else "None, which holds samples out, or some samples"
        raise UserError(f"{name} holds no samples. Fix: {fix}.")
    if np.ndim(X) == 1:
        X = X[:, None]  # samples of one feature
    y = targets(name, pair[1])
    if len(X) != len(y):
        raise UserError(f"{name}: {len(X)} samples and targets of shape {y.shape}. Fix: one target per sample.")
    return (_frame if hasattr(X, "columns") else _array)(name, X), y


# ------------------------------------------------------------------------------------------ targets


def targets(name: str, given: Any) -> np.ndarray:
    """[M] booleans, numbers, or texts as objects; none is missing."""
    import pandas as pd

    if given is None:
        raise UserError(f"{name}: y is None. Fix: a target for each sample.")
    if isinstance(given, list | tuple) and any(isinstance(value, str) for value in given):
        given = np.array([*given, None], dtype=object)[:-1]  # as they are: numpy would make texts of numbers
    y = np.asarray(plain(given))
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim != 1:
        fix = "y.argmax(1), if its columns are classes" if y.ndim == 2 else "one target per sample"
        raise UserError(f"{name}: targets of shape {y.shape}. Fix: {fix}.")
    if y.dtype.kind not in "biufOUST":
        raise UserError(f"{name}: y holds {y.dtype}. Fix: classes or numbers.")
    missing = pd.isna(y)
    if y.dtype.kind not in "biuf":
        y = y.astype(str).astype(object) if y.dtype.kind in "UST" else y
        missing = missing | np.array([isinstance(value, str) and not value.strip() for value in y])
    if missing.any():
        raise UserError(
            f"{name}: y[{int(missing.argmax())}] is missing ({missing.sum()} of {len(y)} are). Fix: remove those"
            " samples."
        )
    if y.dtype.kind == "O":
        _require_no_namesakes(name, y)
        kind = pd.api.types.infer_dtype(y)
        y = y.astype(bool if kind == "boolean" else np.float64) if kind in NUMBERS else y.astype(str).astype(object)
    require_finite(f"{name}: y", y, "remove that sample")
    return y


def _require_no_namesakes(name: str, y: np.ndarray) -> None:
    """UserError for a text that reads as a number, or true and false, that is there too."""
    others = {class_name(value): value for value in y if not isinstance(value, str)}
    for row, value in enumerate(y):
        if isinstance(value, str) and value in others:
            raise UserError(
                f"{name}: y[{row}] is the text {value!r}, and {others[value]!r} is there too. Fix: one kind of targets."
            )


def require_one_kind_of_targets(y: Mapping[str, np.ndarray]) -> None:
    """UserError if a set's targets are texts and another's numbers."""
    import pandas as pd

    texts = next((name for name, values in y.items() if values.dtype.kind == "O"), None)
    numbers = next((name for name, values in y.items() if values.dtype.kind != "O"), None)
    if texts is None or numbers is None:
        return
    strange = pd.to_numeric(pd.Series(y[texts]), errors="coerce").isna()
    first = int(strange.argmax())  # 0 if all are numbers, written as texts
    raise UserError(
        f"{texts}: y[{first}] is the text {y[texts][first]!r}, and y of {numbers} holds numbers, such as"
        f" {y[numbers][0]}. Fix: the same kind everywhere."
    )


def groups(name: str, given: Any, count: int) -> np.ndarray:
    """Whose each sample is, texts [count]; none is missing."""
    import pandas as pd

    found = np.asarray(plain(given))
    if found.shape != (count,):
        raise UserError(f"groups: {name} has {count} samples and groups of shape {found.shape}. Fix: one for each.")
    if (missing := pd.isna(found)).any():
        raise UserError(f"groups: {name} has none for sample {int(missing.argmax())}. Fix: give it one.")
    return np.array([class_name(value) for value in found])


# ------------------------------------------------------------------------------------------- arrays


def _array(name: str, X: np.ndarray) -> np.ndarray:
    try:
        X = features.as_numbers(X)
    except ValueError as error:
        raise UserError(f"{name}: {error}") from None
    require_finite(f"{name}: X", X, "nan for a missing number, or remove that sample")
    return X


def require_one_kind_of_arrays(X: Mapping[str, np.ndarray]) -> None:
    """UserError unless all samples have one shape and, if they are images, one kind of pixels."""
    (first, one), *others = X.items()
    for name, each in others:
        if each.shape[1:] != one.shape[1:]:
            raise UserError(
                f"{name}: samples of shape {each.shape[1:]}, and {first} of {one.shape[1:]}. Fix: the same everywhere."
            )
        if one.ndim > 2 and (each.dtype.kind == "f") != (one.dtype.kind == "f"):
            raise UserError(
                f"{name}: the pixels are {each.dtype}, and {one.dtype} of {first}. Fix: one kind, on one scale,"
                " everywhere."
            )


# ------------------------------------------------------------------------------------------- frames


def _frame(name: str, X: Any) -> Any:
    """Numbers and dates that are held as objects become such."""
    import pandas as pd

    if X.columns.nlevels > 1:
        raise UserError(
            f"{name}: the columns of X have {X.columns.nlevels} levels. Fix: one name for each column,"
            " X.columns = ['_'.join(map(str, name)) for name in X.columns]."
        )
    if X.columns.has_duplicates:
        twice = X.columns[X.columns.duplicated()][0]
        raise UserError(f"{name}: column {twice!r} of X is there twice. Fix: rename or drop one.")
    found = {}
    for column, values in X.items():
        if values.dtype == object:
            kind = pd.api.types.infer_dtype(values, skipna=True)
            if kind in NUMBERS:
                values = pd.Series(values.where(values.notna(), np.nan).astype(np.float64))
            elif kind in DATES:
                values = pd.to_datetime(values, errors="coerce")
        if features.is_number(values) and not features.is_date(values):
            fix = "leave the cell empty, or remove that row"
            require_finite(f"{name}: X[{column!r}]", features.numbers(values), fix)
        found[column] = values.reset_index(drop=True)
    return pd.DataFrame(found, copy=False)


def passed_over(frames: Mapping[str, Any], columns: Sequence[Any]) -> list[str]:
    """A note on each column that the first client has not."""
    extra: dict[Any, list[str]] = {}
    for name, X in frames.items():
        for column in X.columns:
            if column not in columns:
                extra.setdefault(column, []).append(name)
    first = next(iter(frames))
    return [
        f"column {column!r} is left out: {names[0]}{f' and {len(names) - 1} more' if names[1:] else ''} has it, {first}"
        " has not"
        for column, names in extra.items()
    ]


def alike(frames: Mapping[str, Any], columns: Sequence[Any]) -> dict[str, Any]:
    """Frames of these columns only, each of one kind everywhere: texts of numbers become numbers where another set has
    numbers. UserError for a text that is none."""
    import pandas as pd

    for name, X in frames.items():
        if absent := [column for column in columns if column not in X.columns]:
            raise UserError(f"{name}: X has no column {absent[0]!r}. Fix: the same columns everywhere.")
    found: dict[str, dict[Any, Any]] = {name: {} for name in frames}
    for column in columns:
        for name, values in _alike({name: X[column] for name, X in frames.items()}, column).items():
            found[name][column] = values
    return {name: pd.DataFrame(held, copy=False) for name, held in found.items()}


def _alike(parts: dict[str, Any], column: Any) -> dict[str, Any]:
    import pandas as pd

    kinds = {name: _kind(values) for name, values in parts.items()}
    first = next((name for name, kind in kinds.items() if kind in ("number", "date")), None)
    if first is None or len({values.dtype for values in parts.values()}) == 1:
        return parts
    date = kinds[first] == "date"
    what = "dates" if date else "numbers"
    found = {}
    for name, values in parts.items():
        if kinds[name] in ("number", "date") and kinds[name] != kinds[first]:
            raise UserError(
                f"{name}: column {column!r} holds {kinds[name]}s, and {what} in {first}. Fix: one kind everywhere."
            )
        numbers, strange = features.parsed(values, date=date)
        if strange.any():
            row = int(strange.argmax())
            raise UserError(
                f"{name}: column {column!r} holds {values.iloc[row]!r} in row {row} (from 0), and {what} in {first}."
                " Fix: correct it, or leave the cell empty."
            )
        require_finite(f"{name}: X[{column!r}]", numbers, "leave the cell empty, or remove that row")
        days = np.round(numbers * features.DAY)
        found[name] = pd.Series(pd.to_datetime(days, unit="us") if date else numbers)
    return found


def _kind(values: Any) -> str:
    """number, date, text or empty."""
    if values.isna().all():
        return "empty"
    return "date" if features.is_date(values) else "number" if features.is_number(values) else "text"
