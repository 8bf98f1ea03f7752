"""The canonical form: right content from every original format, whole or not at all, damage detected."""

import json
import os
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from pipeline.data import datasets
from pipeline.data.datasets import load, prepare
from pipeline.data.originals import cifar
from pipeline.data.originals.fetching import MIRROR_VARIABLE
from pipeline.data.sets.digits import upsample
from pipeline.data.sets.registry import DATASETS
from pipeline.errors import UserError
from tests.data.originals import (
    archive,
    archive_source,
    mnist_contents,
    mnist_source,
    python2_batch,
    write_packed,
)

MIRROR = os.environ.get(MIRROR_VARIABLE, "")


@pytest.fixture(autouse=True)
def _no_mirror(monkeypatch):
    monkeypatch.delenv(MIRROR_VARIABLE, raising=False)


@pytest.fixture(scope="module")
def digits(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("raw") / "digits"
    prepare("digits", folder)
    return folder


@pytest.mark.parametrize("name", [name for name, each in DATASETS.items() if each.info and not each.source])
def test_an_embedded_data_set_is_what_its_facts_say(name):
    dataset = DATASETS[name]
    raw, facts = dataset.read({}, None), dataset.info
    found = raw.info
    assert (raw.name, found.classes, found.channels, found.size) == (name, facts.classes, facts.channels, facts.size)
    assert found.images == facts.images
    if not facts.few_shot:  # nothing normalises these
        assert found.means == pytest.approx(facts.means, abs=1e-4)
        assert found.deviations == pytest.approx(facts.deviations, abs=1e-4)


# ------------------------------------------------------------------------------------------ digits


def test_digits_has_the_protocols_sizes(digits):
    raw = load(digits)
    assert (raw.name, raw.classes) == ("digits", 10)
    assert raw.test_images.shape == (359, 1, 28, 28)  # 20 % of 1797
    assert raw.train_images.shape == (DATASETS["digits"].info.images, 1, 28, 28) == (1438, 1, 28, 28)
    assert raw.train_images.dtype == np.uint8
    assert raw.train_labels.dtype == np.int64


def test_digits_parts_make_up_the_whole_once(digits):
    from sklearn.datasets import load_digits

    raw = load(digits)
    original = load_digits()
    labels = np.concatenate([raw.train_labels, raw.test_labels])
    assert np.array_equal(np.bincount(labels), np.bincount(original.target))
    ours = np.concatenate([raw.train_images, raw.test_images])[:, 0]
    assert len(np.unique(ours, axis=0)) == len(np.unique(original.images, axis=0))
    share = np.bincount(raw.test_labels) / np.bincount(labels)
    assert np.all((share > 0.1) & (share < 0.3))


def test_digits_are_the_same_every_time(digits, tmp_path):
    prepare("digits", tmp_path / "again")
    for file in digits.iterdir():
        assert file.read_bytes() == (tmp_path / "again" / file.name).read_bytes()


def test_upsampling_is_bilinear():
    images = np.random.default_rng(0).integers(0, 17, (20, 8, 8))
    ours = upsample(images, 28, top=16)
    exact = torch.nn.functional.interpolate(
        torch.tensor(images, dtype=torch.float64)[:, None],
        size=(28, 28),
        mode="bilinear",
        align_corners=False,
    )
    assert np.abs(ours - exact[:, 0].numpy() * 255 / 16).max() <= 0.5 + 1e-9  # nothing but rounding
    assert upsample(np.full((1, 8, 8), 16), 28, top=16).min() == 255
    assert upsample(np.full((1, 8, 8), 8), 28, top=16).max() == 128  # 127.5, halves up
    assert upsample(np.zeros((1, 8, 8), dtype=int), 28, top=16).max() == 0


# --------------------------------------------------------------------------------------------- idx


def test_idx_files_become_the_canonical_form(tmp_path):
    contents = mnist_contents()
    write_packed(tmp_path / "mirror" / "mnist", contents)
    folder = tmp_path / "raw" / "mnist"
    line = prepare("mnist", folder, str(tmp_path / "mirror"), mnist_source(contents))
    assert "40 training and 20 test images" in line
    raw = load(folder)
    expected = np.frombuffer(contents["train-images-idx3-ubyte.gz"], dtype=np.uint8)[16:]
    assert np.array_equal(raw.train_images, expected.reshape(40, 1, 28, 28))
    assert np.array_equal(raw.train_labels, np.arange(40) % 10)
    assert np.array_equal(raw.test_labels, np.arange(20) % 10)
    assert sorted(os.listdir(tmp_path / "raw")) == ["mnist"]
    assert json.loads((folder / "meta.json").read_text())["counts"] == {"train": 40, "test": 20}


def test_the_place_leaves_no_trace_in_the_bytes(tmp_path, caplog):
    contents = mnist_contents()
    source = mnist_source(contents, system=(str(write_packed(tmp_path / "system", contents)), "dataset-mnist"))
    write_packed(tmp_path / "mirror" / "mnist", contents)
    prepare("mnist", tmp_path / "a", str(tmp_path / "mirror"), source)
    assert caplog.text == ""
    prepare("mnist", tmp_path / "b", str(tmp_path / "nowhere"), source)
    assert "nowhere" in caplog.text  # but the user hears of the mirror that was of no use
    for file in (tmp_path / "a").iterdir():
        assert file.read_bytes() == (tmp_path / "b" / file.name).read_bytes()


def test_nothing_half_written_when_data_cannot_be_had(tmp_path):
    folder = tmp_path / "raw" / "mnist"
    with pytest.raises(UserError):
        prepare("mnist", folder, str(tmp_path / "nowhere"), mnist_source(mnist_contents()))
    assert not folder.parent.exists() or os.listdir(folder.parent) == []


def test_nothing_half_written_when_writing_fails(tmp_path, monkeypatch):
    calls = []

    def full(*args, **kwargs):
        calls.append(args)
        if len(calls) == 3:
            raise OSError("no space left on device")
        save(*args, **kwargs)

    save = np.save
    folder = tmp_path / "digits"
    folder.mkdir()
    (folder / "old").write_text("kept")
    monkeypatch.setattr(datasets.np, "save", full)
    with pytest.raises(OSError, match="no space"):
        prepare("digits", folder)
    assert os.listdir(tmp_path) == ["digits"]
    assert os.listdir(folder) == ["old"]


def test_unknown_name():
    with pytest.raises(UserError, match=r"data\.name = 'mnits' .* images: digits, .*fashion-mnist"):
        prepare("mnits", Path("never"))


# ------------------------------------------------------------------------------------------- CIFAR


def cifar_members(dataset: str, per_batch: int = 4) -> tuple[dict[str, bytes], np.ndarray, list[int]]:
    """An archive's members, and its training images [M, 3072] and labels in order."""
    random = np.random.default_rng(0)
    if dataset == "cifar10":
        base, key, names, classes = (
            "cifar-10-batches-py",
            "labels",
            [f"data_batch_{i}" for i in range(1, 6)],
            10,
        )
        tests = ["test_batch"]
    else:
        base, key, names, classes, tests = "cifar-100-python", "fine_labels", ["train"], 100, ["test"]
    members, images, labels = {}, [], []
    for name in names + tests:
        pixels = random.integers(0, 256, (per_batch, 3072), dtype=np.uint8)
        of_batch = random.integers(0, classes, per_batch).tolist()
        members[f"{base}/{name}"] = python2_batch(pixels, of_batch, key)
        if name in names:
            images.append(pixels)
            labels += of_batch
    return members, np.concatenate(images), labels


ARCHIVES = {"cifar10": "cifar-10-python.tar.gz", "cifar100": "cifar-100-python.tar.gz"}


def put_archive(tmp_path, dataset, members):
    content = archive(members)
    folder = tmp_path / "mirror" / dataset
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ARCHIVES[dataset]).write_bytes(content)
    return archive_source(dataset, ARCHIVES[dataset], content)


@pytest.mark.parametrize("dataset", ["cifar10", "cifar100"])
def test_cifar_archives_are_read_right(tmp_path, dataset):
    members, images, labels = cifar_members(dataset)
    source = put_archive(tmp_path, dataset, members)
    prepare(dataset, tmp_path / "raw", str(tmp_path / "mirror"), source)
    raw = load(tmp_path / "raw")
    assert raw.classes == (10 if dataset == "cifar10" else 100)
    assert raw.train_images.shape == (len(labels), 3, 32, 32)
    assert raw.train_labels.tolist() == labels
    # A row is red, green, blue planes of 32 rows of 32 pixels.
    assert raw.train_images[2, 1, 5, 7] == images[2, 1024 + 5 * 32 + 7]
    assert raw.test_images.shape == (4, 3, 32, 32)


def test_cifar_batches_of_python_3_are_read_too(tmp_path):
    members, images, labels = cifar_members("cifar100", per_batch=3)
    members["cifar-100-python/train"] = pickle.dumps({"data": images, "fine_labels": labels}, protocol=2)
    source = put_archive(tmp_path, "cifar100", members)
    prepare("cifar100", tmp_path / "raw", str(tmp_path / "mirror"), source)
    assert np.array_equal(load(tmp_path / "raw").train_images.reshape(3, 3072), images)


class Evil:
    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self):
        return os.mkdir, (str(self.trace),)


@pytest.mark.parametrize("what", ["call", "objects"])
def test_a_malicious_pickle_is_refused_and_never_run(tmp_path, what):
    trace = tmp_path / "executed"
    evil = Evil(trace) if what == "call" else np.array([Evil(trace), None], dtype=object)
    members, _, labels = cifar_members("cifar100")
    members["cifar-100-python/train"] = pickle.dumps({"data": evil, "fine_labels": labels}, protocol=2)
    source = put_archive(tmp_path, "cifar100", members)
    with pytest.raises(UserError, match=r"cifar-100-python/train in the archive is refused"):
        prepare("cifar100", tmp_path / "raw", str(tmp_path / "mirror"), source)
    assert not trace.exists()
    assert not (tmp_path / "raw").exists()


def test_an_archive_is_not_opened_before_its_checksum_matched(tmp_path, monkeypatch):
    members, _, _ = cifar_members("cifar10")
    put_archive(tmp_path, "cifar10", members)
    monkeypatch.setattr(cifar.tarfile, "open", lambda *a, **k: pytest.fail("the archive was opened"))
    expected = archive_source("cifar10", ARCHIVES["cifar10"], b"other content")
    with pytest.raises(UserError, match="checksum"):
        prepare("cifar10", tmp_path / "raw", str(tmp_path / "mirror"), expected)


# ---------------------------------------------------------------------------------------- damage


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:200])


def other_shape(file: Path) -> None:
    np.save(file, np.load(file)[:-1])


def with_objects(file: Path) -> None:
    np.save(file, np.array([{}, {}], dtype=object), allow_pickle=True)


@pytest.mark.parametrize("damage", [flip, cut, other_shape, with_objects, Path.unlink])
def test_a_damaged_array_is_named_with_the_fix(digits, tmp_path, damage):
    folder = shutil.copytree(digits, tmp_path / "digits")
    damage(folder / "train_images.npy")
    with pytest.raises(UserError) as caught:
        load(folder)
    message = str(caught.value)
    assert message.startswith(f"{folder / 'train_images.npy'} is damaged: ")
    assert message.endswith(f"Fix: delete the folder {folder} and run dvc repro again.")
    assert "\n" not in message


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"name": "digits", "classes": 10, "arrays": 3}'])
def test_a_damaged_description_is_named(digits, tmp_path, text):
    folder = shutil.copytree(digits, tmp_path / "digits")
    (folder / "meta.json").write_text(text)
    with pytest.raises(UserError, match=r"meta\.json is damaged"):
        load(folder)


@pytest.mark.parametrize(("old", "new"), [('"classes": 10', '"classes": 11'), ('"digits"', '"digit5"')])
def test_a_changed_fact_is_damage(digits, tmp_path, old, new):
    file = shutil.copytree(digits, tmp_path / "digits") / "meta.json"
    content = file.read_text()
    assert old in content
    file.write_text(content.replace(old, new, 1))
    with pytest.raises(UserError, match=r"meta\.json is damaged"):
        load(file.parent)


def test_a_missing_folder_is_told(tmp_path):
    with pytest.raises(UserError, match=r"does not exist.* Fix: run dvc repro"):
        load(tmp_path / "digits")


# -------------------------------------------------------------------------------------- real data


@pytest.mark.data
@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_real_files(tmp_path, name):
    if not (Path(MIRROR) / name).is_dir() or not MIRROR:
        pytest.skip(f"{MIRROR_VARIABLE} names no folder with {name}")
    prepare(name, tmp_path / name, MIRROR)
    raw = load(tmp_path / name)
    assert raw.train_images.shape == (DATASETS[name].info.images, 1, 28, 28) == (60000, 1, 28, 28)
    assert raw.test_images.shape == (10000, 1, 28, 28)
    mean = raw.train_images.mean() / 255
    if name == "mnist":
        assert raw.train_labels[:5].tolist() == [5, 0, 4, 1, 9]
        assert mean == pytest.approx(0.1307, abs=1e-4)
    else:
        assert np.bincount(raw.train_labels).tolist() == [6000] * 10
        assert mean == pytest.approx(0.28604, abs=1e-5)
