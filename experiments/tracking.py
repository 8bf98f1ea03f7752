"""Cells in the tracker: one parent run per profile, one child per cell, as the results file is now: telling it again
doubles nothing, replaces what has changed, and removes what is no cell any more."""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.cells import Cell, Result, in_use, read
from pipeline.config.sections import Tracking
from pipeline.config.spec import flat
from pipeline.tracking.live import log_points
from pipeline.tracking.metrics import Point
from pipeline.tracking.store import Store, connect, prepare


def publish(cells: Sequence[Cell], results: Path, pages: Path, name: str, root: Path) -> None:
    """The finished cells under the parent `name`, with the page's files on the parent. A tracker that cannot be reached
    costs a warning."""
    try:
        prepare()
        store = connect(Tracking(experiment=name), root)
        parent = _run(store, name, name, {})
        finished = [(cell, found) for cell in cells if (found := read(cell, results))]
        wanted = {(cell.name, _digest(found)): (cell, found) for cell, found in finished}
        for run in _runs(store):
            sent = (run.data.tags.get("cell"), run.data.tags.get("content"))
            if sent in wanted and run.info.status != "RUNNING":
                del wanted[sent]
            elif sent[0]:
                store.client.delete_run(run.info.run_id)
        for cell, found in wanted.values():
            _child(store, parent, cell, found)
        store.client.log_artifacts(parent, str(pages), "page")
        store.client.set_terminated(parent, "FINISHED")
    except Exception as error:
        line = str(error).splitlines()[0] if str(error) else ""
        print(
            f"warning: the tracker did not receive the page ({type(error).__name__}: {line}); the page is complete.",
            file=sys.stderr,
        )


def _runs(store: Store) -> list[Any]:
    runs, token = [], None
    while True:
        found = store.client.search_runs([store.experiment_id], max_results=1000, page_token=token)
        runs += found
        token = found.token
        if not token:
            return runs


def _run(store: Store, name: str, cell: str, tags: dict[str, str]) -> str:
    """The run of that name, opened if there is none."""
    for run in _runs(store):
        if run.data.tags.get("parent") == cell:
            return str(run.info.run_id)
    return str(store.client.create_run(store.experiment_id, run_name=name, tags={"parent": cell, **tags}).info.run_id)


def _digest(found: Result) -> str:
    return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()[:16]


def _child(store: Store, parent: str, cell: Cell, found: Result) -> None:
    from mlflow.entities import Param

    label = f"{cell.row}, {cell.table}, p {cell.participation:g}, seed {cell.seed}"
    tags = {"mlflow.parentRunId": parent, "cell": cell.name, "table": cell.table, "row": cell.row}
    tags["content"] = _digest(found)
    tags |= {f"machine.{key}": str(value) for key, value in found["machine"].items()}
    run_id = str(store.client.create_run(store.experiment_id, run_name=label, tags=tags).info.run_id)
    params = [Param(key, str(value)[:6000]) for key, value in flat(in_use(cell.settings)).items()]
    for start in range(0, len(params), 100):
        store.client.log_batch(run_id, params=params[start : start + 100])
    log_points(store, run_id, points(found))
    store.client.set_terminated(run_id, "FAILED" if "failed" in found else "FINISHED")


def points(found: Result) -> list[Point]:
    """Curves and final figures as metrics; of the toy's repetitions, their mean."""
    curve = found.get("curve", {})
    if "stationarity" in found:
        several = {name: found[name] for name in ("upper_value", "stationarity")}
        means = {name: [sum(now) / len(now) for now in zip(*each, strict=True)] for name, each in several.items()}
        curve = {"round": found["round"], **means}
    rounds = [int(value) for value in curve.get("round", [])]
    result: list[Point] = [
        (name, float(value), step)
        for name, values in curve.items()
        if name != "round"
        for step, value in zip(rounds, values, strict=True)
    ]
    last = rounds[-1] if rounds else 0
    outcome = found.get("outcome", {})
    result += [(name, float(v), last) for name, v in outcome.items() if isinstance(v, float) and name not in curve]
    result += [(f"client_weight/{i:02d}", float(v), last) for i, v in enumerate(outcome.get("weights", []))]
    result += [(f"cost/{name}", float(v), last) for name, v in found.get("costs", {}).items()]
    return [point for point in result if math.isfinite(point[1])]
