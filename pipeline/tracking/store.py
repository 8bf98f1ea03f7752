"""Where runs are recorded, and a client for it. The one door to MLflow."""

from __future__ import annotations

import fcntl
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.config.sections import Tracking

if TYPE_CHECKING:
    from mlflow import MlflowClient

_SQLITE = "sqlite:///"

_ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    # A tracker that does not answer is given up after seconds; MLflow's own defaults wait for many minutes.
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    "MLFLOW_LOGGING_LEVEL": "CRITICAL",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}


@dataclass(frozen=True)
class Store:
    """An open tracking store: its client and the experiment's id."""

    uri: str
    client: MlflowClient
    experiment_id: str


def prepare() -> None:
    """Import MLflow, quiet and with short time-outs. What the user's environment says wins."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    import mlflow  # noqa: F401

    for logger in ("mlflow", "alembic", "urllib3.connectionpool"):
        logging.getLogger(logger).setLevel(logging.CRITICAL)  # we report a failure ourselves, in a line


def resolve_uri(tracking: Tracking, root: Path) -> str:
    """params.yaml, else the environment, else a database in the project.

    A relative sqlite path means the project's root, not the folder this process happens to run in: DVC runs
    experiments in temporary copies that are deleted afterwards.
    """
    uri = tracking.uri or os.environ.get("MLFLOW_TRACKING_URI") or f"{_SQLITE}mlflow.db"
    if uri.startswith(_SQLITE):
        return f"{_SQLITE}{root.resolve() / uri.removeprefix(_SQLITE)}"
    return uri


def connect(tracking: Tracking, root: Path) -> Store:
    """Open the store, creating database and experiment if need be. Raises what MLflow raises."""
    prepare()
    from mlflow import MlflowClient

    uri = resolve_uri(tracking, root)
    if not uri.startswith(_SQLITE):
        client = MlflowClient(tracking_uri=uri)
        return Store(uri, client, _experiment(client, tracking.experiment, None))
    # A client creates the tables of a new database; of two processes that do so at once one dies. The lock lies beside
    # the database, which several clones may share.
    with _locked(Path(f"{uri.removeprefix(_SQLITE)}.lock")):
        client = MlflowClient(tracking_uri=uri)
        return Store(uri, client, _experiment(client, tracking.experiment, (root / "mlartifacts").resolve()))


def _experiment(client: MlflowClient, name: str, artifacts: Path | None) -> str:
    """The id of the experiment.

    artifacts: where a new one keeps its files; None = the server decides. MLflow's default would be a folder
    in the working directory of whichever process came first.
    """
    from mlflow.exceptions import MlflowException

    found = client.get_experiment_by_name(name)
    if found is None:
        try:
            return client.create_experiment(
                name,
                artifact_location=artifacts and artifacts.as_uri(),
                # The page then opens on runs, curves and models rather than on language-model traces.
                tags={"mlflow.experimentKind": "custom_model_development"},
            )
        except MlflowException:  # another process was quicker
            found = client.get_experiment_by_name(name)
            if found is None:
                raise
    if found.lifecycle_stage == "deleted":
        client.restore_experiment(found.experiment_id)
    return found.experiment_id


@contextmanager
def _locked(path: Path, wait: float = 60.0) -> Iterator[None]:
    """One process at a time; TimeoutError rather than waiting for ever on a stuck one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + wait
    with path.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{path} is held by another process") from None
                time.sleep(0.05)
        yield
