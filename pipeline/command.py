"""What every command does: read params.yaml, run, and answer a user's mistake in plain words."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from pipeline.data.settings import Data
from pipeline.errors import UserError
from pipeline.params import Params

PARENT = os.getppid()
"""Who started this command, read before the slow imports: it may be gone by the time they are done."""


@dataclass(frozen=True)
class Paths:
    """Where everything lies, relative to the folder the command runs in (DVC's workspace).

    root: the project itself, also when DVC runs an experiment in a temporary copy; what must outlive the copy (tracker,
    resume data) lies there.
    """

    root: Path

    params = Path("params.yaml")
    checked = Path("data/checked.txt")
    source = Path("data/source")
    partition = Path("data/federated/partition.npz")
    partition_summary = Path("data/federated/summary.txt")
    model = Path("models/model.pt")
    training = Path("models/training.json")
    mlflow_model = Path("models/mlflow")
    results = Path("results")
    sweep = Path("results/sweep")

    @staticmethod
    def settings(stage: str) -> Path:
        return Path("data/settings") / f"{stage}.json"

    @staticmethod
    def raw(dataset: str) -> Path:
        return Path("data/raw") / dataset

    @property
    def resume(self) -> Path:
        return self.root / ".resume"

    def from_root(self, place: str | None) -> str | None:
        """A relative folder means the project's, also in the temporary copies that DVC runs experiments in."""
        return place if place is None or "://" in place else str(self.root / Path(place).expanduser())

    def placed(self, data: Data) -> Data:
        """Own data where they lie, seen from any copy of the project."""
        return replace(data, path=self.from_root(data.path))

    @classmethod
    def here(cls) -> Paths:
        return cls(root=Path(os.environ.get("DVC_ROOT", ".")).resolve())


def run(command: Callable[[Params, Paths], None]) -> None:
    """Run one stage. UserError: its message on standard error and exit code 1; anything else is our defect and shows
    its traceback. `--debug` or FEDBILEVEL_DEBUG=1 shows the traceback of both."""
    from pipeline.params.reading import load_params

    paths = Paths.here()
    answering(lambda: command(load_params(paths.params), paths))


def answering(command: Callable[[], None]) -> None:
    """Call it; a user's mistake ends in its message, as `run` says."""
    debug = "--debug" in sys.argv[1:] or os.environ.get("FEDBILEVEL_DEBUG", "") not in ("", "0")
    try:
        command()
    except UserError as error:
        if debug:
            traceback.print_exc()
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
