"""The trained network of a federated run as an MLflow model, as a simulated run hands it over: it takes what the
participants' files hold, the columns by their names where the reader gives them, and scales it as in training."""

from __future__ import annotations

import shutil
import sys
from functools import partial
from pathlib import Path
from typing import Any

from pipeline.data.federated import FederatedData
from pipeline.data.scaling import Scaling
from pipeline.problems.base import PersonalNetworks, Variables
from pipeline.problems.images import served_network
from pipeline.tracking.model import save_model
from pipeline.tracking.request_forms import Outputs, RequestForm, own_samples, raw_images


def export(folder: Path, problem: Any, variables: Variables, columns: list[str], shape: list[int]) -> None:
    """Into `mlflow` of the folder; without MLflow, a line instead. shape: of one sample as the reader gives it. Under
    local heads the model is the body, which answers features."""
    data = problem.data
    if isinstance(problem, PersonalNetworks):
        network, answers = problem.model.body_with(variables["x"]), Outputs("features")
    else:
        network = served_network(problem, variables)
        answers = Outputs("probabilities", [str(label) for label in range(data.classes)])
    try:
        save_model(network, folder / "mlflow", partial(taken, data, columns, shape), answers)
    except ImportError as error:
        shutil.rmtree(folder / "mlflow", ignore_errors=True)  # of an earlier run
        print(
            f"federation: models/ holds no MLflow model ({error}). Fix: pip install 'fedbilevel[federation]'.",
            file=sys.stderr,
        )


def taken(data: FederatedData, columns: list[str], shape: list[int]) -> RequestForm:
    """Rows with these columns, else arrays of this shape; images of whole numbers as images of any size."""
    if data.scaling is None:
        return raw_images(data.test_images[:2].permute(0, 2, 3, 1).contiguous().cpu().numpy())
    return own_samples(record_of(data.scaling, columns, shape))


def record_of(scaling: Scaling, columns: list[str], shape: list[int]) -> dict[str, Any]:
    """How a sample becomes inputs, for `pipeline.data.own.features`."""
    names = {"mean": scaling.shift, "deviation": scaling.spread, "limit": scaling.limit}
    values = {name: tensor.flatten().tolist() for name, tensor in names.items()}
    if len(shape) > 1:
        return {"kind": "arrays", "unit": "images", "shape": shape} | values
    if len(columns) != shape[0]:
        return {"kind": "arrays", "unit": "vectors", "shape": shape, "missing": [False] * shape[0]} | values
    known = [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)]
    numbers = [{"name": name, "kind": "number", "missing": False} for name in columns]
    return {"kind": "table", "columns": [column | more for column, more in zip(numbers, known, strict=True)]}
