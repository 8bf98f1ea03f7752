"""Generated characters of Omniglot's form, for few-shot learning without a download: a class is a few random strokes,
its images bend and tilt them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from pipeline.data.raw import RawDataset
from pipeline.data.sets.base import Contents, Dataset, DatasetInfo
from pipeline.seeds import numpy_generator

SIZE = 28
PER_CLASS = 20
CLASSES = (200, 60)
"""Training classes and other, test classes."""


def read(contents: Contents, settings: Any) -> RawDataset:
    """Always the same ones. Sums, products and roots only, entry by entry: every machine gets the same bytes."""
    counts = CLASSES
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


GLYPHS = Dataset(
    name="glyphs",
    summary="generated characters for few-shot learning, no download",
    read=read,
    # Pixels of characters stay as they are.
    info=DatasetInfo(sum(CLASSES), 1, SIZE, CLASSES[0] * PER_CLASS, (0.0,), (1.0,), few_shot=True),
    origin="random strokes, bent and tilted; see pipeline/data/sets/glyphs.py",
    place="its generator",
    problem="few_shot",
)
