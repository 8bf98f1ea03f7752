"""Saves and their damage: nothing damaged is gone on from; what is damaged is named, and the save before it taken."""

import random
import shutil

import numpy as np
import pytest
import torch

from pipeline.errors import UserError
from pipeline.training import saves
from pipeline.training.history import History
from pipeline.training.resume import ResumeFolder
from pipeline.training.saves import load_variables, save_variables
from tests.nightly import NIGHTLY
from tests.training.test_training import Interrupt, StopAt, fit, without_seconds

DAMAGES = 500 if NIGHTLY else 200
FILES = ("state.ckpt", "previous.ckpt", "history.csv", "client_weights.raw")


@pytest.fixture
def interrupted(params, digits, partition, tmp_path):
    """The folder of a run that was interrupted after round 11: saves of rounds 10 and 5."""
    with pytest.raises(Interrupt):
        fit(params, digits, partition, tmp_path / "cut", callbacks=(StopAt(11),))
    return tmp_path / "cut" / "run"


def damage(folder, generator) -> str:
    """A random one; what was done, empty if it left the file as it was."""
    name = generator.choice(FILES)
    path = folder / name
    content = bytearray(path.read_bytes())
    kind = generator.choice(["flip", "cut", "zeroed", "renamed", "longer", "empty"])
    place = generator.randrange(len(content))
    if kind == "renamed":
        other = folder / generator.choice([each for each in FILES if each != name])
        path.replace(other)
        return f"{name} renamed to {other.name}"
    if kind == "flip":
        content[place] ^= 1 << generator.randrange(8)
    elif kind == "cut":
        del content[place:]
    elif kind == "zeroed":
        content[place : place + 4096] = bytes(len(content[place : place + 4096]))
    elif kind == "longer":
        content += generator.randbytes(7)
    else:
        content.clear()
    if bytes(content) == path.read_bytes():
        return ""
    path.write_bytes(content)
    return f"{name} {kind} at {place}"


def test_no_damage_is_gone_on_from(interrupted, tmp_path, params, capsys):
    """Random damages: the run goes on from a save that is as it was written, with the record of its rounds as it
    was written, and says so where it is not the last one; or it starts afresh, and says why."""
    good = {name: (interrupted / name).read_bytes() for name in FILES}
    rounds = {good["state.ckpt"]: 10, good["previous.ckpt"]: 5}
    lines = good["history.csv"].splitlines(keepends=True)
    generator, taken = random.Random(0), {10: 0, 5: 0, None: 0}
    for _ in range(DAMAGES):
        place = tmp_path / "copy" / "run"
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(interrupted, place)
        done = damage(place, generator)
        with ResumeFolder(tmp_path / "copy", "run") as folder:
            history = History(folder.path, np.zeros(10, dtype=bool), (), (), 9)
            found = folder.last_good(history.restore)
            said = capsys.readouterr().err
            if not found:
                taken[None] += 1
                assert "starting afresh" in said, done
                continue
            at = rounds[folder.checkpoint.read_bytes()]  # one of the two, to the last bit
            taken[at] += 1
            assert history.csv.read_bytes() == b"".join(lines[: at + 2]), done
            assert history.raw.read_bytes() == good["client_weights.raw"][: (at + 1) * 40], done
            assert at == 10 or "round 5" in said or "renamed" in done, done
    assert min(taken.values()) > 8


def test_a_run_whose_last_save_is_damaged_ends_with_the_same_numbers(
    params, digits, partition, interrupted, tmp_path, capsys
):
    whole, rows = fit(params, digits, partition, tmp_path / "whole")
    content = bytearray((interrupted / "state.ckpt").read_bytes())
    content[len(content) // 2] ^= 1
    (interrupted / "state.ckpt").write_bytes(content)
    again, resumed = fit(params, digits, partition, interrupted.parent)
    said = capsys.readouterr().err
    assert "state.ckpt is damaged" in said
    assert "going on from the save before it, after round 5" in said
    assert without_seconds(resumed) == without_seconds(rows)
    assert torch.equal(again.state.variables["w"], whole.state.variables["w"])


def test_the_last_two_saves_are_kept(interrupted):
    found = [saves.read_tensors(interrupted / name)["federated"]["round"] for name in FILES[:2]]
    assert found == [10, 5]


@pytest.mark.parametrize("between", ["before", "after"])
def test_a_save_that_is_not_finished_leaves_a_good_one(interrupted, between, monkeypatch):
    """Killed before or after the last save gives way to the new one: there is always one to go on from."""
    with ResumeFolder(interrupted.parent, "run") as folder:
        partial = folder.note("next.ckpt")
        partial.write_bytes(b"half")
        if between == "after":
            (interrupted / "state.ckpt").replace(interrupted / "previous.ckpt")
        assert folder.found
        assert folder.last_good(lambda record: "")


def test_a_save_is_read_without_trust(tmp_path):
    """A pickle that would run code is refused although its checksum is right."""

    class Harm:
        def __reduce__(self):
            return (open, (str(tmp_path / "harm"), "w"))

    saves.write(tmp_path / "state.ckpt", lambda file: torch.save({"federated": Harm()}, file))
    with pytest.raises(saves.Damaged, match="no save of ours"):
        saves.read_tensors(tmp_path / "state.ckpt")
    assert not (tmp_path / "harm").exists()


def test_a_damaged_model_is_named(tmp_path):
    path = tmp_path / "model.pt"
    save_variables(path, {"w": torch.arange(5.0)})
    assert torch.equal(torch.load(path, weights_only=True)["variables"]["w"], torch.arange(5.0))  # torch reads it too
    content = bytearray(path.read_bytes())
    content[70] ^= 4
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"model\.pt is damaged.*Fix"):
        load_variables(path)


def test_a_file_that_cannot_be_written_whole_leaves_the_one_before_it(tmp_path):
    path = tmp_path / "state.ckpt"
    saves.write(path, lambda file: file.write(b"good"))

    def fails(file):
        file.write(b"bad")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        saves.write(path, fails)
    saves.check(path)
    assert [each.name for each in tmp_path.iterdir()] == ["state.ckpt"]
