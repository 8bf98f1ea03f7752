"""What a network answers to many images: pass by pass, so that memory stays bounded."""

from __future__ import annotations

import torch
from torch import Tensor

from pipeline.data.federated import FederatedData
from pipeline.models import FlatModel

CHUNK = 1000
"""Images per forward pass."""


def logits(model: FlatModel, data: FederatedData, w: Tensor, images: Tensor, *, scaled: bool = False) -> Tensor:
    """[M, classes], without derivatives and never in mixed precision; images [M, ...] as stored, or scaled already."""
    model = model.exact
    with torch.no_grad():
        parts = (part if scaled else data.scaled(part) for part in images.split(CHUNK))
        return torch.cat([model.apply(w, part) for part in parts])
