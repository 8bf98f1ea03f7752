"""The canonical form of a data set: four arrays and a description in one folder, whatever the original.

    train_images.npy  uint8 [M, C, H, W]      train_labels.npy  int64 [M]
    test_images.npy   uint8 [T, C, H, W]      test_labels.npy   int64 [T]
    meta.json         name, classes, source, counts, shape and sha256 of each array, and a sha256 of all this

A user's own data have owners.npy and perhaps groups.npy, int64 [M], perhaps float32 samples, float64 targets where
these are numbers, names and notes in meta.json, and preprocessing.json: see `pipeline.data.raw`.

The folder's bytes depend on the content only, not on the place it was fetched from: machines with different
mirrors agree on every hash downstream.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from pathlib import Path
from typing import IO, Any

import numpy as np

from pipeline.data.originals.fetching import Source, fetch
from pipeline.data.raw import ARRAYS, FURTHER, SELECTION, UNREADABLE, VALIDATION, RawDataset, digest
from pipeline.data.sets.registry import dataset_named
from pipeline.data.settings import Data
from pipeline.errors import UserError

META, PREPROCESSING, CHECKSUM = "meta.json", "preprocessing.json", "sha256"
TEXTS = ("client_names", "class_names", "notes")

_log = logging.getLogger(__name__)


# --------------------------------------------------------------------------------- prepare and load


def prepare(
    name: str, folder: Path, mirror: str | None = None, source: Source | None = None, settings: Data | None = None
) -> str:
    """Write the canonical form into `folder`, which is replaced as a whole or left as it was.

    Returns one line on what it is and where it came from.

    mirror: see `pipeline.data.originals.fetching`. source: instead of the built-in record, for archives of the same
    form. settings: the section `data` of params.yaml, for data sets that it describes further. Raises UserError if the
    data cannot be had.
    """
    dataset = dataset_named(name)
    source = source or dataset.source
    contents: dict[str, bytes] = {}
    origin, places = dataset.origin or name, [dataset.place or name]
    if source:
        fetched = fetch(source, mirror)
        for trouble in fetched.skipped:
            _log.warning("%s: passed over: %s", name, trouble)
        contents, places = fetched.contents, fetched.places
        origin = "original files, md5 " + ", ".join(f"{file.name} {file.md5}" for file in fetched.files)
    raw = dataset.read(contents, settings or Data(name=name))
    _write(raw, origin, folder)
    counts = f"{len(raw.train_labels)} training and {len(raw.test_labels)} test images"
    if raw.own:
        counts, places = _counts(raw), [str(getattr(settings, "path", name))]
    return "\n".join([f"{name}: {counts} from {', '.join(places)}", *(f"note: {note}" for note in raw.notes)])


def _counts(raw: RawDataset) -> str:
    """How much there is of own data."""
    assert raw.owners is not None
    sets = {"validation": VALIDATION, "selection": SELECTION}
    given = {name: int((raw.owners == code).sum()) for name, code in sets.items()} | {"test": len(raw.test_labels)}
    server = "".join(f", {count} {name}" for name, count in given.items() if count)
    clients = f" of {len(raw.client_names)} clients" if raw.client_names else ""
    what = f"{raw.classes} classes" if raw.classes else "a number to predict"
    shape = f"{raw.info.channels} features" if raw.info.size == 1 else f"{raw.info.size} x {raw.info.size} pixels"
    return f"{raw.info.images} samples{clients}{server}; {shape}, {what};"


def _write(raw: RawDataset, source: str, folder: Path) -> None:
    """Into a folder beside it, then renamed: a killed process leaves nothing half-written under the name."""
    folder = Path(folder)
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        meta: dict[str, Any] = {
            "name": raw.name,
            "classes": raw.classes,
            "source": source,
            "counts": {"train": len(raw.train_labels), "test": len(raw.test_labels)},
            "arrays": {},
        }
        if raw.own:
            meta |= {name: list(getattr(raw, name)) for name in TEXTS}
            (partial / PREPROCESSING).write_text(json.dumps(raw.preprocessing, indent=2) + "\n", encoding="utf-8")
            meta[PREPROCESSING] = _sha256(raw.preprocessing)
        for name in (*ARRAYS, *FURTHER):
            array = getattr(raw, name)
            if array is None:
                continue
            with (partial / f"{name}.npy").open("wb") as file:
                np.save(_Plain(file), array, allow_pickle=False)
            meta["arrays"][name] = {"shape": list(array.shape), "sha256": digest(array)}
        meta[CHECKSUM] = _sha256(meta)
        (partial / META).write_text(json.dumps(meta, indent=2) + "\n", encoding="utf-8")
        if folder.exists():
            shutil.rmtree(folder)
        os.replace(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


class _Plain:
    """An open file that numpy takes for no file of its own: written past Python, a full disk would be an error without
    a number."""

    def __init__(self, file: IO[bytes]) -> None:
        self.write = file.write


def _sha256(value: Any) -> str:
    """Of what JSON makes of it."""
    return hashlib.sha256(json.dumps(json.loads(json.dumps(value)), sort_keys=True).encode()).hexdigest()


def load(folder: Path) -> RawDataset:
    """The canonical form back, every file verified. Raises UserError naming the damaged or missing file."""
    folder = Path(folder)

    def damaged(file: str, what: str) -> UserError:
        return UserError(
            f"{folder / file} is damaged: {what}. Fix: delete the folder {folder} and run dvc repro again."
        )

    if not folder.is_dir():
        raise UserError(f"{folder} does not exist: the data set was not prepared. Fix: run dvc repro.")
    file = META
    try:
        meta = json.loads((folder / META).read_text(encoding="utf-8"))
        if meta.pop(CHECKSUM) != _sha256(meta):
            raise ValueError(CHECKSUM)
        name, classes, recorded = str(meta["name"]), int(meta["classes"]), meta["arrays"]
        names = [*ARRAYS, *(array for array in FURTHER if array in recorded)]
        expected = {array: (tuple(recorded[array]["shape"]), recorded[array]["sha256"]) for array in names}
        more: dict[str, Any] = {text: tuple(meta[text]) for text in TEXTS if text in meta}
        if more:
            file = PREPROCESSING
            more["preprocessing"] = json.loads((folder / PREPROCESSING).read_text(encoding="utf-8"))
            if meta[PREPROCESSING] != _sha256(more["preprocessing"]):
                raise ValueError(PREPROCESSING)
    except FileNotFoundError:
        raise damaged(file, "it is missing") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise damaged(file, "it is not the description that was written") from None
    arrays = {}
    for array, (shape, sha256) in expected.items():
        file = f"{array}.npy"
        try:
            arrays[array] = np.load(folder / file, allow_pickle=False)
        except FileNotFoundError:
            raise damaged(file, "it is missing") from None
        except UNREADABLE as error:
            raise damaged(file, f"it cannot be read ({error})") from None
        if arrays[array].shape != shape:
            raise damaged(file, f"its shape is {list(arrays[array].shape)} instead of {list(shape)}")
        if digest(arrays[array]) != sha256:
            raise damaged(file, f"its content is not what {META} records (sha256)")
    try:
        return RawDataset(name, classes, **arrays, **more)
    except ValueError as error:
        raise damaged(META, str(error)) from None
