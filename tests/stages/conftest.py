"""One finished `dvc repro`, made once for all test processes; every test that changes something works on a copy."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.stages.project import BIN, Project


@pytest.fixture(scope="session")
def finished(shared_folder: Path, making: Callable[[str], AbstractContextManager[None]]) -> Project:
    """A project after its first `dvc repro`; to be looked at, not changed."""
    if not (BIN / "dvc").exists():
        pytest.skip("needs dvc in the environment")
    project, output = Project(shared_folder / "a project"), shared_folder / "first_output.txt"
    with making("project"):
        if not output.exists():
            output.write_text(Project.fresh(project.folder).dvc("repro"))
    return project


@pytest.fixture(scope="session")
def first_output(finished: Project) -> str:
    """What the first `dvc repro` printed."""
    return (finished.folder.parent / "first_output.txt").read_text()


@pytest.fixture
def project(finished: Project, empty_store: Path, tmp_path: Path) -> Project:
    """A copy of the finished project, free to be changed."""
    return finished.copy(tmp_path / "a project", empty_store)
