"""What a partition scheme hands to one client."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

Draw = Callable[..., np.random.Generator]


@dataclass(frozen=True)
class Holding:
    """What one client holds. indices: [n] int64. labels: [n], int64, or float64 where targets are numbers.
    client_labels: labels it nominally holds, ascending.

    copy_of: the client this is an exact copy of: both are cut alike into training and validation parts.
    validation: [n] bool, the client's own validation part, where the scheme itself decides it.
    """

    indices: np.ndarray
    labels: np.ndarray
    kind: str
    client_labels: list[int]
    copy_of: int | None = None
    validation: np.ndarray | None = None


def clean_holding(indices: np.ndarray, labels: np.ndarray) -> Holding:
    """All labels true."""
    return Holding(indices, labels, "clean", held_labels(labels))


def held_labels(labels: np.ndarray) -> list[int]:
    """Which there are, ascending; none, where targets are numbers."""
    return np.unique(labels).tolist() if labels.dtype.kind == "i" else []


def at_most(bound: int) -> str:
    """In a complaint."""
    return f"at most {bound}"
