"""The first stage: what it says of odd files and paths, and what it leaves for the other stages and for DVC."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from pipeline.command import Paths
from pipeline.config.sections import Train
from pipeline.config.spec import dotted, override
from pipeline.data.own.tables import files
from pipeline.data.sets.arrays import _loaded
from pipeline.errors import UserError
from pipeline.params import Params
from pipeline.params.reading import load_params, params_from
from pipeline.report.record import describe
from pipeline.training.processes import share_of
from stages.check import check, located, watch

TABLE = {"data.name": "table", "data.label": "y"}


def test_the_check_stage_names_what_would_be_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    paths = Paths.here()
    paths.params.write_text("algorithms: {nope: {}, sustain: {}}\npartition: {nothing: {a: 1}}\n")
    check(load_params(paths.params), paths)
    said = capsys.readouterr().err
    assert "note: algorithms.nope is ignored: neither shipped nor in use. Fix: correct its name, or remove it." in said
    assert "note: partition.nothing is ignored" in said
    assert said.count("note:") == 2
    paths.params.write_text("data: {label: y, path: mine.csv}\n")
    check(load_params(paths.params), paths)
    said = capsys.readouterr().err
    assert "note: data.path, data.label: without effect, as data.name: digits is not your own data. Fix: " in said
    (tmp_path / "mine.csv").write_text("site,y\nA,1\n")
    paths.params.write_text("data: {name: table, label: y, path: mine.csv, client: site}\n")
    check(load_params(paths.params), paths)
    assert "without effect" not in capsys.readouterr().err
    paths.params.write_text("sweep: {values: {nope: [1]}}\n")
    with pytest.raises(UserError, match=r"sweep\.values: nope = \[1\] .*not a known parameter"):
        check(load_params(paths.params), paths)


@pytest.mark.parametrize("kind", ["folder", "pipe", "device", "link"])
def test_a_params_yaml_that_is_no_file_is_named(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero" if kind == "device" else "nowhere")
    said = "does not exist" if kind == "link" else "is a folder or a device"
    with pytest.raises(UserError, match=rf"params\.yaml {said}.*Fix"):
        load_params(path)


@pytest.mark.parametrize("text", ["\ufeffseed: 3\n", "seed: 3\r\n"])
def test_a_byte_order_mark_and_the_line_ends_of_windows_are_no_mistake(text: str, tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_bytes(text.encode())
    assert load_params(tmp_path / "params.yaml").seed == 3


@pytest.mark.parametrize("path", ["none.csv", "pipe", "/dev/zero", "/dev", "a" * 5000, "circle", "x\ny"])
def test_data_that_no_one_can_read_to_an_end_are_refused(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DVC would hash them: of /dev/zero without end."""
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    Path("circle").symlink_to("circle")
    with pytest.raises(UserError, match=r"(?s)data\.path: .* is neither a file nor a folder\. Fix") as caught:
        watch(override(Params(), {**TABLE, "data.path": path}), Paths.here())
    assert len(str(caught.value)) < 400


def test_data_that_are_there_are_found(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,y\n1,2\n")
    assert located(str(tmp_path / "t.csv")) == (tmp_path / "t.csv").resolve()
    assert located(str(tmp_path)) == tmp_path.resolve()


def test_more_processes_than_a_machine_bears_are_refused_before_any_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOCAL_RANK", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    assert share_of(Train(devices=2)).ranks == 2
    with pytest.raises(UserError, match=r"train\.devices = 1000 .*at most \d+ on this machine.*Fix"):
        share_of(Train(devices=1000))
    with pytest.raises(UserError, match=r"train\.devices = 9999 .*at most 1024.*Fix"):
        params_from({"train": {"devices": 9999}}, "params.yaml")


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    for name in ("a.npz", "clients.csv"):
        os.mkfifo(tmp_path / name)
    with pytest.raises(UserError, match=r"a\.npz is no file\. Fix"):
        _loaded(tmp_path / "a.npz")
    with pytest.raises(UserError, match=r"holds no clients\.csv"):
        files(tmp_path)
    with pytest.raises(UserError, match=r"clients\.csv is neither a file nor a folder"):
        files(tmp_path / "clients.csv")


def test_the_password_of_an_address_of_data_is_written_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    paths = Paths.here()
    (tmp_path / "mine.csv").write_text("site,y\nA,1\n")
    paths.params.write_text("data: {name: table, label: y, path: 'postgresql://me:hunter22@host/x'}\n")
    params: Any = load_params(paths.params)
    check(params, paths)
    written = [file.read_text() for file in (tmp_path / "data").rglob("*") if file.is_file()]
    assert any("postgresql://***@host/x" in text for text in written)
    assert not any("hunter22" in text for text in written)
    assert not any("hunter22" in os.readlink(file) for file in tmp_path.rglob("*") if file.is_symlink())
    assert "hunter22" not in str(describe(dotted(params), "", "", "cpu").params)
