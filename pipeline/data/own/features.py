"""Raw rows and arrays to features, by a record that is plain JSON (`pipeline.data.own.preprocessing` lists its keys).

A served model carries a copy of this file and runs it where none of our code is installed: it imports nothing of ours,
and refuses samples by ValueError, in one line.
"""

from __future__ import annotations

from typing import Any

import numpy as np

LIMIT = 10.0
"""Largest input, in standard deviations, where a record names no other `limit`."""
MISSING = ["", "NA", "N/A", "NaN", "nan", "n/a", "null", "NULL", "None", "?"]
"""What stands for a missing value in a text."""
DAY = 86_400e6
"""Microseconds."""


# ------------------------------------------------------------------------------------------- tables


def of_table(record: dict[str, Any], frame: Any, *, known: bool) -> np.ndarray:
    """float32 [M, features] of a pandas DataFrame with the record's columns, in any order. known: refuse a category
    that no client has; else it counts as none."""
    wanted = [column["name"] for column in record["columns"]]
    if not hasattr(frame, "columns"):
        raise ValueError(
            f"data: a table is wanted, and this is {type(frame).__name__}. Fix: pandas.DataFrame(X, columns=[...]) with"
            f" {', '.join(map(repr, wanted[:10]))}{' ...' if len(wanted) > 10 else ''}."
        )
    absent = [name for name in wanted if name not in frame.columns]
    if absent:
        raise ValueError(f"data: there is no column {absent[0]!r}. Fix: add it; its cells may be empty.")
    if twice := [name for name in wanted if list(frame.columns).count(name) > 1]:
        raise ValueError(f"data: column {twice[0]!r} is there twice. Fix: rename or drop one.")
    widths = [len(names(column)) for column in record["columns"]]
    out = np.zeros((len(frame), sum(widths)), dtype=np.float32)
    start = 0
    for column, width in zip(record["columns"], widths, strict=True):
        values = frame[column["name"]]
        if known and (strange := unknown(column, values)):
            some = ", ".join(map(repr, column["values"][:10])) + (" ..." if len(column["values"]) > 10 else "")
            raise ValueError(
                f"data: column {column['name']!r} holds {strange[0]!r}, which no client has."
                f" Fix: one of {some}; or leave the cell empty."
            )
        _encode(column, values, out[:, start : start + width])
        start += width
    return out


def names(column: dict[str, Any]) -> list[str]:
    """Of the features that a column becomes."""
    name = column["name"]
    own = [name] if column["kind"] == "number" else [f"{name} = {value}" for value in column["values"]]
    return own + ([f"{name} is missing"] if column["missing"] else [])


def unknown(column: dict[str, Any], values: Any) -> list[str]:
    """Texts in a pandas Series that are none of the column's categories; none where rare ones have no feature."""
    if column["kind"] == "number" or column.get("others"):
        return []
    found = texts(values)
    strange = found[found.notna() & ~found.isin([*column["values"], *MISSING])]
    return sorted(strange.unique().tolist())


def _encode(column: dict[str, Any], values: Any, out: np.ndarray) -> None:
    """Fill `out`, [M, len(names)], from a pandas Series."""
    if column["kind"] == "number":
        found = _parsed(column, values)
        missing = np.isnan(found)
        with np.errstate(over="ignore"):
            scaled = (found - column["mean"]) / (column["deviation"] or 1.0)
        limit = column.get("limit", LIMIT)
        out[:, 0] = np.nan_to_num(np.clip(scaled, -limit, limit), nan=0.0)
    else:
        import pandas as pd

        found = texts(values)
        codes = pd.Index(column["values"]).get_indexer(found)
        missing = (found.isna() | (found.isin(MISSING) & (codes < 0))).to_numpy()
        rows = np.flatnonzero(codes >= 0)
        out[rows, codes[rows]] = 1.0
    if column["missing"]:
        out[:, -1] = missing


def is_number(values: Any) -> bool:
    """Whether a pandas Series holds numbers, true and false, or dates."""
    from pandas.api.types import is_bool_dtype, is_numeric_dtype

    return bool(is_numeric_dtype(values.dtype) or is_bool_dtype(values.dtype) or is_date(values))


def is_date(values: Any) -> bool:
    from pandas.api.types import is_datetime64_any_dtype

    return bool(is_datetime64_any_dtype(values.dtype))


def numbers(values: Any) -> np.ndarray:
    """float64 [M] of a pandas Series that `is_number`, nan where missing; dates in days, with fractions."""
    if not is_date(values):
        return values.to_numpy(dtype=np.float64, na_value=np.nan)
    plain = values.dt.tz_localize(None) if values.dt.tz is not None else values
    days = plain.to_numpy().astype("datetime64[us]").astype(np.int64) / DAY
    return np.where(values.isna(), np.nan, days)


def texts(values: Any) -> Any:
    """A pandas Series of texts, None where missing; 1.0 is "1"."""
    missing = values.isna()
    if is_number(values) and values.dtype.kind == "f" and bool((values[~missing] % 1 == 0).all()):
        values = values.astype("Int64")
    return values.astype(str).astype(object).where(~missing, None)


def parsed(values: Any, *, date: bool) -> tuple[np.ndarray, np.ndarray]:
    """Numbers, float64 [M], of a pandas Series of numbers or texts (dates in days), nan where missing or no number; and
    where it holds a text that is none, bool [M]."""
    import pandas as pd

    if is_number(values) and is_date(values) == date:
        return numbers(values), np.zeros(len(values), dtype=bool)
    held = texts(values)
    held = held.where(~held.isin(MISSING), None)
    if date:
        found = numbers(pd.to_datetime(held, errors="coerce", format="ISO8601"))
    else:
        plain = held.replace({"True": "1", "False": "0"})
        found = pd.to_numeric(plain, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    return found, held.notna().to_numpy() & np.isnan(found)


def _parsed(column: dict[str, Any], values: Any) -> np.ndarray:
    """Numbers; ValueError for texts that are none."""
    found, strange = parsed(values, date=bool(column.get("date")))
    if strange.any():
        what, form = ("dates", ", such as 2026-01-31") if column.get("date") else ("numbers", "")
        raise ValueError(
            f"data: column {column['name']!r} holds texts, such as {str(values.iloc[int(strange.argmax())])!r}, where"
            f" the clients' rows hold {what}. Fix: correct it{form}."
        )
    if np.isinf(found).any():
        raise ValueError(f"data: column {column['name']!r} holds infinite numbers. Fix: leave those cells empty.")
    return found


# ------------------------------------------------------------------------------------------- arrays


def of_arrays(record: dict[str, Any], samples: Any) -> np.ndarray:
    """[M, C, H, W] of an array [M, ...]: uint8 of pixels, else float32; vectors have one pixel."""
    X = np.asarray(samples)
    if X.ndim == 1 and record["shape"] == [1]:
        X = X[:, None]
    if not X.ndim or list(X.shape[1:]) != record["shape"]:
        wanted = ", ".join(map(str, ["m", *record["shape"]]))
        fix = "X[None] for a single sample" if list(X.shape) == record["shape"] else "reshape it"
        raise ValueError(f"X: its shape is {list(X.shape)}, and [{wanted}] is wanted. Fix: {fix}.")
    X = as_numbers(X)
    if record["unit"] == "pixels":
        if X.dtype.kind == "f" or (X.size and (X.min() < 0 or X.max() > 255)):
            raise ValueError(
                f"X: it holds {X.dtype}{'' if X.dtype.kind == 'f' else ' beyond 0..255'}, and the clients' images are"
                " uint8, 0 to 255. Fix: X.astype('uint8'), of floats in 0..1 (255 * X).round().astype('uint8')."
            )
        return channels_first(X.astype(np.uint8))
    if record["unit"] == "images" and X.dtype == np.uint8 and np.dtype(record["dtype"]).kind == "f":
        beyond_one = record["mean"][0] + record["deviation"][0] > 1.0
        fix = "X.astype('float32'), which stays within 0..255" if beyond_one else "X / 255, which lies in 0..1"
        raise ValueError(
            f"X: it holds uint8, and the clients' images are {record['dtype']}. Fix: convert it as theirs were;"
            f" here that seems to be {fix}."
        )
    X = X.astype(np.float64)
    if np.isinf(X).any():
        raise ValueError("X holds infinite numbers. Fix: nan stands for a missing number.")
    if record["unit"] == "images":
        if np.isnan(X).any():
            raise ValueError("X: images have missing pixels (nan). Fix: fill them in.")
        scaled = (channels_first(X) - record["mean"][0]) / record["deviation"][0]
        return np.clip(scaled, -LIMIT, LIMIT).astype(np.float32)
    mean, deviation, said = (np.array(record[name]) for name in ("mean", "deviation", "missing"))
    missing = np.isnan(X)
    limit = np.array(record.get("limit", LIMIT))
    with np.errstate(over="ignore"):
        scaled = np.clip((X - mean) / np.where(deviation > 0, deviation, 1.0), -limit, limit)
    kept = deviation > 0
    parts = [np.nan_to_num(scaled[:, kept], nan=0.0), missing[:, said.astype(bool)]]
    return np.concatenate(parts, axis=1).astype(np.float32)[:, :, None, None]


def as_numbers(X: np.ndarray) -> np.ndarray:
    """Numbers that are held as objects or texts as floats; ValueError names the first cell that is none."""
    if X.dtype.kind in "biuf":
        return X
    if X.dtype.kind not in "OUS":
        raise ValueError(f"X: it holds {X.dtype}. Fix: numbers only.")
    import pandas as pd

    cells = pd.Series(X.astype(object).reshape(-1))
    found, strange = parsed(cells, date=False)
    if strange.any():
        first = int(strange.argmax())
        place = ", ".join(map(str, np.unravel_index(first, X.shape)))
        raise ValueError(f"X[{place}] is {cells[first]!r}, no number. Fix: correct it, or a DataFrame for categories.")
    return found.reshape(X.shape)


def channels_first(X: np.ndarray) -> np.ndarray:
    """[M, H, W], [M, H, W, C] or [M, C, H, W] as [M, C, H, W]."""
    if X.ndim == 3:
        return X[:, None]
    return np.moveaxis(X, 3, 1) if X.shape[3] in (1, 3) and X.shape[1] not in (1, 3) else X
