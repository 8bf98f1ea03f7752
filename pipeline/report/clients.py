"""The clients of a run as every table, picture and page shows them."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.data.partition import Partition
from pipeline.report.writing import write_csv
from pipeline.text import short_labels
from pipeline.training.evaluation import below_half

UNKNOWN = "unknown"
"""The kind of a client of which it is not known whether its data are clean."""
HEADER = ("client", "name", "kind", "labels", "samples", "weight", "weight_low", "weight_high")


@dataclass(frozen=True, eq=False)
class Clients:
    """N clients with their weights.

    names: unique. kinds: clean, unknown, or what is wrong. labels: that each one holds. samples: of its training part.
    weights: [N]. interval: lower and upper ends of the weights, [2, N]; None without replicates. oracle: the weights of
    someone who knows the kinds, [N]; None where they are unknown or weights make no sense. classes: their names; none:
    their numbers. disagrees: with which clients' labels the model does (`pipeline.report.evidence`), [N] bool; None
    where that was not looked at.
    """

    names: list[str]
    kinds: list[str]
    labels: list[list[int]]
    samples: list[int]
    weights: np.ndarray
    interval: np.ndarray | None = None
    oracle: np.ndarray | None = None
    classes: list[str] = field(default_factory=list)
    disagrees: np.ndarray | None = None

    @classmethod
    def of(cls, partition: Partition, weights: np.ndarray, interval: np.ndarray | None = None) -> Clients:
        return cls(
            names=list(partition.names),
            kinds=list(partition.kinds),
            labels=list(partition.client_labels),
            samples=partition.sizes.tolist(),
            weights=weights,
            interval=interval,
            oracle=partition.oracle_weights() if partition.known else None,
            classes=list(partition.class_names),
        )

    @classmethod
    def alike(cls, weights: np.ndarray, interval: np.ndarray | None = None) -> Clients:
        """Clients of the toy problem, which hold no samples."""
        n = len(weights)
        return cls(default_names(n), ["clean"] * n, [[] for _ in range(n)], [1] * n, weights, interval)

    def __len__(self) -> int:
        return len(self.names)

    @property
    def named(self) -> bool:
        """Whether they have names of their own."""
        return self.names != default_names(len(self))

    @property
    def clean(self) -> np.ndarray:
        """[N] bool."""
        return np.array([kind == "clean" for kind in self.kinds])

    @property
    def known(self) -> bool:
        """Whether the kind of every client is."""
        return UNKNOWN not in self.kinds

    @property
    def light(self) -> list[int]:
        """Clients below half of an equal share, surely so where there are intervals; none if no client has a weight."""
        return below_half(self.weights, self.interval) if self.weights.any() else []

    @property
    def suspects(self) -> list[int]:
        """Light clients with whose labels the model disagrees: a low weight alone is no evidence, since validation
        samples are few."""
        return [i for i in self.light if self.disagrees is not None and self.disagrees[i]]

    def held(self, labels: Sequence[int]) -> str:
        """Labels in words; names may hold spaces."""
        return "; ".join(self.classes[label] for label in labels) if self.classes else " ".join(map(str, labels))

    def write(self, results: Path) -> None:
        """client_weights.csv."""
        ends = [("", "")] * len(self)
        if self.interval is not None:
            ends = [(f"{low:.9g}", f"{high:.9g}") for low, high in self.interval.T]
        columns = zip(
            self.names, self.kinds, map(self.held, self.labels), self.samples, self.weights, ends, strict=True
        )
        write_csv(
            results / "client_weights.csv",
            HEADER,
            (
                (i, name, kind, held, size, f"{weight:.9g}", *low_and_high)
                for i, (name, kind, held, size, weight, low_and_high) in enumerate(columns)
            ),
        )


def class_names(partition: Partition) -> list[str]:
    """Their own, else their numbers."""
    return partition.class_names or [str(c) for c in range(partition.classes)]


def default_names(count: int) -> list[str]:
    """Of clients without names of their own."""
    return [f"client {i}" for i in range(count)]


def read_clients(results: Path) -> list[dict[str, Any]]:
    """client_weights.csv, numbers as numbers, labels shortened for the eye."""
    path = results / "client_weights.csv"
    if not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return [
            {
                **row,
                "client": int(row["client"]),
                "labels": short(row["labels"]),
                "samples": int(row["samples"]),
                "weight": float(row["weight"]),
                **{name: float(row[name]) if row[name] else None for name in ("weight_low", "weight_high")},
            }
            for row in csv.DictReader(file)
        ]


def short(labels: str) -> str:
    """Labels as the file has them, shortened where they are numbers."""
    held = labels.split()
    return short_labels([int(label) for label in held]) if all(map(str.isdecimal, held)) else labels
