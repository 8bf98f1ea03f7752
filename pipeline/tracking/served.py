"""What answers a request to a served model. MLflow copies this file into the model's folder and runs it there, on
machines that have none of our code: it imports nothing of ours.

Beside it lie the trained network and `form.json`, which says what the network takes and what its answers are called:

| key | what |
|---|---|
| `kind` | `images`; another kind of raw samples is another function in `PREPARE` |
| `channels`, `height`, `width` | of the images that the network was trained on |
| `answers` | `probabilities` of the classes, or `features` |
| `names` | of the answers, one per column |

The seam for tables: their `form.json` holds the record of preprocessing under `record`, and their entry of `PREPARE`
turns a frame into the network's input by it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlflow.pyfunc
import numpy as np
import pandas as pd
import torch
from mlflow.models import set_model

CHUNK = 256
"""Samples per pass of the network."""
GREY = (0.299, 0.587, 0.114)
"""Parts of red, green and blue (ITU-R BT.601)."""


def images(form: dict[str, Any], given: Any) -> torch.Tensor:
    """Raw images as the network takes them, float32 [B, C, height, width] in [0, 1].

    given: [B, H, W, C], [B, H, W], or images of several sizes, each [H, W, C] or [H, W], in a list or an array of
    objects. Whole numbers are 0..255, floats lie in [0, 1]. One, three or four channels (the fourth is dropped); colour
    becomes grey, and grey colour, as the network wants it. [B, C, H, W] is taken too if its channels are the network's.
    """
    rows = list(given.to_numpy()[:, 0]) if isinstance(given, pd.DataFrame) else list(given)
    if not rows:
        raise ValueError("there is no image in the request; send a list of images [H, W, C]")
    return torch.cat([_image(form, np.asarray(row.tolist() if isinstance(row, np.ndarray) else row)) for row in rows])


def _image(form: dict[str, Any], image: np.ndarray) -> torch.Tensor:
    if image.ndim == 2:
        image = image[:, :, None]
    if image.ndim == 3 and image.shape[2] not in (1, 3, 4) and image.shape[0] == form["channels"]:
        image = np.moveaxis(image, 0, 2)
    if image.ndim != 3 or image.shape[2] not in (1, 3, 4):
        raise ValueError(
            f"an image has the shape {list(image.shape)}; send [H, W, C] with 1, 3 or 4 channels, or [H, W]"
        )
    if image.dtype.kind not in "biuf" or not np.isfinite(image).all():
        raise ValueError("an image holds something that is not a finite number")
    top = 1.0 if image.dtype.kind == "f" else 255.0
    if image.min() < 0 or image.max() > top:
        raise ValueError(
            f"an image holds {image.min():g} to {image.max():g}; whole numbers lie in 0..255, floats in [0, 1]"
        )
    X = torch.tensor(image / top, dtype=torch.float32)[:, :, :3].permute(2, 0, 1)[None]
    if form["channels"] == 1 and X.shape[1] == 3:
        X = (X * torch.tensor(GREY)[:, None, None]).sum(1, keepdim=True)
    X = X.expand(1, form["channels"], *X.shape[2:])
    size = (form["height"], form["width"])
    if X.shape[2:] != size:
        X = torch.nn.functional.interpolate(X, size, mode="bilinear", antialias=True, align_corners=False)
    return X.clamp(0, 1)


PREPARE = {"images": images}


class Served(mlflow.pyfunc.PythonModel):
    """Raw samples in, a frame out: a row per sample, a column per class with its probability."""

    # MLflow would check the samples by type hints, which know no images, and warns of a method without any.
    _skip_type_hint_validation = True

    def load_context(self, context: Any) -> None:
        self.form = json.loads(Path(context.artifacts["form"]).read_text(encoding="utf-8"))
        network = Path(context.artifacts["network"])
        exported = network.suffix == ".pt2"
        self.network = torch.export.load(network).module() if exported else torch.load(network, weights_only=False)

    def predict(self, context, model_input, params=None):  # type: ignore[no-untyped-def]
        X = PREPARE[self.form["kind"]](self.form, model_input)
        with torch.no_grad():
            answers = torch.cat([self.network(part) for part in X.split(CHUNK)])
        if self.form["answers"] == "probabilities":
            answers = answers.softmax(1)
        return pd.DataFrame(answers.numpy(), columns=self.form["names"])


set_model(Served())
