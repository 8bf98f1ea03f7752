"""A database with all its tables, copied for each test: creating one takes MLflow seconds."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pipeline.tracking.store import prepare


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    prepare()
    from mlflow import MlflowClient

    path = tmp_path_factory.mktemp("store") / "mlflow.db"
    MlflowClient(f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture
def project(tmp_path: Path, empty_store: Path) -> Path:
    """A project folder whose tracker is ready."""
    shutil.copyfile(empty_store, tmp_path / "mlflow.db")
    return tmp_path
