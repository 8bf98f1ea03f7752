"""The section `model` of params.yaml."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from pipeline.config.spec import Named, Section, param
from pipeline.models import AUTOMATIC, MODELS


@dataclass(frozen=True)
class Model(Section):
    """The network."""

    name: Annotated[str, Named(("auto", *MODELS), "your own function")] = param(
        "auto",
        f"auto = by the samples: {', '.join(f'{name} for {text}' for name, text in AUTOMATIC.items())};"
        f" {', '.join(MODELS)}, or the dotted path of your own"
        " function (channels, image_size, classes, **options) -> torch.nn.Module",
    )
    options: dict[str, Any] = param({}, "keyword arguments of the model's function")
