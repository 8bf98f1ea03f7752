"""The trained server on disk: the variables of the round that is served."""

from __future__ import annotations

import os
from pathlib import Path

import torch


def save_variables(path: Path, variables: dict[str, torch.Tensor]) -> None:
    """Tensors only, so that loading needs no trust; whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    torch.save({"variables": {name: value.cpu().clone() for name, value in variables.items()}}, partial)
    os.replace(partial, path)


def load_variables(path: Path) -> dict[str, torch.Tensor]:
    """What `save_variables` wrote, by name: such as w, and x where weights are learned."""
    return torch.load(path, weights_only=True, map_location="cpu")["variables"]
