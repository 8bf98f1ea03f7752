from __future__ import annotations

import shutil
from pathlib import Path

import pytest


@pytest.fixture
def project(tmp_path: Path, empty_store: Path) -> Path:
    """A project folder whose tracker is ready."""
    shutil.copyfile(empty_store, tmp_path / "mlflow.db")
    return tmp_path
