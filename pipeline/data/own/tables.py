"""Tables on disk: csv, tsv or parquet, one file, or a folder with `clients.*` and perhaps `validation.*`, `selection.*`
and `test.*`."""

from __future__ import annotations

import codecs
import csv
import io
import itertools
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

from pipeline.data.own.features import MISSING
from pipeline.errors import UserError

SUFFIXES = (".csv", ".tsv", ".parquet")
START = 65_536
"""Bytes that are looked at first."""
SETS = ("clients", "validation", "selection", "test")


def files(path: Path) -> dict[str, Path]:
    """The file of each set that there is; UserError if there is none of the clients."""
    if path.is_file():
        if path.suffix.lower() not in SUFFIXES:
            raise UserError(f"data.path: {path} is no {', '.join(SUFFIXES)} file. Fix: save the table as one of them.")
        return {"clients": path}
    if not path.is_dir():
        raise UserError(
            f"data.path: {path} is neither a file nor a folder. Fix: the path of a table, or of a folder of tables."
        )
    found: dict[str, Path] = {}
    for file in sorted(path.iterdir()):
        name = file.stem.lower()
        if file.suffix.lower() in SUFFIXES and name in SETS and file.is_file():
            if name in found:
                raise UserError(f"data.path: both {found[name].name} and {file.name} are in {path}. Fix: keep one.")
            found[name] = file
    if "clients" not in found:
        there = ", ".join(sorted(file.name for file in path.iterdir())[:5]) or "nothing"
        raise UserError(
            f"data.path: {path} holds no clients.csv, clients.tsv or clients.parquet ({there} is there)."
            " Fix: rename the table, or give its own path."
        )
    return {name: found[name] for name in SETS if name in found}


def passed_over(path: Path, used: Collection[Path]) -> list[str]:
    """A note on tables of a folder that are none of the sets."""
    others = sorted(file.name for file in path.iterdir() if file.suffix.lower() in SUFFIXES and file not in used)
    sets = ", ".join(SETS)
    return [f"{', '.join(others[:5])} in {path} is not read: the sets are called {sets}"] if others else []


def read(file: Path) -> Any:
    """The table as a pandas DataFrame; texts as categories, missing values as such. UserError if it is none."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not file.stat().st_size:
        raise UserError(f"{file} is empty. Fix: write the table to it.")
    if file.suffix.lower() != ".parquet" and not _is_text(file):
        raise UserError(f"{file} cannot be read (it is no UTF-8 text). Fix: save it as UTF-8, or as what it is named.")
    try:
        table = pq.read_table(file) if file.suffix.lower() == ".parquet" else _text(file)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
        reason = "".join(letter for letter in " ".join(str(error).split()) if letter.isprintable())
        fix = "save it as UTF-8" if "UTF8" in reason else "correct the file"
        raise UserError(f"{file} cannot be read ({reason[:200]}). Fix: {fix}.") from None
    binary = file.suffix.lower() != ".parquet" and any(pa.types.is_binary(kind) for kind in table.schema.types)
    names = _names(table)
    if binary or not names:
        raise UserError(f"{file} cannot be read (its texts are not UTF-8). Fix: save it as UTF-8.")
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise UserError(f"{file}: column {twice[0]!r} is there twice. Fix: rename one.")
    if not table.num_rows:
        raise UserError(f"{file} holds no rows. Fix: write some.")
    return _frame(table)


def _names(table: Any) -> list[str]:
    """Of the columns; none if they are not UTF-8."""
    try:
        return list(table.column_names)
    except UnicodeDecodeError:
        return []


def _start(file: Path) -> bytes:
    with file.open("rb") as opened:
        return opened.read(START)


def _is_text(file: Path) -> bool:
    """Whether the beginning is UTF-8 without zeros."""
    start = _start(file)
    try:
        codecs.getincrementaldecoder("utf-8")().decode(start)
    except UnicodeDecodeError:
        return False
    return b"\0" not in start


def _text(file: Path) -> Any:
    """A csv or tsv. Columns are separated by what gives the first two lines the most columns, as many in both; decimals
    have commas if no cell has a point and some have commas."""
    from pyarrow import csv as arrow

    start = _start(file).decode("utf-8", "ignore")
    separator = _separator(start, file.suffix.lower())
    cell = r"(?:^|{0})\"?-?\d+{1}\d+\"?(?={0}|\r|\n|$)"
    points, commas = (re.search(cell.format(re.escape(separator), mark), start, re.MULTILINE) for mark in (r"\.", ","))
    return arrow.read_csv(
        file,
        parse_options=arrow.ParseOptions(delimiter=separator, newlines_in_values=True),
        convert_options=arrow.ConvertOptions(
            null_values=MISSING, strings_can_be_null=True, decimal_point="," if commas and not points else "."
        ),
    )


def _separator(start: str, suffix: str) -> str:
    usual = "\t" if suffix == ".tsv" else ","
    best, most = usual, 1
    for separator in (usual, *(each for each in ",;\t|" if each != usual)):
        try:
            rows = list(itertools.islice(csv.reader(io.StringIO(start, newline=""), delimiter=separator), 2))
        except csv.Error:
            continue
        widths = {len(row) for row in rows}
        if len(widths) == 1 and max(widths) > most:
            best, most = separator, max(widths)
    return best


def _frame(table: Any) -> Any:
    """A column at a time, so that no second copy of the whole is held."""
    import pandas as pd
    import pyarrow as pa

    series = {}
    for name in table.column_names:
        column = table.column(name)
        kind = column.type
        if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
            series[name] = column.cast(pa.timestamp("us")).to_pandas()
        elif pa.types.is_nested(kind) or pa.types.is_binary(kind):
            raise UserError(f"data: column {name!r} holds {kind}. Fix: numbers and texts only; drop the column.")
        elif pa.types.is_decimal(kind) or pa.types.is_null(kind) or (pa.types.is_boolean(kind) and column.null_count):
            series[name] = column.cast(pa.float64()).to_pandas()
        else:
            series[name] = column.to_pandas(strings_to_categorical=True)
        table = table.drop_columns([name])
    return pd.DataFrame(series, copy=False)
