"""The trained network with its preprocessing, in MLflow's own form: a folder on disk that one line of MLflow loads, and
that takes what the user has."""

from __future__ import annotations

import copy
import io
import json
import logging
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.tracking.request_forms import Outputs, RequestForm

if TYPE_CHECKING:
    from torch import Tensor, nn

PACKAGES = ("mlflow", "numpy", "pandas", "torch")
_NOT_EXPORTED = (
    "torch.export cannot take the network, and a pickle runs code when it is loaded: models/mlflow holds no model."
    " Fix: a forward without branches on data; or tracking.pickle: true, then dvc repro --force evaluate."
)


def save_model(
    network: nn.Module, folder: Path, form: Callable[[], RequestForm], answers: Outputs, pickled: bool = False
) -> None:
    """Write `network` as an MLflow model that takes raw samples: what `form` says (`pipeline.tracking.request_forms`).

    `mlflow.pyfunc.load_model(folder).predict(samples)` returns a frame with a row per sample: the probability of every
    class, or the number (`pipeline.tracking.served`).

    The network itself is `artifacts/network.pt2` in the folder (torch.export), which needs neither our code nor
    unpickling to be loaded. One that cannot be exported (data-dependent control flow) is left out, with a note; if
    `pickled`, it is `artifacts/network.pt`, and loading that needs the code of its class and trust in its writer.
    """
    from pipeline.tracking.store import prepare

    prepare()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of MLflow about its own parts, at import and while saving
        import mlflow.pyfunc
        import torch
        from mlflow.models import ModelSignature
        from mlflow.types import ColSpec, DataType, Schema

        logging.getLogger("mlflow").setLevel(logging.ERROR)
        network, takes = copy.deepcopy(network).float().cpu().eval(), form()
        with torch.no_grad():
            columns = list(answers.names) or [f"feature {i}" for i in range(network(takes.inputs).shape[1])]
        kind = DataType.double if answers.kind == "numbers" else DataType.float
        note = takes.note | {"answers": answers.kind, "names": columns}
        note |= {"shift": answers.shift, "spread": answers.spread}
        partial = folder.with_name(folder.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        with tempfile.TemporaryDirectory() as scratch:
            saved = _save_network(network, takes.inputs, Path(scratch), pickled)
            if saved is None:
                print(f"note: {_NOT_EXPORTED}", file=sys.stderr)
                no_model(folder, _NOT_EXPORTED)
                return
            written = Path(scratch) / "form.json"
            written.write_text(json.dumps(note, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
            try:
                mlflow.pyfunc.save_model(
                    str(partial),
                    python_model=str(Path(__file__).with_name("served.py")),
                    artifacts={"network": str(saved), "form": str(written), **takes.artifacts},
                    signature=ModelSignature(
                        inputs=takes.schema, outputs=Schema([ColSpec(kind, name) for name in columns])
                    ),
                    input_example=takes.example,
                    metadata=takes.says,
                    # Given, not inferred: inference imports the model in a new process, six seconds or so.
                    pip_requirements=[f"{name}=={version(name).split('+')[0]}" for name in PACKAGES],
                )
            except BaseException:
                shutil.rmtree(partial, ignore_errors=True)
                raise
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)


def _save_network(network: nn.Module, inputs: Tensor, folder: Path, pickled: bool) -> Path | None:
    """Where it lies; None: it would be a pickle, and that is not allowed."""
    import torch

    written = io.BytesIO()  # torch's own writer does not say what a full disk says
    try:
        shapes = ({0: torch.export.Dim.DYNAMIC},)
        exported = torch.export.export(network, (inputs,), dynamic_shapes=shapes)
        path = folder / "network.pt2"
        torch.export.save(exported, written)
    except Exception:  # whatever the exporter does not understand
        if not pickled:
            return None
        path, written = folder / "network.pt", io.BytesIO()
        torch.save(network, written)
    path.write_bytes(written.getbuffer())
    return path


def no_model(folder: Path, reason: str) -> None:
    """The folder without a model in it, since DVC expects one."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "note.txt").write_text(reason + "\n")
