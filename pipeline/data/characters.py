"""Handwritten characters for few-shot learning: many classes of twenty images, tested on classes never trained on.

`omniglot`: the real ones (Lake, Salakhutdinov and Tenenbaum, 2015), 964 training and 659 test classes. `glyphs`:
generated ones of the same form, which need no download: a class is a few random strokes, its images bend and tilt them.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from itertools import pairwise

import numpy as np

from pipeline.data.raw import RawDataset
from pipeline.seeds import numpy_generator

SIZE = 28
PER_CLASS = 20
GLYPH_CLASSES = (200, 60)
"""Training and test classes of `glyphs`."""


# ------------------------------------------------------------------------------------------ Omniglot


def omniglot(name: str, contents: Mapping[str, bytes]) -> RawDataset:
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
    return RawDataset(name, first, images[0], labels[0], images[1], labels[1])


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


# -------------------------------------------------------------------------------------------- glyphs


def glyphs() -> RawDataset:
    """Always the same ones. Sums, products and roots only, entry by entry: every machine gets the same bytes."""
    counts = GLYPH_CLASSES
    images = np.concatenate([_glyph(numpy_generator(0, "glyphs", c)) for c in range(sum(counts))])[:, None]
    labels = np.repeat(np.arange(sum(counts)), PER_CLASS)
    train = labels < counts[0]
    return RawDataset("glyphs", sum(counts), images[train], labels[train], images[~train], labels[~train])


def _glyph(random: np.random.Generator) -> np.ndarray:
    """PER_CLASS drawings of one new character, uint8 [PER_CLASS, SIZE, SIZE].

    Two to four strokes, each a parabola by three control points in the unit square. A drawing moves every control point
    a little, then all of them by one affine map near the identity; pens differ in width.
    """
    strokes = int(random.integers(2, 5))
    shape = 0.15 + 0.7 * random.random((1, strokes, 3, 2))
    points = shape + 0.05 * (2 * random.random((PER_CLASS, strokes, 3, 2)) - 1) - 0.5
    tilt = np.eye(2) + 0.15 * (2 * random.random((PER_CLASS, 2, 2)) - 1)
    shift = 0.5 + 0.04 * (2 * random.random((PER_CLASS, 1, 1, 2)) - 1)
    x, y = points[..., 0], points[..., 1]
    a, b = tilt[:, 0, :, None, None], tilt[:, 1, :, None, None]
    placed = np.stack([a[:, 0] * x + a[:, 1] * y, b[:, 0] * x + b[:, 1] * y], axis=-1) + shift
    width = 0.02 + 0.02 * random.random((PER_CLASS, 1, 1))
    ink = np.zeros((PER_CLASS, SIZE, SIZE))
    for start, end in _segments(placed):
        ink = np.maximum(ink, np.clip((width - _distance(start, end)) * SIZE + 0.5, 0.0, 1.0))
    return np.floor(255 * ink + 0.5).astype(np.uint8)


def _segments(control: np.ndarray, pieces: int = 8) -> list[tuple[np.ndarray, np.ndarray]]:
    """The strokes as straight pieces, (start, end) [n, 2] each; control: [n, strokes, 3, 2]."""
    found = []
    for stroke in range(control.shape[1]):
        first, middle, last = (control[:, stroke, k] for k in range(3))
        path = [
            (1 - t) * (1 - t) * first + 2 * t * (1 - t) * middle + t * t * last for t in np.arange(pieces + 1) / pieces
        ]
        found += list(pairwise(path))
    return found


def _distance(start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Of every pixel's centre from the piece of its drawing, [n, SIZE, SIZE]."""
    centre = (np.arange(SIZE) + 0.5) / SIZE
    px, py = centre[None, None, :], centre[None, :, None]
    (x, y), (u, v) = (column[:, :, None, None].swapaxes(0, 1) for column in (start, end - start))
    length = u * u + v * v
    along = np.clip(((px - x) * u + (py - y) * v) / np.maximum(length, 1e-12), 0.0, 1.0)
    dx, dy = px - x - along * u, py - y - along * v
    return np.sqrt(dx * dx + dy * dy)
