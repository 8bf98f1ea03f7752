"""Who holds what: the rules of every scheme, the file, and an answer to every setting that cannot work."""

import dataclasses
import hashlib
import itertools
import math
import struct

import numpy as np
import pytest

from pipeline.data.partition import Partition, check, make_partition, summary_table
from pipeline.data.schemes import SCHEMES
from pipeline.errors import UserError
from pipeline.params import PartitionSettings as Settings
from tests.data.dealing import LABELS, make, part

# -------------------------------------------------------------------------------- every scheme

DEALT = [name for name in SCHEMES if name != "natural"]
"""Schemes that deal samples out; `natural` leaves them where they are (tests/data/own)."""


@pytest.mark.parametrize("client_validation", [0.0, 0.25])
@pytest.mark.parametrize("scheme", DEALT)
def test_rules_hold_for_every_scheme(scheme, client_validation):
    p = make(scheme, client_validation=client_validation)
    check(p, LABELS)
    assert np.bincount(LABELS[p.server_validation]).tolist() == [4] * 10
    assert np.bincount(LABELS[p.server_selection]).tolist() == [2] * 10
    clients = np.concatenate([p.indices, p.validation_indices])
    assert not np.isin(clients, np.concatenate([p.server_validation, p.server_selection])).any()
    for i in range(p.clients):
        own = p.validation_indices[p.validation_offsets[i] : p.validation_offsets[i + 1]]
        whole = p.sizes[i] + len(own)
        # Copies of one image stay together under `dirichlet`, so its share may fall a little short.
        slack = 2 if scheme == "dirichlet" else 0
        dealt_out = {"cleaning": 20, "few_shot": 25}  # by the scheme itself
        wanted = dealt_out.get(scheme, round(client_validation * whole))
        assert wanted - slack <= len(own) <= wanted
        assert not np.isin(own, part(p, i)).any()


@pytest.mark.parametrize("scheme", DEALT)
def test_same_seed_same_partition_other_seed_another(scheme):
    assert make(scheme).hash == make(scheme).hash
    assert make(scheme).hash != make(scheme, seed=1).hash


@pytest.mark.parametrize("scheme", DEALT)
def test_weights_sum_to_one(scheme):
    weights = make(scheme).oracle_weights()
    any_is_clean = scheme != "cleaning"
    assert weights.sum() == pytest.approx(1.0 if any_is_clean else 0.0, abs=1e-12)
    assert weights.dtype == np.float64


ORDERED = np.sort(LABELS)  # label c is in the rows 100 c to 100 c + 99


@pytest.mark.parametrize("scheme", ["lead", "iid", "shards", "quantity", "duplicates", "label_noise", "balanced"])
def test_sorted_rows_bias_nothing(scheme):
    """A data set sorted by label is dealt like a shuffled one: every client gets as many samples."""
    mixed, ordered = make(scheme), make(scheme, labels=ORDERED)
    assert mixed.sizes.tolist() == ordered.sizes.tolist()
    if scheme in ("lead", "duplicates"):  # the labels are given, so are the counts of clean clients
        clean = mixed.clean
        assert np.array_equal(mixed.label_counts()[clean], ordered.label_counts()[clean])
    within = ordered.server_validation[:4]  # of label 0: rows 0..99
    assert within.max() > 10  # not the first rows


@pytest.mark.parametrize(
    ("scheme", "changes"),
    [
        ("iid", {}),
        ("quantity", {"clients": 5, "exponent": 1.0}),
        ("label_noise", {"rates": [0.0, 0.5, 1.0]}),
        ("lead", {"noise_samples": 300}),
        ("balanced", {}),
    ],
)
def test_random_parts_of_sorted_rows_hold_every_label(scheme, changes):
    """n of 940 samples without replacement, 94 of each true label: n / 10 of a label, with a variance of
    n (1/10) (9/10) (940 - n) / 939; each client and label within 5 standard deviations. Clean clients of `lead`, whose
    labels are given, are left out."""
    p = make(scheme, labels=ORDERED, **changes)
    for i in range(3 if scheme == "lead" else 0, p.clients):
        n = int(p.sizes[i])
        counts = np.bincount(ORDERED[part(p, i)], minlength=10)
        assert np.abs(counts - n / 10).max() < 5 * math.sqrt(0.09 * n * (940 - n) / 939)
    assert p.clients > 2


@pytest.mark.parametrize("scheme", ["iid", "shards", "quantity", "label_noise", "balanced", "powerlaw", "dirichlet"])
def test_rows_of_a_label_are_mixed_before_they_are_dealt(scheme):
    """Of the 94 samples of a label that are left a client holds n: their mean place among them is 46.5, with a variance
    of (94^2 - 1) / 12 / n (94 - n) / 93. Consecutive rows would be up to 23 off for n = 47."""
    changes = {"concentration": 1.0, "clients": 5} if scheme == "dirichlet" else {}
    p = make(scheme, labels=ORDERED, **changes)
    left = np.setdiff1d(np.arange(1000), np.concatenate([p.server_validation, p.server_selection]))
    farthest = 0.0
    for i, c in itertools.product(range(p.clients), range(10)):
        rows = np.unique(part(p, i))
        places = np.searchsorted(left[ORDERED[left] == c], rows[ORDERED[rows] == c])
        n = len(places)
        if 0 < n < 94:
            off = abs(places.mean() - 46.5) / math.sqrt((94**2 - 1) / 12 / n * (94 - n) / 93)
            farthest = max(farthest, off)
    assert 0 < farthest < 4.5


def test_the_servers_sets_do_not_depend_on_the_scheme():
    one, two = make("lead"), make("quantity")
    assert np.array_equal(one.server_validation, two.server_validation)
    assert np.array_equal(one.server_selection, two.server_selection)
    more = make("lead", selection=5)
    assert np.array_equal(one.server_validation, more.server_validation)


# ------------------------------------------------------------------------------------- complaints


@pytest.mark.parametrize(
    ("scheme", "changes", "key", "words"),
    [
        ("lead", {"validation": 98}, "partition.validation_per_label = 98", "at most 97"),  # 100 - 2 - 1
        ("iid", {"validation": 50, "selection": 60}, "partition.selection_per_label = 60", "at most 49"),
        ("lead", {"groups": [[0, 1], [1, 2]]}, "partition.lead.groups", "twice: 1"),
        ("lead", {"groups": [[0, 10]]}, "partition.lead.groups", "no such label: 10"),
        ("lead", {"groups": [[0, -1]]}, "partition.lead.groups", "labels 0 to 9"),
        ("lead", {"groups": [[0], []]}, "partition.lead.groups", "empty"),
        ("lead", {"groups": []}, "partition.lead.groups", "empty"),
        ("lead", {"noise_samples": 941}, "partition.lead.noise_samples = 941", "at most 940"),
        ("duplicates", {"groups": [[0], [0]]}, "partition.duplicates.groups", "twice: 0"),
        ("duplicates", {"source": 3}, "partition.duplicates.source = 3", "0 to 2"),
        ("iid", {"clients": 941}, "partition.iid.clients = 941", "1 to 940"),
        ("dirichlet", {"clients": 941}, "partition.dirichlet.clients = 941", "1 to 940"),
        ("quantity", {"clients": 941}, "partition.quantity.clients = 941", "1 to 940"),
        ("quantity", {"min_samples": 95}, "partition.quantity.min_samples = 95", "at most 94 for 10 clients"),
        ("shards", {"clients": 500, "shards_per_client": 2}, "partition.shards", "at most 940"),
        ("label_noise", {"rates": [0.1, 1.5]}, "partition.label_noise.rates", "[0, 1]"),
        ("label_noise", {"rates": [-0.1]}, "partition.label_noise.rates", "[0, 1]"),
        ("label_noise", {"rates": [math.nan]}, "partition.label_noise.rates", "[0, 1]"),
        ("label_noise", {"rates": []}, "partition.label_noise.rates", "per client"),
        ("label_noise", {"rates": [0.0] * 941}, "partition.label_noise.rates = 941", "1 to 940"),
    ],
)
def test_impossible_settings_are_answered(scheme, changes, key, words):
    with pytest.raises(UserError) as caught:
        make(scheme, **changes)
    message = str(caught.value)
    assert key in message
    assert words in message
    assert "is not allowed: it must be" in message
    assert "Fix: " in message
    assert "\n" not in message


def test_the_largest_settings_that_can_work_do():
    make("lead", validation=97, noise_samples=10)
    make("lead", noise_samples=940)
    make("quantity", min_samples=94)
    make("shards", clients=470, shards_per_client=2)
    make("iid", clients=940, client_validation=0.9)  # one sample each: it stays a training sample


def test_settings_with_auto_are_a_mistake_of_the_caller():
    with pytest.raises(ValueError, match="resolve"):
        make_partition(LABELS, "digits", 10, Settings(), 0)


# ------------------------------------------------------------------------------------------ check


@pytest.mark.parametrize(
    ("rule", "spoil"),
    [
        ("no image of the server's sets", lambda p: {"server_validation": one_of_each_label(p)}),
        ("the server's sets are disjoint", lambda p: {"server_selection": p.server_validation}),
        ("holds every label equally often", lambda p: {"server_validation": p.server_validation[1:]}),
        ("labels are the true ones", lambda p: {"labels": (p.labels + 1) % 10}),
        ("holds no image twice", lambda p: {"indices": np.concatenate([p.indices[1:2], p.indices[1:]])}),
        ("holds a training sample", lambda p: {"offsets": np.concatenate([[0, 0], p.offsets[2:]])}),
        ("shares no image with a clean one", lambda p: {"offsets": p.offsets, **doubled(p)}),
        ("rows of the training images", lambda p: {"indices": p.indices + 1000}),
        ("lie in 0..9", lambda p: {"labels": p.labels + 10}),
        ("offsets end where", lambda p: {"offsets": p.offsets + 1}),
    ],
)
def test_check_finds_every_broken_rule(rule, spoil):
    p = make("iid")
    broken = dataclasses.replace(p, **spoil(p))
    with pytest.raises(ValueError, match=rule):
        check(broken, LABELS)


def one_of_each_label(p: Partition) -> np.ndarray:
    return p.indices[np.unique(p.labels, return_index=True)[1]]


def doubled(p: Partition) -> dict:
    """Client 1 holds the first image of client 0 with its true label."""
    indices, labels = p.indices.copy(), p.labels.copy()
    indices[p.offsets[1]], labels[p.offsets[1]] = indices[0], labels[0]
    return {"indices": indices, "labels": labels}


def test_parts_of_one_client_must_be_disjoint():
    p = make("iid", client_validation=0.2)
    own = p.validation_indices.copy()
    own[0], labels = p.indices[0], p.validation_labels.copy()
    labels[0] = p.labels[0]
    with pytest.raises(ValueError, match="two parts are disjoint"):
        check(dataclasses.replace(p, validation_indices=own, validation_labels=labels), LABELS)


# ------------------------------------------------------------------------------------------- file


def test_save_and_load(tmp_path):
    p = make("lead", client_validation=0.2)
    path = tmp_path / "federated" / "partition.npz"
    p.save(path)
    q = Partition.load(path)
    for field in dataclasses.fields(Partition):
        a, b = getattr(p, field.name), getattr(q, field.name)
        assert np.array_equal(a, b) if isinstance(a, np.ndarray) else a == b
    assert q.hash == p.hash
    assert q.indices.dtype == np.int64
    first = path.read_bytes()
    p.save(path)
    assert path.read_bytes() == first
    assert [f.name for f in path.parent.iterdir()] == ["partition.npz"]


def test_the_hash_is_of_the_content_alone_and_stable():
    p = Partition(
        dataset="digits",
        classes=2,
        scheme="iid",
        seed=0,
        settings={},
        kinds=["clean"],
        client_labels=[[0, 1]],
        quality=[1.0],
        indices=np.array([3, 4]),
        labels=np.array([0, 1]),
        offsets=np.array([0, 2]),
        validation_indices=np.array([], dtype=np.int64),
        validation_labels=np.array([], dtype=np.int64),
        validation_offsets=np.array([0, 0]),
        server_validation=np.array([0, 1]),
        server_selection=np.array([], dtype=np.int64),
    )
    whole = b'["digits", 2, ["clean"], [[0, 1]]]'
    whole += b"indices 2\n" + struct.pack("<2q", 3, 4) + b"labels 2\n" + struct.pack("<2q", 0, 1)
    whole += b"offsets 2\n" + struct.pack("<2q", 0, 2)
    whole += b"validation_indices 0\nvalidation_labels 0\nvalidation_offsets 2\n" + struct.pack("<2q", 0, 0)
    whole += b"server_validation 2\n" + struct.pack("<2q", 0, 1) + b"server_selection 0\n"
    assert p.hash == hashlib.sha256(whole).hexdigest()
    assert dataclasses.replace(p, seed=1, settings={"a": 1}).hash == p.hash
    assert dataclasses.replace(p, indices=np.array([3, 4], dtype=">i4")).hash == p.hash
    assert dataclasses.replace(p, indices=np.array([4, 3])).hash != p.hash
    assert dataclasses.replace(p, kinds=["noisy"]).hash != p.hash


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "content", "pickle"])
def test_a_damaged_file_is_told(tmp_path, damage):
    path = tmp_path / "partition.npz"
    p = make("iid")
    p.save(path)
    content = bytearray(path.read_bytes())
    if damage == "flip":
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    elif damage == "cut":
        path.write_bytes(content[: len(content) // 2])
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "content":  # a well-formed file that is not what was saved
        with np.load(path) as file:
            arrays = dict(file)
        arrays["labels"] = (arrays["labels"] + 1) % 10
        np.savez(path, **arrays)
    else:
        np.savez(path, about=np.array([{}], dtype=object))
    with pytest.raises(UserError, match=r"partition\.npz is damaged: .* Fix: delete .* and run dvc repro"):
        Partition.load(path)


def test_a_missing_file_is_told(tmp_path):
    with pytest.raises(UserError, match="Fix: run dvc repro"):
        Partition.load(tmp_path / "partition.npz")


def test_summary_table():
    lines = summary_table(make("lead", noise_clients=1)).splitlines()
    assert lines[0].startswith("digits, partition lead, seed 0, hash ")
    assert lines[1].split() == ["client", "kind", "labels", "train", "validation", "oracle", "weight"]
    assert lines[3].split() == ["0", "clean", "0-4", "470", "0", "0.500"]
    assert lines[6].split() == ["3", "noisy", "0-9", "100", "0", "0.000"]
    assert lines[7].startswith("server: 40 validation and 20 selection samples")
