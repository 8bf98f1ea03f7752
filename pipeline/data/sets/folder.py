"""Images of a user's own: a folder for each client, in it one for each class."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from pipeline.data.raw import RawDataset
from pipeline.data.sets.base import Contents, Dataset
from pipeline.errors import UserError, not_allowed


def check(data: Any) -> None:
    if not data.path:
        raise not_allowed("data.path", data.path, "a folder that holds clients/<client>/<class>/<image>", "name it")


def read(contents: Contents, data: Any) -> RawDataset:
    from pipeline.data.own import assembling, images

    check(data)
    place = Path(data.path).expanduser()
    listed, others = images.listed(place)
    files = [found.file for part in listed.values() for found in part]
    size, channels, unreadable, mixed = images.form(files, data.image_size, data.channels)
    notes = [f"{others} files are no images and were passed over"] if others else []
    if strange := images.passed_over(place):
        notes.append(f"{', '.join(strange[:5])} in {place} is not read: the sets are called {', '.join(images.SETS)}")
    if unreadable:
        some = ", ".join(map(str, unreadable[:5]))
        some += f" and {len(unreadable) - 5} more" if len(unreadable) > 5 else ""
        if not data.skip_unreadable:
            raise UserError(
                f"data: cannot be read: {some}. Fix: replace or remove them, or data.skip_unreadable: true."
            )
        notes.append(f"left out, as they cannot be read: {some}")
        held = {(part, each.client) for part, found in listed.items() for each in found}
        listed = {part: [each for each in found if each.file not in set(unreadable)] for part, found in listed.items()}
        gone = sorted(held - {(part, each.client) for part, found in listed.items() for each in found})
        for part, client in gone:
            if part != "clients":
                raise UserError(
                    f"data: no image of the {part} set can be read. Fix: replace them, or remove the folder."
                )
            notes.append(f"client {client!r} is left out: none of its images can be read")
    if mixed:
        notes.append(f"images of several sizes, all brought to {size} x {size} pixels")
    X = {part: images.read([each.file for each in found], size, channels) for part, found in listed.items()}
    y = {part: np.array([each.label for each in found], dtype=object) for part, found in listed.items()}
    owners = np.array([each.client for each in listed["clients"]], dtype=object)
    record = {"kind": "images", "size": size, "channels": channels}
    parts = assembling.FoundSets(X, y, owners, notes=notes)
    return assembling.assembled(data.name, parts, record, "classification", "the classes' folders")


FOLDER = Dataset(
    name="folder",
    summary="your own images, a folder per client",
    read=read,
    check=check,
    reads=(
        *("path", "image_size", "channels", "skip_unreadable", "bad"),
        *("validation_share", "selection_share", "test_share"),
    ),
)
