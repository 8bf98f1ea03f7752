"""What answers a request to a served model. MLflow copies this file into the model's folder and runs it there, on
machines that have none of our code: it imports nothing of ours.

Beside it lie the trained network and `form.json`, which says what the network takes and what its answers are called;
for a table and arrays also `features.py`, the code that prepared the training samples.

| key | what |
|---|---|
| `kind` | of raw samples: `images`, `table` or `arrays`; another kind is another function in `PREPARE` |
| `channels`, `height`, `width` | of the images that the network was trained on |
| `record` | how a table or arrays become features |
| `answers` | `probabilities` of the classes, `numbers`, or `features` |
| `names` | of the answers, one per column |
| `shift`, `spread` | numbers are answered as output * spread + shift |
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import mlflow.pyfunc
import numpy as np
import pandas as pd
import torch
from mlflow.exceptions import MlflowException
from mlflow.models import set_model
from mlflow.protos.databricks_pb2 import INVALID_PARAMETER_VALUE

CHUNK = 256
"""Samples per pass of the network."""
GREY = (0.299, 0.587, 0.114)
"""Parts of red, green and blue (ITU-R BT.601)."""


def images(form: dict[str, Any], given: Any, features: Any) -> torch.Tensor:
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


def table(form: dict[str, Any], given: Any, features: Any) -> torch.Tensor:
    """Rows with the user's own columns, a frame or a list of records, as the network takes them."""
    frame = given if isinstance(given, pd.DataFrame) else pd.DataFrame(given)
    return torch.tensor(features.of_table(form["record"], frame, known=True))[:, :, None, None]


def arrays(form: dict[str, Any], given: Any, features: Any) -> torch.Tensor:
    """Arrays [B, ...] of the user's own shape as the network takes them."""
    return torch.tensor(features.of_arrays(form["record"], given))


PREPARE = {"images": images, "table": table, "arrays": arrays}


class RequestRefused(MlflowException):  # type: ignore[misc]
    """The line alone: MLflow's server would put all rows of the request before it."""

    @property
    def message(self) -> str:
        return str(self)

    @message.setter
    def message(self, _: str) -> None:
        pass


class ServedModel(mlflow.pyfunc.PythonModel):  # type: ignore[misc]
    """Raw samples in, a frame out: a row per sample, a column per class with its probability, or one of numbers."""

    # MLflow would check the samples by type hints, which know no images, and warns of a method without any.
    _skip_type_hint_validation = True

    def load_context(self, context: Any) -> None:
        self.form = json.loads(Path(context.artifacts["form"]).read_text(encoding="utf-8"))
        self.features = _module(context.artifacts["features"]) if "features" in context.artifacts else None
        network = Path(context.artifacts["network"])
        exported = network.suffix == ".pt2"
        self.network = torch.export.load(network).module() if exported else torch.load(network, weights_only=False)

    def predict(self, context, model_input, params=None):  # type: ignore[no-untyped-def]
        try:
            X = PREPARE[self.form["kind"]](self.form, model_input, self.features)
        except ValueError as error:
            raise RequestRefused(str(error), INVALID_PARAMETER_VALUE) from None
        with torch.no_grad():
            answers = torch.cat([self.network(part) for part in X.split(CHUNK)])
        if self.form["answers"] == "probabilities":
            answers = answers.softmax(1)
        elif self.form["answers"] == "numbers":
            answers = answers.double() * self.form["spread"] + self.form["shift"]
        return pd.DataFrame(answers.numpy(), columns=self.form["names"])


def _module(path: str) -> Any:
    """The code beside the model, under a name that nothing else has."""
    spec = importlib.util.spec_from_file_location("served_features", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


set_model(ServedModel())
