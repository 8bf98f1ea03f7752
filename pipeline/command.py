"""What every command does: read params.yaml, run, and answer a user's mistake in plain words."""

from __future__ import annotations

import errno
import os
import shutil
import sys
import traceback
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path

from pipeline import masking
from pipeline.config import own_code
from pipeline.data.settings import Data
from pipeline.errors import UserError
from pipeline.params import Params
from pipeline.text import clipped

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

    def stage() -> None:
        params = load_params(paths.params)
        masking.remember(params.tracking.uri)
        masking.remember(params.data.mirror)
        masking.remember(params.data.path)
        command(params, paths)

    paths = Paths.here()
    answering(stage)


def answering(command: Callable[[], None]) -> None:
    """Call it; a user's mistake ends in its message, as `run` says, and so does a disk that takes nothing. Nothing that
    is printed shows a credential."""
    debug = "--debug" in sys.argv[1:] or os.environ.get("FEDBILEVEL_DEBUG", "") not in ("", "0")
    masking.remember_environment()
    out, err = masking.Masked(sys.stdout), masking.Masked(sys.stderr)
    with redirect_stdout(out), redirect_stderr(err):
        try:
            command()
        except Exception as error:
            said = str(error) if isinstance(error, UserError) else _disk(error) or _memory(error) or _own_code(error)
            if debug or not said:
                traceback.print_exc()
            if said:
                print(f"error: {said}", file=sys.stderr)
            sys.exit(1)


def _own_code(error: Exception) -> str:
    """What to say of an error in a user's own code: its last line there; nothing of others."""
    own = [Path(folder).resolve() for folder in own_code.FOLDERS]
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = Path(frame.filename)
        if any(folder in file.parents for folder in own):
            place = f"{file.relative_to(Path.cwd().resolve())}, line {frame.lineno}, in {frame.name}"
            return f"{place}: {own_code.cause(error)}. Fix: correct it there; FEDBILEVEL_DEBUG=1 shows the traceback."
    return ""


_NO_MEMORY = ("can't allocate memory", "out of memory", "unable to allocate")


def _memory(error: BaseException | None) -> str:
    """What to say of an error that came of too little memory, of the machine or of a GPU; nothing of others."""
    while error is not None:
        text = " ".join(str(error).split())
        if isinstance(error, MemoryError) or any(words in text.lower() for words in _NO_MEMORY):
            return (
                f"out of memory ({masking.masked(text)[:160] or 'no more to be had'}). Fix: a smaller"
                " federation.batch_size, fewer clients or samples, or a smaller network; then run it again."
            )
        error = error.__cause__ or error.__context__
    return ""


_DISK = {
    errno.ENOSPC: "free some space there",
    errno.EDQUOT: "free some space there, or have the quota raised",
    errno.EFBIG: "raise the limit on the size of files (ulimit -f)",
    errno.EROFS: "run where files can be written",
    errno.EACCES: "make it readable and writable for you",
    errno.EPERM: "make it readable and writable for you",
    errno.EISDIR: "move the folder away that lies in place of that file",
    errno.ENOTDIR: "move the file away that lies in place of a folder",
    errno.EEXIST: "move the file away that lies in place of a folder",
    errno.ELOOP: "remove the links that lead in a circle",
    errno.ENAMETOOLONG: "shorten its name",
    errno.EMFILE: "raise the limit on open files (ulimit -n)",
    errno.EIO: "check the disk",
}


def _disk(error: BaseException | None) -> str:
    """What to say of an error that the disk is to blame for, or that came of one; nothing of others."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _DISK:
            place = error.filename2 or error.filename  # of a copy the second one is written
            if error.errno == errno.ENOSPC and not place:
                place = _fullest()
            what = f"{clipped(str(place), 300)}: " if place else ""
            return f"{what}{os.strerror(error.errno)}. Fix: {_DISK[error.errno]}, then run it again."
        error = error.__cause__ or error.__context__
    return ""


def _fullest() -> Path:
    """Of the folders that we write to, the one with the least room: writing to an open file fails without its name."""
    places = (Path.cwd(), Paths.here().root, Path(os.environ.get("TMPDIR", "/tmp")))
    return min(filter(Path.is_dir, places), key=lambda place: shutil.disk_usage(place).free)
