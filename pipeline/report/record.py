"""What a run is, besides its numbers: name, parameters, code version, data, environment."""

from __future__ import annotations

import getpass
import hashlib
import json
import os
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pipeline.errors import UserError
from pipeline.masking import masked
from pipeline.params.decides import params_in_use
from pipeline.report.series import HISTORY, WEIGHTS
from pipeline.report.settings import run_name, sweep_name
from pipeline.report.writing import write_json

Scalar = str | int | float | bool | None

CHECKSUM = "sha256"
_PACKAGES = ("fedbilevel", "torch", "torchvision", "pytorch-lightning", "torchmetrics", "numpy")
_TOOLS = ("scikit-learn", "mlflow", "dvc")


@dataclass(frozen=True)
class RunInfo:
    """Where the tracker keeps a run.

    tracking_uri: without credentials. run_id: None = not recorded there (yet). training: which one it records.
    """

    tracking_uri: str
    experiment: str
    run_id: str | None = None
    training: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "tracking_uri", masked(self.tracking_uri))

    def save(self, path: Path) -> None:
        write_json(path, asdict(self))

    @classmethod
    def load(cls, path: Path) -> RunInfo | None:
        """None if there is no such file, or none that makes sense."""
        try:
            return cls(**json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None


@dataclass(frozen=True)
class Record:
    """Facts of a run, known when training starts; but for served_round and left_out, empty until it has ended.

    params: the sections in use under their dotted names. tags: code version, data and partition hash.
    environment: Python, libraries, device. dataset: name, digest and whatever numbers describe it.
    run: where the tracker keeps it. served_round: the round whose model is served. clients: names, where they have
    their own. left_out: of each client whose answers were left out, by name, in how many rounds. diverged: the round in
    which the run diverged, if it ended so. files: sha256 of what training leaves for the report, by name.
    """

    name: str
    rounds: int
    params: dict[str, Any]
    tags: dict[str, str]
    environment: dict[str, Any] = field(default_factory=dict)
    dataset: dict[str, Any] = field(default_factory=dict)
    run: RunInfo | None = None
    served_round: int | None = None
    clients: list[str] = field(default_factory=list)
    left_out: dict[str, int] = field(default_factory=dict)
    diverged: int | None = None
    files: dict[str, str] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        """With a checksum of the content, so that no damage passes for a fact."""
        content = json.loads(json.dumps(asdict(self), default=str))
        write_json(path, content | {CHECKSUM: _digest(content)})

    @classmethod
    def load(cls, path: Path) -> Record:
        """UserError if there is none. Ignores unknown keys."""
        if not path.is_file():
            raise UserError(f"{path} does not exist: nothing was trained. Fix: .venv/bin/dvc repro")
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            recorded = found.pop(CHECKSUM, None)
            if recorded not in (None, _digest(found)):
                raise ValueError(CHECKSUM)
            known = {f.name: found[f.name] for f in fields(cls) if f.name in found}
            if known.get("run"):
                known["run"] = RunInfo(**known["run"])
            return cls(**known)
        except (OSError, ValueError, TypeError, AttributeError, RecursionError):
            raise UserError(f"{path} is damaged. Fix: .venv/bin/dvc repro --force train") from None

    def require_files(self, results: Path) -> None:
        """UserError unless what training left there is what it wrote."""
        found = checksums(results)
        for name, recorded in self.files.items():
            if found.get(name) != recorded:
                what = "is damaged: its content is not what was written" if name in found else "does not exist"
                raise UserError(f"{results / name} {what}. Fix: .venv/bin/dvc repro --force train")


def checksums(results: Path) -> dict[str, str]:
    """sha256 of each file that training leaves there for the report."""
    return {
        name: hashlib.sha256((results / name).read_bytes()).hexdigest()
        for name in (HISTORY, WEIGHTS)
        if (results / name).is_file()
    }


def _digest(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def describe(
    params: dict[str, Any],
    data_hash: str,
    partition_hash: str,
    device: str,
    clients: Sequence[str] = (),
    source: Path = Path(),
) -> Record:
    """The record of a training. params: every parameter under its dotted name, `auto` resolved. clients: their own
    names, if they have any. source: folder of the code."""
    used = _shown(params_in_use(params))
    return Record(
        name=run_name(used),
        rounds=used["train.rounds"],
        params=used,
        tags=code_tags(source) | {"data_hash": data_hash, "partition_hash": partition_hash},
        environment=environment(device),
        dataset={"name": used["data.name"], "digest": data_hash},
        clients=list(clients),
    )


def describe_sweep(runs: Sequence[dict[str, Any]], varied: Sequence[str]) -> Record:
    """The record of a sweep: what its runs have in common, and the values of what they have not. runs: as `describe`
    takes them; varied: dotted names."""
    used = [_shown(params_in_use(params)) for params in runs]
    common = {name: value for name, value in used[0].items() if all(name in u and u[name] == value for u in used)}
    values = {name: list(dict.fromkeys(str(params[name]) for params in runs)) for name in varied}
    return Record(
        name=sweep_name(common, {name: len(each) for name, each in values.items()}),
        rounds=runs[0]["train.rounds"],
        params=common | {f"sweep.{name}": each for name, each in values.items()},
        tags=code_tags(),
    )


def _shown(params: dict[str, Any]) -> dict[str, Any]:
    """Without the credentials in an address."""
    return {name: masked(value) if isinstance(value, str) else value for name, value in params.items()}


def code_tags(source: Path = Path()) -> dict[str, str]:
    """Code version and origin: git's commit and branch, what differs from it, DVC's experiment. source: folder of the
    code."""
    tags = {"mlflow.source.type": "LOCAL", "mlflow.source.name": "fedbilevel", "mlflow.user": _user()}
    commit = _git(source, "rev-parse", "HEAD")
    if commit:
        tags["mlflow.source.git.commit"] = commit
        tags["mlflow.source.git.branch"] = _git(source, "rev-parse", "--abbrev-ref", "HEAD") or ""
        # DVC removes a stage's outs before it runs and writes dvc.lock after it: not a change of the code.
        status = _git(source, "status", "--porcelain", "--untracked-files=no", "--", ".", ":!results", ":!dvc.lock")
        changed = [line[3:] for line in (status or "").splitlines()]
        tags["git.dirty"] = ("yes: " + ", ".join(changed))[:500] if changed else "no"
    names = {
        "DVC_EXP_NAME": "dvc.exp_name",
        "DVC_EXP_BASELINE_REV": "dvc.baseline_rev",
        "DVC_STAGE": "dvc.stage",
    }
    return tags | {tag: os.environ[name] for name, tag in names.items() if os.environ.get(name)}


def environment(device: str) -> dict[str, Any]:
    """What ran where. device: in words, such as "cpu" or the GPU's name."""
    return {
        "date": date.today().isoformat(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor_count": os.cpu_count(),
        "device": device,
        "packages": {name: v for name in _PACKAGES + _TOOLS if (v := _version(name))},
    }


def nested(flat: dict[str, Any]) -> dict[str, Any]:
    """Dotted names back into sections."""
    tree: dict[str, Any] = {}
    for name, value in flat.items():
        *rooms, last = name.split(".")
        place = tree
        for room in rooms:
            place = place.setdefault(room, {})
        place[last] = value
    return tree


def _git(folder: Path, *arguments: str) -> str | None:
    """Answer of git, None without git or work tree."""
    try:
        done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.rstrip("\n") if done.returncode == 0 else None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's nameless user
        return "unknown"
