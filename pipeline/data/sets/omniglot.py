"""Handwritten characters of 50 alphabets (Lake, Salakhutdinov and Tenenbaum, 2015), for few-shot learning: 964 training
and 659 other test classes of twenty images each."""

from __future__ import annotations

import io
import zipfile
from typing import Any

import numpy as np

from pipeline.data.originals.fetching import OriginalFile, Source
from pipeline.data.raw import RawDataset
from pipeline.data.sets.base import Contents, Dataset, DatasetInfo

SIZE = 28


def read(contents: Contents, settings: Any) -> RawDataset:
    """The two original archives; characters in the order of their alphabets' names, ink bright, 105 x 105 pixels
    averaged to 28 x 28."""
    images, labels, first = [], [], 0
    for part in ("background", "evaluation"):
        pictures = _pictures(contents[f"images_{part}.zip"])
        classes = sorted({folder for folder, _ in pictures})
        number = {folder: first + c for c, folder in enumerate(classes)}
        images.append(np.stack([picture for _, picture in pictures])[:, None])
        labels.append(np.array([number[folder] for folder, _ in pictures], dtype=np.int64))
        first += len(classes)
    return RawDataset("omniglot", first, images[0], labels[0], images[1], labels[1])


def _pictures(archive: bytes) -> list[tuple[str, np.ndarray]]:
    """(folder, which is alphabet and character; uint8 [28, 28]) of every drawing, sorted by path."""
    from PIL import Image

    found = []
    with zipfile.ZipFile(io.BytesIO(archive)) as opened:
        for path in sorted(member for member in opened.namelist() if member.endswith(".png")):
            with Image.open(io.BytesIO(opened.read(path))) as drawing:
                small = drawing.convert("L").resize((SIZE, SIZE), Image.Resampling.BOX)
            found.append((path.rpartition("/")[0], 255 - np.asarray(small, dtype=np.uint8)))
    return found


OMNIGLOT = Dataset(
    name="omniglot",
    summary="characters for few-shot learning",
    read=read,
    # Pixels of characters stay as they are.
    info=DatasetInfo(1623, 1, SIZE, 19_280, (0.0,), (1.0,), few_shot=True),
    source=Source(
        "omniglot",
        (
            OriginalFile("images_background.zip", "68d2efa1b9178cc56df9314c21c6e718"),
            OriginalFile("images_evaluation.zip", "6b91aef0f799c5bb55b94e3f2daec811"),
        ),
        public="Omniglot",
        instead="glyphs",
    ),
    problem="few_shot",
)
