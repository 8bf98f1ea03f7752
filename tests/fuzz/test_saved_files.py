"""Files of our own after any damage: the same content, or an answer that names the file."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipeline.data.datasets import load, prepare
from pipeline.data.partition import Partition, make_partition
from pipeline.errors import UserError
from pipeline.params import Params
from pipeline.params.resolve import resolve
from pipeline.report.record import Record
from pipeline.training import saves
from pipeline.training.saves import load_variables, save_variables
from tests.fuzz.common import answer_to, cases


def save_of(path: Path) -> Any:
    """A save; damage of one is answered by the run, which takes the one before it."""
    try:
        return saves.read_tensors(path)
    except saves.Damaged as error:
        raise UserError(str(error)) from None


def content_of(folder: Path) -> tuple[Any, ...]:
    raw = load(folder)
    return raw.hash, raw.name, raw.classes, raw.class_names, raw.client_names


READERS: dict[str, Callable[[Path], Any]] = {
    "state.ckpt": lambda path: save_of(path)["w"].tolist(),
    "model.pt": lambda path: load_variables(path)["w"].tolist(),
    "partition.npz": lambda path: Partition.load(path).hash,
    "training.json": Record.load,
    "raw/train_labels.npy": lambda path: content_of(path.parent),
    "raw/meta.json": lambda path: content_of(path.parent),
}


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One file of each kind as we write it."""
    folder = tmp_path_factory.mktemp("good")
    prepare("digits", folder / "raw")
    raw = load(folder / "raw")
    params = resolve(Params())
    make_partition(raw.train_labels, "digits", 10, params.partition, 0).save(folder / "partition.npz")
    save_variables(folder / "model.pt", {"w": torch.arange(50.0)})
    saves.write(folder / "state.ckpt", lambda file: torch.save({"w": torch.arange(50.0)}, file))
    Record("a run", 10, {"seed": 0}, {}).save(folder / "training.json")
    return folder


@st.composite
def damages(draw: st.DrawFn) -> Callable[[bytes], bytes]:
    kind = draw(st.sampled_from(["flip", "flip", "cut", "zeroed", "longer", "empty", "noise", "other"]))
    at, more = draw(st.floats(0, 1, exclude_max=True)), draw(st.binary(min_size=1, max_size=40))
    bit = draw(st.integers(0, 7))

    def damaged(content: bytes) -> bytes:
        place = int(at * len(content))
        found = bytearray(content)
        if kind == "flip":
            found[place] ^= 1 << bit
        elif kind == "cut":
            del found[place:]
        elif kind == "zeroed":
            found[place : place + 64] = bytes(len(found[place : place + 64]))
        elif kind == "longer":
            found += more
        elif kind == "noise":
            found[place : place + len(more)] = more
        else:
            found = bytearray(b"" if kind == "empty" else more)
        return bytes(found)

    return damaged


@cases(0.15)
@given(name=st.sampled_from(sorted(READERS)), damaged=damages())
def test_any_damage_is_named_or_harmless(name: str, damaged: Callable[[bytes], bytes], good: Path) -> None:
    folder = good.with_name("damaged")
    place = folder / name
    folder.mkdir(exist_ok=True)
    if "/" in name and not place.exists():
        shutil.copytree((good / name).parent, place.parent)
    content, read = (good / name).read_bytes(), READERS[name]
    place.write_bytes(damaged(content))
    try:
        found = answer_to(lambda: read(place))
    finally:
        place.write_bytes(content)
    if found is not None:
        assert found == read(good / name)


def test_what_is_written_is_read(good: Path) -> None:
    for name, read in READERS.items():
        assert read(good / name) is not None
    assert np.load(good / "partition.npz")
