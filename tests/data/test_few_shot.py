"""Tasks of a few classes, and the characters they are made of."""

from __future__ import annotations

import hashlib
import io
import zipfile

import numpy as np
import pytest
from PIL import Image

from pipeline.data.datasets import load, prepare
from pipeline.data.originals import fetching as sources
from pipeline.data.originals.fetching import MIRROR_VARIABLE, OriginalFile, Source
from pipeline.data.partition import make_partition
from pipeline.data.schemes.few_shot import FewShotTasks
from pipeline.data.sets.glyphs import read
from pipeline.data.sets.registry import DATASETS
from pipeline.errors import UserError
from pipeline.params import PartitionSettings as Settings
from tests.data.dealing import true_labels

LABELS = true_labels(per_label=6, classes=40)


def dealt(labels=LABELS, classes=50, **changes):
    """Classes 40 to 49 have no training image, as the test classes of a few-shot data set."""
    wanted = {"clients": 3, "ways": 4, "shots": 2, "queries": 3} | changes
    return make_partition(
        labels, "glyphs", classes, Settings("few_shot", 0, 0, 0.0, few_shot=FewShotTasks(**wanted)), 0
    )


# ----------------------------------------------------------------------------------------- tasks


def test_a_place_tells_task_and_class():
    """40 classes are 3 clients with 3 tasks of 4 each, and 4 left over."""
    p, tasks, ways, shots, queries = dealt(), 3, 4, 2, 3
    assert p.sizes.tolist() == [tasks * ways * shots] * 3
    assert p.validation_sizes.tolist() == [tasks * ways * queries] * 3
    support, query = p.labels.reshape(3 * tasks, ways, shots), p.validation_labels.reshape(3 * tasks, ways, queries)
    assert (support == support[:, :, :1]).all()
    assert (query == support[:, :, :1]).all()
    assert len(np.unique(support[:, :, 0])) == 3 * tasks * ways  # no clients share a class, nor do two tasks
    assert support.reshape(3, -1)[0].tolist() != sorted(support.reshape(3, -1)[0].tolist())
    held = np.concatenate([p.indices, p.validation_indices])
    assert len(np.unique(held)) == len(held)
    assert np.array_equal(LABELS[p.indices], p.labels)
    assert set(p.kinds) == {"clean"}
    assert p.client_labels[1] == sorted(set(support.reshape(3, -1)[1].tolist()))
    assert len(p.server_validation) == len(p.server_selection) == 0


def test_the_images_of_a_class_are_drawn_at_random():
    """Six to choose from, of which five are dealt: not always the first."""
    p = dealt()
    first = {c: np.flatnonzero(c == LABELS)[:2].tolist() for c in range(40)}
    support = p.indices.reshape(-1, 2)
    assert any(sorted(pair.tolist()) != first[int(LABELS[pair[0]])] for pair in support)


def test_a_class_may_have_just_enough_images():
    assert dealt(queries=4).validation_sizes.tolist() == [3 * 4 * 4] * 3


def test_the_same_samples_in_other_tasks_are_another_partition():
    """24 classes of the same order are tasks of four or of two."""
    p, q = dealt(ways=4), dealt(ways=2)
    assert np.array_equal(p.indices, q.indices)
    assert p.hash != q.hash


def test_classes_with_too_few_images_are_left_out():
    labels = np.concatenate([LABELS, [40, 40, 40, 40]])
    rare = dealt(labels)
    assert 40 not in rare.labels
    assert np.array_equal(rare.labels, dealt().labels)


def test_fewer_tasks_are_the_same_number_for_every_client():
    p = dealt(tasks=1)
    assert p.sizes.tolist() == [8] * 3
    assert len(np.unique(p.labels)) == 12


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"clients": 11}, r"few_shot\.clients = 11 .* at most 10, .* 4 classes .* 40 with at least 5 images .*Fix"),
        ({"shots": 4}, r"few_shot: .* 4 classes .* 7 images .* 0 of the training classes .*Fix: lower ways, shots"),
        ({"ways": 41, "clients": 1}, r"few_shot: .* 41 classes .* 40 of the training classes .*Fix: lower ways, shots"),
        ({"tasks": 4}, r"few_shot\.tasks = 4 .* at most 3: 40 classes, 3 clients.* Fix.*auto"),
    ],
)
def test_what_the_classes_cannot_serve_is_refused(changes, said):
    with pytest.raises(UserError, match=said):
        dealt(**changes)


# ------------------------------------------------------------------------------------ characters


@pytest.fixture(scope="module")
def glyphs():
    return read({}, None)


def test_glyphs_are_many_classes_of_twenty_and_the_test_has_others(glyphs):
    assert glyphs.train_images.shape == (DATASETS["glyphs"].info.images, 1, 28, 28) == (4000, 1, 28, 28)
    assert glyphs.test_images.shape == (1200, 1, 28, 28)
    assert np.bincount(glyphs.train_labels).tolist() == [20] * 200
    assert np.unique(glyphs.test_labels).tolist() == list(range(200, 260))


def test_glyphs_are_the_same_on_every_machine(glyphs):
    assert glyphs.hash.startswith("05c8a4461dc689ea")


def test_glyphs_of_a_class_look_alike_and_no_two_are_the_same(glyphs):
    """The nearest class mean is the right one for most held out, of two hundred; pixels are ink on nothing."""
    images = glyphs.train_images.reshape(200, 20, -1).astype(np.float64)
    means, held = images[:, :10].mean(1), images[:, 10:].reshape(-1, 784)
    nearest = ((held[:, None] - means[None]) ** 2).sum(2).argmin(1)
    assert 0.5 < (nearest == np.repeat(np.arange(200), 10)).mean() < 1.0
    assert len(np.unique(glyphs.train_images.reshape(4000, -1), axis=0)) == 4000
    ink = images.mean(axis=2)
    assert ink.min() > 4
    assert ink.max() < 120
    assert (np.median(images) == 0) & (images.max() == 255)


def drawing(row: int) -> bytes:
    """105 x 105 pixels of one bit, white but for a black band of 15 rows, which are 4 of 28, and of 2 rows below it."""
    pixels = np.ones((105, 105), dtype=bool)
    pixels[15 * row : 15 * row + 17] = False
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="png")
    return buffer.getvalue()


def archive_of(part: str, characters_of: dict[str, list[int]]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as opened:
        opened.writestr(f"images_{part}/", b"")
        for name, rows in characters_of.items():
            for number, row in enumerate(rows):
                opened.writestr(f"images_{part}/{name}/{number:04}_01.png", drawing(row))
    return buffer.getvalue()


def test_omniglot_becomes_the_canonical_form(tmp_path, monkeypatch):
    monkeypatch.delenv(MIRROR_VARIABLE, raising=False)
    contents = {
        "images_background.zip": archive_of(
            "background", {"Greek/character02": [1, 2], "Greek/character01": [0, 3], "Latin/character01": [4, 4]}
        ),
        "images_evaluation.zip": archive_of("evaluation", {"Tengwar/character01": [5, 6]}),
    }
    (tmp_path / "omniglot").mkdir()
    for name, content in contents.items():
        (tmp_path / "omniglot" / name).write_bytes(content)
    files = (OriginalFile(name, hashlib.md5(content).hexdigest()) for name, content in contents.items())
    prepare("omniglot", tmp_path / "raw", str(tmp_path), Source("omniglot", tuple(files)))
    raw = load(tmp_path / "raw")
    assert raw.train_labels.tolist() == [0, 0, 1, 1, 2, 2]  # by name, not in the order of the archive
    assert raw.test_labels.tolist() == [3, 3]
    rows = [0, 3, 1, 2, 4, 4]
    for image, row in zip(raw.train_images[:, 0], rows, strict=True):  # ink is bright
        assert (image[4 * row : 4 * row + 4] == 255).all()
        assert (abs(image[4 * row + 4].astype(int) - 128) < 20).all()  # pixels are averages
        assert (image != 0).sum() == 5 * 28
    assert raw.test_images.shape == (2, 1, 28, 28)


def test_omniglot_is_looked_for_where_torchvision_knows_it(monkeypatch):
    from torchvision.datasets import Omniglot

    asked = []

    def read(base, md5, name):
        asked.append((base + name, md5[name]))
        raise sources._TroubleError("not here", unreachable=False)

    monkeypatch.delenv(MIRROR_VARIABLE, raising=False)
    monkeypatch.setattr(sources, "_download", read)
    with pytest.raises(UserError, match=r"images_background\.zip.*(?s:.*)data\.name: glyphs, which needs no download"):
        sources.fetch(DATASETS["omniglot"].source)
    assert asked == [(f"{Omniglot.download_url_prefix}/images_background.zip", Omniglot.zips_md5["images_background"])]
