"""Folders of images: clients/<client>/<class>/<image>, test/<class>/<image>, validation/<class>/<image>."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.data.sizes import require_memory
from pipeline.errors import UserError

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".webp")

SETS = ("clients", "validation", "selection", "test")


@dataclass(frozen=True)
class Found:
    """An image file. client: "" for the server's."""

    file: Path
    client: str
    label: str


def listed(path: Path) -> tuple[dict[str, list[Found]], int]:
    """The images of each set that there is, and how many other files were passed over; UserError for another layout."""
    if not path.is_dir():
        raise UserError(f"data.path: {path} is no folder. Fix: the folder that holds clients/<client>/<class>/<image>.")
    if not (path / "clients").is_dir():
        if path.name == "clients":
            raise UserError(f"data.path: {path} is the clients' folder. Fix: data.path: {path.parent}, which holds it.")
        there = ", ".join(folder.name for folder in _folders(path)[:5]) or "no folder"
        raise UserError(
            f"data.path: {path} has no folder clients ({there} is there). Fix: clients/<client>/<class>/<image>."
        )
    others = 0
    found: dict[str, list[Found]] = {"clients": []}
    for client in _folders(path / "clients"):
        images, passed = _classes(client, client.name)
        if not images:
            raise UserError(
                f"data.path: client {client.name!r} has no image in {client}/<class>/."
                " Fix: add some, or remove the folder."
            )
        found["clients"] += images
        others += passed
    if not found["clients"]:
        raise UserError(
            f"data.path: {path / 'clients'} holds no folder of a client. Fix: clients/<client>/<class>/<image>."
        )
    for name in SETS[1:]:
        if (path / name).is_dir():
            found[name], passed = _classes(path / name, "")
            others += passed
            if not found[name]:
                raise UserError(
                    f"data.path: {path / name} has no image in <class>/. Fix: add some, or remove the folder."
                )
    return found, others


def passed_over(path: Path) -> list[str]:
    """Names of folders that are none of the sets."""
    return [folder.name for folder in _folders(path) if folder.name not in SETS]


def _folders(path: Path) -> list[Path]:
    return sorted(folder for folder in path.iterdir() if folder.is_dir() and not folder.name.startswith("."))


def _classes(folder: Path, client: str) -> tuple[list[Found], int]:
    found, others = [], 0
    for label in _folders(folder):
        for file in sorted(label.iterdir()):
            if file.is_file() and file.suffix.lower() in SUFFIXES and not file.name.startswith("."):
                found.append(Found(file, client, label.name))
            else:
                others += 1
    loose = [file.name for file in folder.iterdir() if file.is_file() and file.suffix.lower() in SUFFIXES]
    if loose:
        raise UserError(
            f"data.path: {folder / loose[0]} lies beside the classes. Fix: put it into a folder of its class."
        )
    return found, others


def form(files: Sequence[Path], size: int | str, channels: int | str) -> tuple[int, int, list[Path], bool]:
    """Pixels of the square and channels that all images are brought to, by `data.image_size` and `data.channels`; files
    that cannot be read; whether sizes differ."""
    from PIL import Image

    sides: Counter[int] = Counter()
    shapes, colour, unreadable = set(), False, []
    for file in files:
        try:
            with Image.open(file) as image:
                image.load()
                sides[max(image.size)] += 1
                shapes.add(image.size)
                colour |= image.mode not in ("1", "L", "LA", "I", "I;16", "I;16B", "F")
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
            unreadable.append(file)
    if not sides:
        raise UserError(
            f"data.path: none of {len(files)} images can be read, the first is {files[0]}. Fix: other files."
        )
    commonest = max(sides, key=lambda side: (sides[side], -side))
    return (
        commonest if isinstance(size, str) else size,
        (3 if colour else 1) if isinstance(channels, str) else channels,
        unreadable,
        len(shapes) > 1,
    )


def pixels(image: Any, size: int, channels: int) -> np.ndarray:
    """uint8 [channels, size, size] of a PIL image, turned as its camera says and stretched to the square."""
    from PIL import Image, ImageOps

    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I"):  # 16 bits
        image = Image.fromarray((np.asarray(image).clip(0, 65535) // 256).astype(np.uint8))
    if image.mode in ("P", "PA"):
        image = image.convert("RGB")
    image = image.convert("L" if channels == 1 else "RGB")
    if image.size != (size, size):
        image = image.resize((size, size), Image.Resampling.BILINEAR)
    return np.moveaxis(np.asarray(image, dtype=np.uint8).reshape(size, size, channels), 2, 0)


def read(files: Sequence[Path], size: int, channels: int) -> np.ndarray:
    """uint8 [M, channels, size, size]."""
    from PIL import Image

    require_memory(
        f"data.path: {len(files)} images of {size} x {size} pixels (data.image_size)",
        float(len(files)) * channels * size**2,
        "a smaller data.image_size",
    )
    out = np.empty((len(files), channels, size, size), dtype=np.uint8)
    for row, file in enumerate(files):
        with Image.open(file) as image:
            out[row] = pixels(image, size, channels)
    return out
