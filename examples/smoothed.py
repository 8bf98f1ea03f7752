"""A custom problem: client weighting whose upper level tolerates a few wrong validation labels.

    min_x f_0(w*(x)),   f_0 = cross-entropy against (1 - s) one-hot(y) + s / C        label smoothing s

In params.yaml:

    problem: examples.smoothed.SMOOTHED
    problems:
      smoothed:
        smoothing: 0.2
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from pipeline.config.spec import Section, param
from pipeline.problems.client_weighting import ClientWeighting
from pipeline.problems.forms import Form, Formulation, Given
from pipeline.problems.images import ImageBatch


@dataclass(frozen=True)
class SmoothedSettings(Section):
    """Its settings."""

    smoothing: float = param(0.1, "share of every validation label spread over all classes", ge=0, lt=1, symbol="s")


@dataclass(frozen=True)
class Smoothed(ClientWeighting):
    """As client weighting, with another upper level."""

    smoothing: float = 0.0

    def validation_loss(self, w: Tensor, batch: ImageBatch) -> Tensor:
        """f_0(w; B_0), a scalar. w: [d]."""
        X, y = batch
        return F.cross_entropy(self.model.apply(w, X), y, label_smoothing=self.smoothing)


def build(settings: SmoothedSettings, given: Given) -> Smoothed:
    """The problem on the run's network and samples."""
    return Smoothed(given.model, given.data, validation_batch=given.server_batch, smoothing=settings.smoothing)


SMOOTHED = Formulation(
    name="smoothed",
    summary="client weighting with label smoothing above",
    settings=SmoothedSettings,
    offers=(Form.SHARED_MODEL,),  # methods that take derivatives at one shared model
    build=build,
)
