"""The section `model` of params.yaml."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from pipeline.config.spec import Named, Section, param
from pipeline.models import MODELS


@dataclass(frozen=True)
class Model(Section):
    """The network."""

    name: Annotated[str, Named(tuple(MODELS), "your own function")] = param(
        "lenet5",
        f"{', '.join(MODELS)}, or the dotted path of your own"
        " function (channels, image_size, classes, **options) -> torch.nn.Module",
    )
    options: dict[str, Any] = param({}, "keyword arguments of the model's function")
