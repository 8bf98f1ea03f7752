"""The list of runs on MLflow's page: which columns it opens with.

MLflow keeps a view that is shared by a link in a tag of the experiment; this one shows accuracy, the weight of clean
clients, and every parameter in which some run differs from the defaults. `make ui` prints the link.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from pipeline.report.settings import changed
from pipeline.tracking.metrics import FIRST
from pipeline.tracking.store import Store

KEY = "fedbilevel"
"""Of the view, in its link: `?viewStateShareKey=fedbilevel`."""
METRICS = ("test_accuracy", "test_r2", "clean_weight", "upper_value", "stationarity")
CHOSEN = ("algorithm", "data.name", "model.name", "train.rounds", "seed")
_MOST = 24
"""Columns of parameters; a tag has room for some 5000 characters."""


def show(store: Store, params: Mapping[str, Any], metrics: Iterable[str]) -> None:
    """Columns for this run, beside those that other runs have asked for."""
    tag = f"mlflow.sharedViewState.{KEY}"
    text = store.client.get_experiment(store.experiment_id).tags.get(tag, "")
    asked = [f"metrics.`{FIRST.get(name, name)}`" for name in METRICS if name in metrics]
    asked += [f"params.`{name}`" for name in (*CHOSEN, *changed(params)) if name in params]
    columns = list(dict.fromkeys([*_columns(text), *asked]))
    found = [name for name in columns if name.startswith("metrics.")]
    found += [name for name in columns if name.startswith("params.")][:_MOST]
    wanted = json.dumps({**_STATE, "selectedColumns": found})
    if wanted != text:
        store.client.set_experiment_tag(store.experiment_id, tag, wanted)


def _columns(text: str) -> list[str]:
    """Of the view so far; none if a person has replaced it by something else."""
    try:
        found = json.loads(text)["selectedColumns"]
    except (ValueError, KeyError, TypeError):
        return []
    return [name for name in found if isinstance(name, str)] if isinstance(found, list) else []


_STATE = {
    "searchFilter": "",
    "orderByKey": "attributes.start_time",
    "orderByAsc": False,
    "startTime": "ALL",
    "lifecycleFilter": "Active",
    "datasetsFilter": [],
    "modelVersionFilter": "All Runs",
}
