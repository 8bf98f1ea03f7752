"""Sends the tracker everything on disk about one run; sending again duplicates nothing."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.config.sections import Tracking
from pipeline.errors import UserError
from pipeline.report.clients import read_clients
from pipeline.report.record import Record, RunInfo, nested
from pipeline.report.series import read_history
from pipeline.tracking.description import TABLE, story
from pipeline.tracking.live import log_points, open_run
from pipeline.tracking.metrics import final_points, points
from pipeline.tracking.store import Store, connect, resolve_uri
from pipeline.tracking.view import show
from pipeline.tracking.worker import Worker

if TYPE_CHECKING:
    from mlflow.entities import Run

ADVICE = "nothing is lost, it is all in results/. Send it later with: make publish"


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
        store = connect(tracking, root)
        info = complete(store, record, files, info, known)
        if tracking.register and (files.model / "MLmodel").is_file():
            register(store, info, tracking.register, tracking.alias)

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


def register(store: Store, info: RunInfo, name: str, alias: str | None) -> None:
    """The run's model as a version in the registry, unless it is one already. alias: that this version takes over."""
    from mlflow.exceptions import MlflowException

    assert info.run_id is not None
    client = store.client
    outputs = client.get_run(info.run_id).outputs
    model = client.get_logged_model(outputs.model_outputs[-1].model_id)
    try:
        client.create_registered_model(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    there = [each for each in client.search_model_versions(f"run_id='{info.run_id}'") if each.name == name]
    version = next((each for each in there if each.source == model.artifact_location), None)
    if version is None:
        version = client.create_model_version(
            name, model.artifact_location, run_id=info.run_id, model_id=model.model_id
        )
    if alias:
        client.set_registered_model_alias(name, alias, version.version)


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
        show(self.store, self.record.params, self.metrics)
        self.client.set_terminated(self.run_id, status="FINISHED")

    def _metrics(self) -> None:
        rows = read_history(self.files.results / "history.csv")
        found = points(rows, self.record.rounds, self.record.clients) + final_points(self.metrics, self.record.rounds)
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
        report = (self.files.results / "report.html").is_file()
        text = story(self.record, self.metrics, clients, plots, page, self.run_id, report)
        tags = {**self.record.tags, "mlflow.note.content": text}
        if "clients_left_out" in self.metrics:
            tags["clients_left_out"] = self.metrics["clients_left_out"]
        for name, value in tags.items():
            if self.run.data.tags.get(name) != value:
                self.client.set_tag(self.run_id, name, value)


def _digest(folder: Path) -> str:
    """Of the model's files but MLmodel, which carries the date: the same network saved again is the same model."""
    digest = hashlib.sha256()
    for path in sorted(p for p in folder.rglob("*") if p.is_file() and p.name != "MLmodel"):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()
