"""Results files: a line of JSON per cell, appended as the cell ends, so that whatever is stopped goes on where it was.

A row holds its cell's name under `key`; of several rows with one key the last counts. Rows made on another machine are
taken in by appending them.
"""

from __future__ import annotations

import json
import os
from functools import lru_cache
from pathlib import Path
from typing import Any

from filelock import FileLock

from pipeline.errors import UserError

Row = dict[str, Any]
"""A cell's key and what came of it."""


def read(path: Path) -> dict[str, Row]:
    """Rows by their keys; none without a file. A last line that was cut off counts as missing. The rows are shared by
    all who read: do not change them.

    Raises UserError for any other line that is no row.
    """
    if not path.is_file():
        return {}
    about = path.stat()
    return _rows(path, about.st_mtime_ns, about.st_size)


@lru_cache(maxsize=8)
def _rows(path: Path, changed: int, size: int) -> dict[str, Row]:
    """changed, size: of the file, which name what is in it."""
    found: dict[str, Row] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n")[:-1], 1):
        try:
            row = json.loads(line)
            found[row["key"]] = row
        except (ValueError, KeyError, TypeError):
            raise UserError(f"{path}, line {number} is no row of results. Fix: remove the line.") from None
    return found


def append(path: Path, row: Row) -> None:
    """One more line, on disk when this returns, in place of one that was cut off. Processes take turns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_name(f".{path.name}.lock")), path.open("a+b") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read() != b"\n":
                file.seek(0)
                file.truncate(file.read().rfind(b"\n") + 1)
        file.write(json.dumps(row, separators=(",", ":")).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
