"""The canonical form of a data set: four arrays and a description in one folder, whatever the original.

    train_images.npy  uint8 [M, C, H, W]      train_labels.npy  int64 [M]
    test_images.npy   uint8 [T, C, H, W]      test_labels.npy   int64 [T]
    meta.json         name, classes, source, counts, and shape and sha256 of each array

The folder's bytes depend on the content only, not on the place it was fetched from: machines with different
mirrors agree on every hash downstream.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.data.originals.fetching import Source, fetch
from pipeline.data.raw import ARRAYS, RawDataset, digest
from pipeline.data.sets.registry import dataset_named
from pipeline.data.settings import Data
from pipeline.errors import UserError

META = "meta.json"

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
    return f"{name}: {counts} from {', '.join(places)}"


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
        for name in ARRAYS:
            array = getattr(raw, name)
            np.save(partial / f"{name}.npy", array, allow_pickle=False)
            meta["arrays"][name] = {"shape": list(array.shape), "sha256": digest(array)}
        (partial / META).write_text(json.dumps(meta, indent=2) + "\n", encoding="utf-8")
        if folder.exists():
            shutil.rmtree(folder)
        os.replace(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def load(folder: Path) -> RawDataset:
    """The canonical form back, every array verified. Raises UserError naming the damaged or missing file."""
    folder = Path(folder)

    def damaged(file: str, what: str) -> UserError:
        return UserError(
            f"{folder / file} is damaged: {what}. Fix: delete the folder {folder} and run dvc repro again."
        )

    if not folder.is_dir():
        raise UserError(f"{folder} does not exist: the data set was not prepared. Fix: run dvc repro.")
    try:
        meta = json.loads((folder / META).read_text(encoding="utf-8"))
        name, classes, recorded = str(meta["name"]), int(meta["classes"]), meta["arrays"]
        expected = {array: (tuple(recorded[array]["shape"]), recorded[array]["sha256"]) for array in ARRAYS}
    except FileNotFoundError:
        raise damaged(META, "it is missing") from None
    except (ValueError, KeyError, TypeError):
        raise damaged(META, "it is not the description that was written") from None
    arrays = {}
    for array, (shape, sha256) in expected.items():
        file = f"{array}.npy"
        try:
            arrays[array] = np.load(folder / file, allow_pickle=False)
        except FileNotFoundError:
            raise damaged(file, "it is missing") from None
        except (ValueError, EOFError, OSError) as error:
            raise damaged(file, f"it cannot be read ({error})") from None
        if arrays[array].shape != shape:
            raise damaged(file, f"its shape is {list(arrays[array].shape)} instead of {list(shape)}")
        if digest(arrays[array]) != sha256:
            raise damaged(file, f"its content is not what {META} records (sha256)")
    try:
        return RawDataset(name, classes, **arrays)
    except ValueError as error:
        raise damaged(META, str(error)) from None
