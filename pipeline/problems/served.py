"""The network that is handed over, and what a network answers to many images: pass by pass, so that memory stays
bounded."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pipeline.data.federated import FederatedData
from pipeline.models import FlatModel
from pipeline.problems.base import ImageProblem, NewTasks, Variables

CHUNK = 1000
"""Images per forward pass."""


def logits(model: FlatModel, data: FederatedData, w: Tensor, images: Tensor, *, scaled: bool = False) -> Tensor:
    """[M, classes], without derivatives and never in mixed precision; images [M, ...] as stored, or scaled already."""
    model = model.exact
    with torch.no_grad():
        parts = (part if scaled else data.scaled(part) for part in images.split(CHUNK))
        return torch.cat([model.apply(w, part) for part in parts])


def served_network(problem: ImageProblem, variables: Variables) -> nn.Module:
    """The network that is saved for use: images to logits; of a problem that learns a body, images to features."""
    if isinstance(problem, NewTasks):
        return problem.model.body_with(variables["x"])
    return problem.model.module_with(problem.network(variables))
