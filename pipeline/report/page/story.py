"""A run as its page presents it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pipeline.data.federated import FederatedData
from pipeline.data.partition import Partition
from pipeline.report.clients import Clients, class_names
from pipeline.report.evidence import Evidence
from pipeline.report.record import Record
from pipeline.report.series import Rows
from pipeline.training.evaluation import Classification

USES = {"validation": "decides the weights", "selection": "the served round", "test": "the accuracy"}


@dataclass(frozen=True)
class Holdings:
    """Who holds what.

    sets: the server's sets of samples -> how many. classes: their names. counts: samples of each class, [N, C], of the
    clients' training parts. columns: what else is known of each client, heading -> N texts (such as the share of
    missing values, or the target's mean and deviation). uses: what each of the server's sets is for. unchecked: whether
    the validation set was held out from the clients.
    """

    sets: dict[str, int] = field(default_factory=dict)
    classes: list[str] = field(default_factory=list)
    counts: np.ndarray | None = None
    columns: dict[str, list[str]] = field(default_factory=dict)
    uses: dict[str, str] = field(default_factory=lambda: dict(USES))
    unchecked: bool = False

    @classmethod
    def of(cls, data: FederatedData, partition: Partition) -> Holdings:
        sets = {
            "validation": len(data.validation_labels),
            "selection": len(data.selection_labels),
            "test": len(data.test_labels),
        }
        own = partition.validation_sizes
        columns = {"own validation": [str(size) for size in own.tolist()]} if own.any() else {}
        held = partition.settings.get("held_out") or {}
        if any(map(sum, held.values())):
            columns["held out for the server"] = [str(sum(held.get(name, []))) for name in partition.names]
        classes = class_names(partition)
        counts = partition.label_counts() if classes else None
        return cls(sets, classes, counts, columns, unchecked=partition.unchecked)


@dataclass(frozen=True)
class Story:
    """metrics: of metrics.json. rows: the history. weights: over rounds, [R + 1, N], empty of a method without any.
    test: None without classes. what: is classified. without: test accuracy or R2 of the run without each client, [N],
    nan where that was not tried. remarks: what a person should know besides. command: what makes the run again. given:
    the settings that differ from the defaults, where the record cannot say. who: what a client is called. repeatable:
    whether `train.replicates` can be had."""

    record: Record
    metrics: dict[str, Any]
    clients: Clients
    rows: Rows
    weights: np.ndarray
    test: Classification | None = None
    what: str = "label"
    holdings: Holdings | None = None
    evidence: Evidence = field(default_factory=Evidence)
    without: np.ndarray | None = None
    remarks: list[str] = field(default_factory=list)
    command: str = ".venv/bin/dvc repro"
    given: dict[str, Any] | None = None
    who: str = "client"
    repeatable: bool = True

    @property
    def learned(self) -> bool:
        """Whether the method has moved the weights."""
        return len(self.weights) > 1 and not np.allclose(self.weights[0], self.weights[-1])

    @property
    def settled(self) -> bool | None:
        """Whether the weights have; None of a method that does not say."""
        return self.metrics.get("weights_settled")

    @property
    def suspects(self) -> list[int]:
        """Clients to look at; none while learned weights still move, and none under fixed ones."""
        return self.clients.suspects if self.ranked else []

    @property
    def light(self) -> list[int]:
        """Likewise, those of low weight against whom nothing else speaks."""
        return [i for i in self.clients.light if i not in self.suspects] if self.ranked else []

    @property
    def ranked(self) -> bool:
        """Whether the weights say anything about the clients."""
        return self.learned and self.settled is not False
