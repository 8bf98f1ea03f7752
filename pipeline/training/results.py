"""The trained server on disk: the variables of the round that is served."""

from __future__ import annotations

from pathlib import Path

import torch

from pipeline.errors import UserError
from pipeline.training import saves


def save_variables(path: Path, variables: dict[str, torch.Tensor]) -> None:
    """Tensors only, so that loading needs no trust; whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    kept = {"variables": {name: value.cpu().clone() for name, value in variables.items()}}
    saves.write(path, lambda file: torch.save(kept, file))


def load_variables(path: Path) -> dict[str, torch.Tensor]:
    """What `save_variables` wrote, by name: such as w, and x where weights are learned. UserError if it is damaged."""
    try:
        return saves.read_tensors(path)["variables"]
    except saves.Damaged as error:
        raise UserError(f"{error}. Fix: .venv/bin/dvc repro --force train") from None
