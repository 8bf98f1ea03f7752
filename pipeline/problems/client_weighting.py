"""Client weighting on images: mean cross-entropy of one network, on the server's and on each client's samples.

    min_x f_0(w*(x))   s.t.  w*(x) = argmin_w sum_i x_i f_i(w),  x on the simplex

| symbol | here | shape |
|---|---|---|
| f_0 | `validation_loss` | scalar |
| f_i | `losses`, one entry per client, plus l2/2 ||w||^2 | [n] |
| N, d | `clients`, `dimension` | |
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from pipeline import randomness
from pipeline.problems.images import ImageBatch, Images


@dataclass(frozen=True)
class ClientWeighting(Images):
    """The problem on federated image data. validation_batch: size of B_0, None = the whole validation set."""

    validation_batch: int | None = None

    @property
    def oracle_weights(self) -> Tensor:
        return self.data.oracle_weights

    def draw_validation(self, stream: int) -> ImageBatch:
        if self.validation_batch is None:
            return self.data.validation_batch()
        server = torch.zeros(1, dtype=torch.int64, device=self.data.device)
        size = torch.full_like(server, len(self.data.validation_labels))
        return self.data.validation_batch(randomness.positions(stream, server, size, self.validation_batch)[0])

    def validation_loss(self, w: Tensor, batch: ImageBatch) -> Tensor:
        X, y = batch
        return F.cross_entropy(self.model.apply(w, X), y)
