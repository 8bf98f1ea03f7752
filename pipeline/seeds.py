"""From (seed, purpose, indices) to a key, and to a numpy generator for work done once on the host; no torch needed."""

from __future__ import annotations

import hashlib

import numpy as np


def key(seed: int, purpose: str, *indices: int) -> int:
    """A 63-bit key for (seed, purpose, indices); purposes are plain words such as "participation"."""
    text = ":".join([str(seed), purpose, *map(str, indices)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def numpy_generator(seed: int, purpose: str, *indices: int) -> np.random.Generator:
    """For work done once on the host: partitions, the test split of digits."""
    return np.random.default_rng(key(seed, purpose, *indices))
