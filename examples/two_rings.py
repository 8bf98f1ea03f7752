"""A custom data set: small pictures of rings and discs, drawn when they are read.

In params.yaml:

    data:
      name: examples.two_rings.TWO_RINGS
    model: {name: linear}
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pipeline.data.raw import RawDataset
from pipeline.data.sets.base import Contents, Dataset, DatasetInfo
from pipeline.seeds import numpy_generator

SIZE, IMAGES, TESTED = 12, 600, 100


def read(contents: Contents, settings: Any) -> RawDataset:
    """contents: original files, of which there are none. settings: `data` of params.yaml."""
    random = numpy_generator(0, "rings")
    labels = random.integers(0, 2, IMAGES + TESTED)
    centre = SIZE / 2 + random.uniform(-1, 1, (len(labels), 2, 1, 1))
    y, x = np.mgrid[:SIZE, :SIZE]
    distance = np.hypot(y - centre[:, 0], x - centre[:, 1])
    inside = (distance < 4) & ((distance > 2.5) | (labels[:, None, None] == 1))
    images = (255 * inside).astype(np.uint8)[:, None]
    return RawDataset("two_rings", 2, images[:IMAGES], labels[:IMAGES], images[IMAGES:], labels[IMAGES:])


TWO_RINGS = Dataset(
    name="two_rings",
    summary="rings and discs",
    read=read,
    info=DatasetInfo(classes=2, channels=1, size=SIZE, images=IMAGES, means=(0.15,), deviations=(0.36,)),
)
