"""The trained network in MLflow's own form: a folder on disk that one line of MLflow loads."""

from __future__ import annotations

import copy
import logging
import shutil
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from torch import nn


def save_model(network: nn.Module, folder: Path, example: np.ndarray) -> None:
    """Write `network` (float images [B, C, H, W] in [0, 1] -> logits [B, classes]) as an MLflow model.

    example: a few images, at least two (of a batch of one, the exporter would take the size as fixed).

    Format pt2 (torch.export), because it needs neither our code nor unpickling to be loaded, and both
    `mlflow.pytorch.load_model(folder)(tensor)` and `mlflow.pyfunc.load_model(folder).predict(array)` work
    with any batch size. Its price: the loaded network has no .eval() and stays on the CPU. A network that
    cannot be exported (data-dependent control flow) is pickled; loading that one needs the code of its class.
    """
    from pipeline.tracking.store import prepare

    prepare()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of MLflow about its own parts, at import
        import mlflow.pyfunc
        import mlflow.pytorch
        import torch
        from mlflow.models import ModelSignature
        from mlflow.types import Schema, TensorSpec

    logging.getLogger("mlflow").setLevel(logging.ERROR)
    network = copy.deepcopy(network).float().cpu().eval()
    images = np.ascontiguousarray(example, dtype=np.float32)
    with torch.no_grad():
        classes = network(torch.from_numpy(images)).shape[1]
    images_form = TensorSpec(np.dtype("float32"), (-1, *images.shape[1:]), name=None)
    logits_form = TensorSpec(np.dtype("float32"), (-1, classes), name=None)
    partial = folder.with_name(folder.name + ".partial")
    for form in ("pt2", "pickle"):
        shutil.rmtree(partial, ignore_errors=True)
        try:
            mlflow.pytorch.save_model(
                network,
                str(partial),
                signature=ModelSignature(inputs=Schema([images_form]), outputs=Schema([logits_form])),
                input_example=images,
                serialization_format=form,
                # Given, not inferred: inference imports the model in a new process, six seconds or so.
                pip_requirements=[f"{name}=={version(name).split('+')[0]}" for name in ("mlflow", "numpy", "torch")],
            )
            break
        except Exception:
            if form == "pickle":
                raise
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)


def no_model(folder: Path, reason: str) -> None:
    """The folder without a model in it, since DVC expects one."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "note.txt").write_text(reason + "\n")
