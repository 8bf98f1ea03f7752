"""What a served model takes, and what it answers: raw images, the rows of a table, arrays of one shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.data.own import features

if TYPE_CHECKING:
    from mlflow.types import Schema
    from torch import Tensor


@dataclass(frozen=True)
class Outputs:
    """What the network's outputs are: the logits of classes, numbers in a unit of their own (y - shift) / spread, or
    features. names: of the columns that a request is answered with; none: numbered."""

    kind: str
    names: Sequence[str] = ()
    shift: float = 0.0
    spread: float = 1.0


@dataclass(frozen=True)
class RequestForm:
    """note: for `served.py`. inputs: two samples as the network takes them. schema, example: of a request. says: the
    form in words; artifacts: further files that the served model needs."""

    note: dict[str, Any]
    inputs: Tensor = field(repr=False)
    schema: Schema
    example: Any
    says: dict[str, str]
    artifacts: dict[str, str] = field(default_factory=dict)


def raw_images(example: np.ndarray) -> RequestForm:
    """Images of any size. example: at least two, uint8 [B, H, W, C], of the size that the network was trained on."""
    import torch
    from mlflow.types import Schema, TensorSpec

    inputs = torch.tensor(example).permute(0, 3, 1, 2) / 255.0
    return RequestForm(
        {"kind": "images", "channels": inputs.shape[1], "height": inputs.shape[2], "width": inputs.shape[3]},
        inputs,
        # Of any size, and of any kind of number: no tensor of one shape and type describes that.
        Schema([TensorSpec(np.dtype("O"), (-1,))]),
        example[:2],
        {"input": f"images [B, H, W, C] of any size; trained on {list(example.shape[1:])}"},
    )


def own_samples(record: dict[str, Any]) -> RequestForm:
    """Rows of a table, or arrays, by the record of their preprocessing (`pipeline.data.own.preprocessing`)."""
    import torch
    from mlflow.types import ColSpec, Schema, TensorSpec
    from mlflow.types.schema import AnyType

    example: Any
    if record["kind"] == "table":
        columns = record["columns"]
        example, X = _rows(columns), features.of_table(record, _rows(columns), known=True)[:, :, None, None]
        # Of any type: MLflow would refuse a column of whole numbers where others have fractions, and one without any
        # value. Optional: an absent column is refused by `features`, in one line.
        schema = Schema([ColSpec(AnyType(), column["name"], required=False) for column in columns])
        says = {column["name"]: _in_words(column) for column in columns}
    else:
        example = _arrays(record)
        X = features.of_arrays(record, example)
        schema = Schema([TensorSpec(example.dtype, (-1, *record["shape"]))])
        says = {"input": f"arrays [B, {', '.join(map(str, record['shape']))}]"}
    return RequestForm(
        {"kind": record["kind"], "record": {name: value for name, value in record.items() if name != "target"}},
        torch.tensor(X),
        schema,
        example,
        says,
        {"features": str(Path(features.__file__))},
    )


def _rows(columns: Sequence[dict[str, Any]]) -> Any:
    """Two rows made up of means and categories: no row of a client travels with the model."""
    import pandas as pd

    rows: dict[str, list[Any]] = {}
    for column in columns:
        if column["kind"] == "category":
            rows[column["name"]] = [column["values"][0], column["values"][-1]]
            continue
        cells = [column["mean"], column["mean"] + column["deviation"]]
        if column.get("date"):
            rows[column["name"]] = [str(np.datetime64(int(day), "D")) for day in cells]
        else:
            rows[column["name"]] = [float(f"{cell:.4g}") for cell in cells]
    empty = next((column["name"] for column in columns if column["missing"]), None)
    if empty is not None and len(columns) > 1:
        rows[empty][1] = None
    return pd.DataFrame(rows)


def _in_words(column: dict[str, Any]) -> str:
    missing = ", may be empty" if column["missing"] else ""
    if column["kind"] == "number":
        return ("date" if column.get("date") else "number") + missing
    values = column["values"]
    return "one of " + ", ".join(values[:20]) + (", ..." if len(values) > 20 else "") + missing


def _arrays(record: dict[str, Any]) -> np.ndarray:
    """The mean sample, and one a deviation above it; of the dtype that the user's samples have."""
    mean, deviation = (np.array(record[name]) for name in ("mean", "deviation"))
    pair = np.stack([np.broadcast_to(part, record["shape"]) for part in (mean, mean + deviation)])
    return pair.astype(record.get("dtype", "float64"))
