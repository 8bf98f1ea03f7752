"""Files that a run goes on from: each whole or not at all, with a checksum of its content at its end.

The checksum follows the content, so that it is written in one pass; readers of zip archives and of .npy files ignore
what follows. A file without it, or of which a single bit has changed, is damaged.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import torch

from pipeline.errors import UserError

_MARK = b"\nsha256 "
_LENGTH = len(_MARK) + 64


class Damaged(Exception):
    """A file is not what was written. The message names it."""


class _Hashed:
    """A binary file and the digest of what is written to it."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self.digest = file, hashlib.sha256()

    def write(self, content: Any) -> int:
        self.digest.update(content)
        return self._file.write(content)

    def flush(self) -> None:
        self._file.flush()


def write(path: Path, fill: Callable[[Any], None]) -> None:
    """Write a file with its checksum. fill: writes the content to an open file. Raises OSError, and what was at the
    path stays, if the disk does not take it."""
    partial = path.with_name(path.name + ".partial")
    try:
        with partial.open("wb") as file:
            hashed = _Hashed(file)
            fill(hashed)
            file.write(_MARK + hashed.digest.hexdigest().encode())
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def check(path: Path) -> None:
    """Raises Damaged unless the file is what `write` wrote."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END) - _LENGTH
            file.seek(0)
            digest = hashlib.sha256()
            left = size
            while left > 0 and (part := file.read(min(left, 2**20))):
                digest.update(part)
                left -= len(part)
            found = file.read()
    except OSError as error:
        raise Damaged(f"{path} cannot be read ({error.strerror})") from None
    if size < 0 or found != _MARK + digest.hexdigest().encode():
        raise Damaged(f"{path} is damaged: its checksum is not that of its content")


def read_tensors(path: Path) -> Any:
    """What torch.save wrote there, tensors and plain values only. Raises Damaged."""
    check(path)
    try:
        return torch.load(path, weights_only=True, map_location="cpu")
    except Exception as error:  # written whole, by something else
        raise Damaged(f"{path} is no save of ours ({type(error).__name__})") from None


def save_variables(path: Path, variables: dict[str, torch.Tensor]) -> None:
    """Tensors only, so that loading needs no trust; whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    kept = {"variables": {name: value.cpu().clone() for name, value in variables.items()}}
    write(path, lambda file: torch.save(kept, file))


def load_variables(path: Path, device: torch.device | str = "cpu") -> dict[str, torch.Tensor]:
    """What `save_variables` wrote, by name: such as w, and x where weights are learned. UserError if it is damaged."""
    try:
        return {name: value.to(device) for name, value in read_tensors(path)["variables"].items()}
    except Damaged as error:
        raise UserError(f"{error}. Fix: .venv/bin/dvc repro --force train") from None
