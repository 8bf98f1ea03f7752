"""A small federation in memory: who holds what, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from pipeline import models
from pipeline.data.arrays import Samples
from pipeline.data.federated import FederatedData
from pipeline.models import FlatModel

HARMLESS = ("clean", "duplicate")
"""A copy of a clean client's samples is no reason for distrust; nor is it one for trust, beside the original."""


@dataclass(frozen=True, eq=False)
class Federation:
    """Samples are (X [m, f] or [m, C, H, W], y [m]).

    kinds: of each client, "clean", "duplicate" or what is wrong with it. wrong: the same in words, of the federation.
    selection: what tuning may look at; test: what is reported. network: name and options (`pipeline.models`).
    """

    name: str
    clients: list[Samples] = field(repr=False)
    kinds: Sequence[str]
    validation: Samples = field(repr=False)
    selection: Samples = field(repr=False)
    test: Samples = field(repr=False)
    classes: int
    network: tuple[str, dict[str, Any]]
    wrong: str

    @property
    def clean(self) -> np.ndarray:
        """Bool [N]."""
        return np.array([kind == "clean" for kind in self.kinds])

    @property
    def bad(self) -> np.ndarray:
        """Whose samples are wrong, bool [N]."""
        return np.array([kind not in HARMLESS for kind in self.kinds])

    def data(self, dtype: torch.dtype = torch.float32) -> FederatedData:
        """As tensors."""
        return FederatedData.from_arrays(
            self.clients,
            self.validation,
            self.test,
            selection=self.selection,
            classes=self.classes,
            kinds=self.kinds,
            dtype=dtype,
        )

    def model(self) -> FlatModel:
        """Its network, for its samples."""
        name, options = self.network
        channels, side = (*self.validation[0].shape[1:], 1)[:2]
        return models.build(name, channels, side, self.classes, options)
