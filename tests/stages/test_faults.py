"""Folders that take no file, memory that is not there, locks and clocks: a line, and how to go on."""

from __future__ import annotations

import contextlib
import csv
import errno
import importlib
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.command import Paths, answering, run
from pipeline.config.spec import override
from pipeline.data.datasets import load, prepare
from pipeline.data.federated import FederatedData
from pipeline.data.partition import make_partition
from pipeline.errors import UserError
from pipeline.params import Params
from pipeline.params.resolve import resolve
from pipeline.training.setup import build_problem
from tests.stages.project import BIN

FREE = "free some space there, then run it again."
STAGES = ("check", "download", "partition", "train", "evaluate")
SETTINGS = "model: {name: linear}\ntrain: {rounds: 4, eval_every: 2, checkpoint_every: 2, accelerator: cpu}\n"

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*noload.*"),
    pytest.mark.filterwarnings("ignore:.*Any type hint is inferred.*"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


class Disk:
    """Every file that is opened for writing below `folder` fails with `number`; None: it does not."""

    folder, number = "", None

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.number is None or event not in ("open", "os.mkdir"):
            return
        path = str(arguments[0])
        writes = event == "os.mkdir" or bool((arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
        inside = os.path.abspath(path).startswith(self.folder) and "mlflow.db" not in path
        if writes and inside:
            raise OSError(self.number, os.strerror(self.number), path)


DISK = Disk()
sys.addaudithook(DISK)  # cannot be taken off; does nothing without a number


def stage(name: str) -> int:
    """Run it here; its exit code."""
    module = importlib.import_module(f"stages.{name}")
    command = getattr(module, {"train": "train_stage"}.get(name, name))
    try:
        run(command)
    except SystemExit as error:
        return int(error.code or 0)
    return 0


@pytest.fixture(scope="module")
def ran_once(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Path:
    """A folder in which every stage has run once."""
    folder, before = tmp_path_factory.mktemp("faults"), Path.cwd()
    shutil.copyfile(empty_store, folder / "mlflow.db")
    (folder / "params.yaml").write_text(SETTINGS)
    os.chdir(folder)
    try:
        assert [stage(name) for name in STAGES] == [0] * 5
    finally:
        os.chdir(before)
    return folder


@pytest.fixture
def broken(ran_once: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    monkeypatch.chdir(ran_once)
    DISK.folder = str(ran_once)
    yield DISK
    DISK.number = None


@pytest.mark.parametrize(
    "number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES], ids=["full", "quota", "read-only", "not yours"]
)
@pytest.mark.parametrize("name", STAGES)
def test_a_folder_that_takes_no_file_is_named_in_a_line(
    broken: Disk, name: str, number: int, capsys: pytest.CaptureFixture[str]
) -> None:
    broken.number = number
    code = stage(name)
    broken.number = None
    said = capsys.readouterr().err
    complaint = [line for line in said.splitlines() if line.startswith("error:")]
    assert code == 1
    assert len(complaint) == 1, said
    assert f"{os.strerror(number)}. Fix: " in complaint[0]
    assert "Traceback" not in said


def test_ctrl_c_while_a_finished_stage_ends_changes_nothing() -> None:
    """The interpreter, on its way out, puts back the handler that kills: DVC would call a finished stage failed."""
    script = (
        "import os, signal, sys; from pipeline import interruption; interruption.install();"
        "Late = type('Late', (), {'__del__': lambda self, kill=os.kill, pid=os.getpid(): kill(pid, 2)});"
        "sys.late = Late()"
    )
    assert subprocess.run([sys.executable, "-c", script], timeout=60).returncode == 0


def test_the_place_that_is_full_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of an open file the system does not say which one, and of a copy it names the original first."""
    room = {str(tmp_path): 10**9, "/dev/shm": 3}
    usage = type(shutil.disk_usage("."))
    monkeypatch.setattr(shutil, "disk_usage", lambda place: usage(0, 0, room.get(str(place), 10**9)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", "/dev/shm")
    for write, named in (
        (lambda: Path("/dev/full").write_text("abc"), "/dev/shm"),
        (lambda: _raise(OSError(errno.ENOSPC, "", "original", None, "copy")), "copy"),
    ):
        with pytest.raises(SystemExit, match="1"):
            answering(write)
        assert capsys.readouterr().err == f"error: {named}: No space left on device. Fix: {FREE}\n"


@pytest.mark.parametrize("name", ["history.csv", "client_weights_history.npz"])
@pytest.mark.parametrize("damage", ["gone", "empty", "cut", "a bit"])
def test_a_damaged_history_is_named(
    ran_once: Path, name: str, damage: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ran_once)
    file = Paths.results / name
    content = file.read_bytes()
    middle = len(content) // 2
    flipped = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
    try:
        file.write_bytes({"cut": content[:middle], "a bit": flipped}.get(damage, b""))
        if damage == "gone":
            file.unlink()
        assert stage("evaluate") == 1
    finally:
        file.write_bytes(content)
    said = capsys.readouterr().err
    assert f"error: results/{name} {'does not exist' if damage == 'gone' else 'is damaged'}" in said
    assert "Fix: .venv/bin/dvc repro --force train" in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("partition", Paths.raw("digits") / "meta.json"),
        ("partition", Paths.partition_summary),
        ("evaluate", Paths.results / "metrics.json"),
        ("evaluate", Paths.results / "report.html"),
    ],
)
def test_a_folder_in_place_of_a_file_is_named(
    ran_once: Path, name: str, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ran_once)
    content = place.read_bytes()
    place.unlink()
    place.mkdir()
    try:
        assert stage(name) == 1
    finally:
        place.rmdir()
        place.write_bytes(content)
    said = capsys.readouterr().err
    assert f"error: {place}" in said
    assert "Is a directory. Fix: move the folder away that lies in place of that file" in said
    assert "Traceback" not in said


def _raise(error: BaseException) -> None:
    raise error


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError(
            "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 20070701056 bytes"
        ),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    ],
)
def test_out_of_memory_is_said_in_a_line(error: BaseException, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        answering(lambda: _raise(error))
    assert ended.value.code == 1
    said = capsys.readouterr().err
    assert said.startswith("error: out of memory (")
    assert "Fix: a smaller federation.batch_size" in said
    assert len(said.splitlines()) == 1


def test_an_error_in_ones_own_code_is_named_by_its_place(tmp_path, monkeypatch, capsys):
    (tmp_path / "my_methods").mkdir()
    file = tmp_path / "my_methods" / "odd.py"
    file.write_text("def step(state, context):\n    raise ValueError('no such luck')\n")
    monkeypatch.chdir(tmp_path)
    found: dict[str, Any] = {}
    exec(compile(file.read_text(), str(file), "exec"), found)
    with pytest.raises(SystemExit, match="1"):
        answering(lambda: found["step"](None, None))
    place = Path("my_methods") / "odd.py"
    said = f"error: {place}, line 2, in step: ValueError: no such luck. Fix: correct it there; "
    assert capsys.readouterr().err.startswith(said)
    with pytest.raises(SystemExit, match="1"):
        answering(lambda: _raise(ValueError("our own")))
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    "settings",
    [
        {"federation.batch_size": 2 * 10**9},
        {"federation.validation_batch_size": 2 * 10**9},
        {"algorithms.primal_dual.product_batch_size": 2 * 10**9},
        {"algorithms.fedbioacc.initial_batch_size": 2 * 10**9, "algorithm": "fedbioacc"},
    ],
)
def test_minibatches_that_no_memory_holds_are_refused(tmp_path: Path, settings: dict[str, Any]) -> None:
    prepare("digits", tmp_path / "raw")
    raw = load(tmp_path / "raw")
    params = resolve(override(Params(), {"model.name": "linear", **settings}))
    dealt = make_partition(raw.train_labels, "digits", 10, params.partition, 0)
    with pytest.raises(UserError, match=rf"{next(iter(settings))} = 2000000000.* GB, and this machine has .*Fix"):
        build_problem(params, raw, dealt, torch.device("cpu"))


def test_a_clock_that_jumps_changes_no_number(ran_once: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An hour back and a day ahead, in turn, while the same run is made again."""
    monkeypatch.chdir(ran_once)
    model, rows = Paths.model.read_bytes(), _rows()
    real, jumps = time.time, iter([-3600.0, 86400.0] * 100_000)
    monkeypatch.setattr(time, "time", lambda: real() + next(jumps))
    assert stage("train") == 0
    assert Paths.model.read_bytes() == model
    assert _rows() == rows


def test_a_client_whose_answers_are_left_out_is_counted_and_named(
    ran_once: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Client 2's pixels are missing while the model is trained."""
    samples = FederatedData.samples

    def broken(data: FederatedData, at: Any, parts: Any, owners: Any, each: int = 1) -> Any:
        X, y = samples(data, at, parts, owners, each)
        X[(owners == 2).repeat_interleave(each)] = math.nan
        return X, y

    monkeypatch.chdir(shutil.copytree(ran_once, tmp_path / "copy"))
    with monkeypatch.context() as patched:
        patched.setattr(FederatedData, "samples", broken)
        assert stage("train") == 0
    assert stage("evaluate") == 0
    assert "the answers of client 2 are left out" in capsys.readouterr().err
    with (Paths.results / "history.csv").open(newline="") as file:
        assert [row["answers_left_out"] for row in csv.DictReader(file)][1:] == ["1"] * 4
    metrics = json.loads((Paths.results / "metrics.json").read_text())
    assert (metrics["answers_left_out"], metrics["clients_left_out"]) == (4, "2 (4)")


def _rows() -> list[list[str]]:
    """Of history.csv, without the seconds."""
    lines = [line.split(",") for line in (Paths.results / "history.csv").read_text().splitlines()]
    place = lines[0].index("seconds")
    return [line[:place] + line[place + 1 :] for line in lines]


def _stage_in(folder: Path) -> int:
    """The process of the stage that runs there, as soon as there is one."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                words = (process / "cmdline").read_bytes().split(b"\0")
                if b"stages.check" in words and (process / "cwd").resolve() == folder.resolve():
                    return int(process.name)
        time.sleep(0.01)
    raise AssertionError("no stage has begun")


@pytest.mark.slow
def test_a_second_repro_is_refused_and_the_first_ends_well(project) -> None:
    """While the first one's stage runs."""
    project.edit("seed: 0 #", "seed: 1 #")
    command = {
        "cwd": project.folder,
        "env": project.environment(),
        "stdout": subprocess.PIPE,
        "stderr": subprocess.STDOUT,
        "text": True,
    }
    first = subprocess.Popen([str(BIN / "dvc"), "repro", "--single-item", "check"], **command)
    stopped = _stage_in(project.folder)
    os.kill(stopped, signal.SIGSTOP)
    try:
        said = project.dvc("repro", "--single-item", "check", ok=False)
    finally:
        os.kill(stopped, signal.SIGCONT)
        output, _ = first.communicate(timeout=100)
    assert f"PID {first.pid}" in said or "Unable to acquire lock" in said
    assert "Traceback" not in said
    assert first.returncode == 0, output


@pytest.mark.slow
def test_a_damaged_lock_file_is_named_by_dvc(project) -> None:
    (project.folder / "dvc.lock").write_text("stages: [\n")
    said = project.dvc("repro", ok=False)
    assert "dvc.lock' is invalid" in said
    assert "Traceback" not in said
