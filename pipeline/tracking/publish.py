"""Sends the tracker everything on disk about one run; sending again duplicates nothing."""

from __future__ import annotations

import csv
import hashlib
import json
import shutil
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.config.sections import Tracking
from pipeline.errors import UserError
from pipeline.text import short_labels
from pipeline.tracking.metrics import final_points, points, read_history
from pipeline.tracking.record import Record, RunInfo, nested
from pipeline.tracking.run import log_points, open_run
from pipeline.tracking.store import Store, connect, resolve_uri
from pipeline.tracking.worker import Worker

if TYPE_CHECKING:
    from mlflow.entities import Run

ADVICE = "nothing is lost, it is all in results/. Send it later with: make publish"
TABLE = "client_weights.json"
PLOTS = (
    "client_weights.png",
    "final_weights.png",
    "accuracy_and_loss.png",
    "value_and_stationarity.png",
    "partition.png",
    "confusion_matrix.png",
)
"""Names in results/plots, in reading order."""


@dataclass(frozen=True)
class Files:
    """What `publish` reads. Of these only `record` must exist."""

    results: Path
    models: Path

    @property
    def record(self) -> Path:
        """Written by Record.save."""
        return self.models / "training.json"

    @property
    def checkpoint(self) -> Path:
        return self.models / "model.pt"

    @property
    def model(self) -> Path:
        """Written by save_model."""
        return self.models / "mlflow"

    @property
    def info(self) -> Path:
        return self.results / "mlflow_run.json"

    @property
    def partition_summary(self) -> Path:
        return self.results.parent / "data" / "federated" / "summary.txt"


def publish(
    results: Path, models: Path, tracking: Tracking, root: Path, *, seconds: float = 120.0
) -> tuple[RunInfo, str | None]:
    """Complete the run in the tracker; start one if it knows none. Ends within about `seconds`.

    Returns where the run is kept (also written to results/mlflow_run.json) and what went wrong, None if
    nothing; that has been warned of already. Raises UserError if there is no finished training on disk.
    """
    files = Files(results, models)
    if not files.record.is_file():
        raise UserError(f"{files.record} does not exist: nothing to publish yet. Fix: make run.")
    record = Record.load(files.record)
    training = hashlib.sha256(files.record.read_bytes()).hexdigest()[:16]
    before = RunInfo.load(files.info)
    known = before if before and before.run_id and before.training == training else record.run
    info = RunInfo(resolve_uri(tracking, root), tracking.experiment, known.run_id if known else None, training)
    info.save(files.info)

    def send() -> None:
        nonlocal info
        info = complete(connect(tracking, root), record, files, info, known)

    worker = Worker(ADVICE)
    worker.do(send)
    worker.close(seconds)
    return info, worker.error


def complete(store: Store, record: Record, files: Files, info: RunInfo, known: RunInfo | None) -> RunInfo:
    """Send what the tracker lacks of a finished training, into the run `known` if it has that, else into a new one.

    Returns `info` with the run's id, written beside the results as soon as it is known. Raises what MLflow raises.
    """
    run = open_run(store, record, known)
    if run.info.run_id != info.run_id:
        info = replace(info, run_id=run.info.run_id)
        info.save(files.info)
    _Publication(store, run, record, files).send()
    return info


class _Publication:
    """The parts of a run, each of which is sent only if the tracker lacks it."""

    def __init__(self, store: Store, run: Run, record: Record, files: Files) -> None:
        self.store, self.client, self.run, self.record, self.files = store, store.client, run, record, files
        self.run_id = run.info.run_id
        text = files.results / "metrics.json"
        self.metrics: dict[str, Any] = json.loads(text.read_text()) if text.is_file() else {}

    def send(self) -> None:
        self._metrics()
        self._clients()
        self._files()
        self._dataset()
        self._model()
        self._story()
        self.client.set_terminated(self.run_id, status="FINISHED")

    def _metrics(self) -> None:
        rows = read_history(self.files.results / "history.csv")
        found = points(rows, self.record.rounds) + final_points(self.metrics, self.record.rounds)
        there = {
            (name, metric.step)
            for name in self.run.data.metrics
            for metric in self.client.get_metric_history(self.run_id, name)
        }
        fresh = {(name, step): value for name, value, step in found if (name, step) not in there}
        ordered = sorted(fresh.items(), key=lambda item: item[0][1])
        log_points(self.store, self.run_id, [(name, value, step) for (name, step), value in ordered])

    def _files(self) -> None:
        others = ("sweep",)  # runs of their own
        for path in sorted(
            p for p in self.files.results.iterdir() if not p.name.startswith(".") and p.name not in others
        ):
            self.client.log_artifact(self.run_id, str(path))
        for path, folder in (
            (self.files.partition_summary, "partition"),
            (self.files.checkpoint, "checkpoint"),
        ):
            if path.is_file():
                self.client.log_artifact(self.run_id, str(path), folder)
        self.client.log_dict(self.run_id, nested(self.record.params), "params.yaml")
        self.client.log_dict(self.run_id, self.record.environment, "environment.json")

    def _clients(self) -> None:
        clients = read_clients(self.files.results)
        if not clients:
            return
        if "mlflow.loggedArtifacts" in self.run.data.tags:  # log_table would append the same lines
            columns = list(clients[0])
            content = {"columns": columns, "data": [list(row.values()) for row in clients]}
            self.client.log_dict(self.run_id, content, TABLE)
        else:
            self.client.log_table(self.run_id, {k: [row[k] for row in clients] for k in clients[0]}, TABLE)

    def _dataset(self) -> None:
        from mlflow.entities import Dataset, DatasetInput, InputTag

        if not self.record.dataset or self.run.inputs.dataset_inputs:
            return
        facts = dict(self.record.dataset)
        name, digest = str(facts.pop("name")), str(facts.pop("digest"))
        source = json.dumps({"uri": f"data/raw/{name}"})
        dataset = Dataset(name, digest[:36], "local", source, profile=json.dumps({"digest": digest, **facts}))
        self.client.log_inputs(self.run_id, [DatasetInput(dataset, [InputTag("mlflow.data.context", "training")])])

    def _model(self) -> None:
        """As mlflow.pytorch.log_model, from the folder already on disk: no torch, the same bytes again."""
        from mlflow.entities import LoggedModelOutput
        from mlflow.models import Model

        if not (self.files.model / "MLmodel").is_file():
            return
        digest = _digest(self.files.model)
        outputs = self.run.outputs.model_outputs if self.run.outputs else []
        for output in outputs:
            there = self.client.get_logged_model(output.model_id)
            if there.tags.get("digest") == digest and there.status == "READY":
                return
        logged = self.client.create_logged_model(
            self.store.experiment_id,
            name="model",
            source_run_id=self.run_id,
            tags={"digest": digest},
            params={name: str(value)[:6000] for name, value in self.record.params.items()},
            model_type=str(self.record.params.get("model.name", "network")),
        )
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch) / "model"
            shutil.copytree(self.files.model, folder)
            card = Model.load(str(folder))
            card.run_id, card.model_id, card.model_uuid = self.run_id, logged.model_id, logged.model_id
            card.artifact_path = logged.artifact_location
            card.save(str(folder / "MLmodel"))
            self.client.log_model_artifacts(logged.model_id, str(folder))
        self.client.finalize_logged_model(logged.model_id, "READY")
        self.client.log_outputs(
            self.run_id, [LoggedModelOutput(logged.model_id, step=self.metrics.get("served_round", self.record.rounds))]
        )

    def _story(self) -> None:
        """The description, on top of the run's first page."""
        clients = read_clients(self.files.results)
        page = f"#/experiments/{self.run.info.experiment_id}/runs/{self.run_id}"
        plots = {path.name for path in (self.files.results / "plots").glob("*.png")}
        text = story(self.record, self.metrics, clients, plots, page, self.run_id)
        tags = {**self.record.tags, "mlflow.note.content": text}
        if "clients_left_out" in self.metrics:
            tags["clients_left_out"] = self.metrics["clients_left_out"]
        for name, value in tags.items():
            if self.run.data.tags.get(name) != value:
                self.client.set_tag(self.run_id, name, value)


def story(
    record: Record, metrics: dict[str, Any], clients: list[dict[str, Any]], plots: set[str], page: str, run_id: str
) -> str:
    """Markdown: what this run is, where to look, who was trusted; most important first, as the page shows
    about four lines until the reader asks for more. page: address of the run's page, relative to the server.
    plots: the names among PLOTS that exist (a method without weights has no curves of them)."""
    mode = "?workflowType=machine_learning"  # else the server shows its language-model pages
    lines = [f"**{record.name}**, {record.rounds} rounds."]
    if "test_accuracy" in metrics:
        lines[0] += f" Test accuracy **{100 * metrics['test_accuracy']:.2f} %**."
    if "stationarity" in metrics:
        lines[0] += f" Upper value **{metrics['upper_value']:.4f}**, stationarity **{metrics['stationarity']:.2g}**."
    if "detection_auc" in metrics:
        lines[0] += (
            f" The clean clients hold **{100 * metrics['clean_weight']:.1f} %** of the weight; no bad client"
            f" holds more than {100 * metrics['max_noise_weight']:.2g} %."
        )
    links = [
        f"[{file.removesuffix('.png').replace('_', ' ')}]({page}/artifacts/plots/{file}{mode})"
        for file in PLOTS
        if file in plots
    ]
    lines.append(" · ".join([*links, f"[all curves]({page}/model-metrics{mode})"]))
    if clients:
        ranked = sorted(clients, key=lambda row: -row["weight"])[:20]
        rows = "\n".join(
            f"| {row['client']} | {row['kind']} | {row['labels']} | {row['samples']} | {row['weight']:.4f} |"
            for row in ranked
        )
        left_out = f"\n\n{len(clients) - 20} more in `{TABLE}`." if len(clients) > 20 else ""
        lines.append(f"| client | kind | labels | samples | weight |\n|--:|:--|:--|--:|--:|\n{rows}{left_out}")
    lines += [f"![{name}](get-artifact?path=plots/{name}&run_uuid={run_id})" for name in PLOTS[:2] if name in plots]
    return "\n\n".join(lines)


def read_clients(results: Path) -> list[dict[str, Any]]:
    """client_weights.csv, numbers as numbers, labels shortened for the eye."""
    path = results / "client_weights.csv"
    if not path.is_file():
        return []
    with path.open(newline="") as file:
        return [
            {
                **row,
                "client": int(row["client"]),
                "labels": short_labels([int(label) for label in row["labels"].split()]),
                "samples": int(row["samples"]),
                "weight": float(row["weight"]),
                **{name: float(row[name]) if row[name] else None for name in ("weight_low", "weight_high")},
            }
            for row in csv.DictReader(file)
        ]


def _digest(folder: Path) -> str:
    """Of the model's files but MLmodel, which carries the date: the same network saved again is the same model."""
    digest = hashlib.sha256()
    for path in sorted(p for p in folder.rglob("*") if p.is_file() and p.name != "MLmodel"):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()
