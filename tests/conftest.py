"""Shared by all tests: one thread per process (pytest-xdist runs several), no tracker or telemetry by accident."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
os.environ["DVC_NO_ANALYTICS"] = "1"
for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "MLFLOW_RUN_ID", "DVC_ROOT", "DVC_STAGE"):
    os.environ.pop(name, None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest tests first: a worker that is through with its own takes short ones from the others."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same folder in every process of one test run."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(scope="session")
def making(shared_folder: Path) -> Callable[[str], AbstractContextManager[None]]:
    """`with making("thing"):` one process makes the thing, the others wait for it."""

    @contextmanager
    def making(name: str) -> Iterator[None]:
        with (shared_folder / f"{name}.lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    return making


@pytest.fixture(scope="session")
def empty_store(shared_folder: Path, making: Callable[[str], AbstractContextManager[None]]) -> Path:
    """A tracker's database with all its tables, to be copied: creating one takes MLflow seconds."""
    path = shared_folder / "empty store" / "mlflow.db"
    with making("store"):
        if not path.exists():
            from mlflow import MlflowClient

            from pipeline.tracking.store import prepare

            prepare()
            path.parent.mkdir(exist_ok=True)
            partial = path.with_name("partial.db")
            MlflowClient(f"sqlite:///{partial}").search_experiments()
            partial.rename(path)
    return path
