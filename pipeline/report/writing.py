"""Files that are whole or not there at all."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any


def write_text(path: Path, text: str) -> None:
    """UTF-8, with the line ends of the text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text, encoding="utf-8", newline="")
    os.replace(partial, path)


def write_json(path: Path, value: Any) -> None:
    """Indented; what JSON has no form for becomes its `str`."""
    write_text(path, json.dumps(value, indent=2, default=str) + "\n")


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """A head line, then the rows; None is an empty cell."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    write_text(path, text.getvalue())


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Rows by column name, the columns in the order in which they first come up."""
    rows = list(rows)
    columns = list(dict.fromkeys(name for row in rows for name in row))
    write_csv(path, columns, ([row.get(name) for name in columns] for row in rows))
