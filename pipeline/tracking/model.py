"""The trained network with its preprocessing, in MLflow's own form: a folder on disk that one line of MLflow loads, and
that takes what the user has."""

from __future__ import annotations

import copy
import io
import json
import logging
import shutil
import tempfile
import warnings
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor, nn

PACKAGES = ("mlflow", "numpy", "pandas", "torch")


def save_model(network: nn.Module, folder: Path, example: np.ndarray, names: Sequence[str] = ()) -> None:
    """Write `network` (float images [B, C, H, W] in [0, 1] -> logits [B, classes]) as an MLflow model for raw images.

    `mlflow.pyfunc.load_model(folder).predict(images)` takes images [H, W, C] of any size, uint8 or float, and returns a
    frame with the probability of every class (`pipeline.tracking.served`). example: at least two raw images, uint8
    [B, H, W, C], of the size that the network was trained on. names: of the classes; none: the network answers
    features, which are numbered.

    The network itself is `artifacts/network.pt2` in the folder (torch.export), which needs neither our code nor
    unpickling to be loaded. One that cannot be exported (data-dependent control flow) is pickled as
    `artifacts/network.pt`; loading that needs the code of its class.
    """
    from pipeline.tracking.store import prepare

    prepare()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of MLflow about its own parts, at import and while saving
        import mlflow.pyfunc
        import torch
        from mlflow.models import ModelSignature
        from mlflow.types import ColSpec, DataType, Schema, TensorSpec

        logging.getLogger("mlflow").setLevel(logging.ERROR)
        network = copy.deepcopy(network).float().cpu().eval()
        images = torch.tensor(example).permute(0, 3, 1, 2) / 255.0
        with torch.no_grad():
            columns = list(names) or [f"feature {i}" for i in range(network(images).shape[1])]
        form = {"kind": "images", "channels": images.shape[1], "height": images.shape[2], "width": images.shape[3]}
        form |= {"answers": "probabilities" if names else "features", "names": columns}
        partial = folder.with_name(folder.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        with tempfile.TemporaryDirectory() as scratch:
            saved = _save_network(network, images, Path(scratch))
            note = Path(scratch) / "form.json"
            note.write_text(json.dumps(form, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
            mlflow.pyfunc.save_model(
                str(partial),
                python_model=str(Path(__file__).with_name("served.py")),
                artifacts={"network": str(saved), "form": str(note)},
                # Of any size, and of any kind of number: no tensor of one shape and type describes that.
                signature=ModelSignature(
                    inputs=Schema([TensorSpec(np.dtype("O"), (-1,))]),
                    outputs=Schema([ColSpec(DataType.float, name) for name in columns]),
                ),
                input_example=example[:2],
                metadata={"input": f"images [B, H, W, C] of any size; trained on {list(example.shape[1:])}"},
                # Given, not inferred: inference imports the model in a new process, six seconds or so.
                pip_requirements=[f"{name}=={version(name).split('+')[0]}" for name in PACKAGES],
            )
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)


def _save_network(network: nn.Module, images: Tensor, folder: Path) -> Path:
    import torch

    written = io.BytesIO()  # torch's own writer does not say what a full disk says
    try:
        shapes = ({0: torch.export.Dim.DYNAMIC},)
        exported = torch.export.export(network, (images,), dynamic_shapes=shapes)
        path = folder / "network.pt2"
        torch.export.save(exported, written)
    except Exception:  # whatever the exporter does not understand
        path, written = folder / "network.pt", io.BytesIO()
        torch.save(network, written)
    path.write_bytes(written.getbuffer())
    return path


def no_model(folder: Path, reason: str) -> None:
    """The folder without a model in it, since DVC expects one."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "note.txt").write_text(reason + "\n")
