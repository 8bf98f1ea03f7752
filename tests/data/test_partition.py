"""Who holds what: the protocol's numbers, the rules, and an answer to every setting that cannot work."""

import dataclasses
import hashlib
import math
import struct

import numpy as np
import pytest

from pipeline.data.partition import Partition, check, make_partition, summary_table
from pipeline.data.schemes import SCHEMES, power_law_sizes
from pipeline.errors import UserError
from pipeline.params import Partition as Settings
from pipeline.params import partitions

GROUPS = [[0, 1, 2, 3, 4], [5, 6, 7], [8, 9]]
SECTIONS = {
    "lead": partitions.Lead(groups=GROUPS, noise_samples=100),
    "duplicates": partitions.Duplicates(groups=GROUPS),
    "dirichlet": partitions.Dirichlet(concentration=1.0),
    "mixed": partitions.Mixed(groups=GROUPS, bad_samples=100),
}


def true_labels(per_label: int = 100, classes: int = 10, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).permutation(np.repeat(np.arange(classes), per_label))


LABELS = true_labels()


def settings(scheme: str, validation=4, selection=2, client_validation=0.0, **changes) -> Settings:
    base = Settings(
        scheme=scheme,
        validation_per_label=validation,
        selection_per_label=selection,
        client_validation=client_validation,
        **SECTIONS,
    )
    return dataclasses.replace(base, **{scheme: dataclasses.replace(getattr(base, scheme), **changes)})


def make(scheme: str, labels=LABELS, classes=10, seed=0, **more) -> Partition:
    return make_partition(labels, "digits", classes, settings(scheme, **more), seed)


def part(partition: Partition, i: int) -> np.ndarray:
    return partition.indices[partition.offsets[i] : partition.offsets[i + 1]]


def part_labels(partition: Partition, i: int) -> np.ndarray:
    return partition.labels[partition.offsets[i] : partition.offsets[i + 1]]


# -------------------------------------------------------------------------------- every scheme


@pytest.mark.parametrize("client_validation", [0.0, 0.25])
@pytest.mark.parametrize("scheme", SCHEMES)
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
        assert round(client_validation * whole) - slack <= len(own) <= round(client_validation * whole)
        assert not np.isin(own, part(p, i)).any()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_same_seed_same_partition_other_seed_another(scheme):
    assert make(scheme).hash == make(scheme).hash
    assert make(scheme).hash != make(scheme, seed=1).hash


@pytest.mark.parametrize("scheme", SCHEMES)
def test_weights_sum_to_one(scheme):
    weights = make(scheme).oracle_weights()
    assert weights.sum() == pytest.approx(1.0, abs=1e-12)
    assert weights.dtype == np.float64


@pytest.mark.parametrize("scheme", ["lead", "iid", "shards", "quantity", "duplicates", "label_noise"])
def test_sorted_rows_bias_nothing(scheme):
    """A data set sorted by label is dealt like a shuffled one: every client gets as much, as mixed."""
    mixed, ordered = make(scheme), make(scheme, labels=np.sort(LABELS))
    assert mixed.sizes.tolist() == ordered.sizes.tolist()
    if scheme in ("lead", "duplicates"):  # the labels are given, so are the counts of clean clients
        clean = mixed.clean
        assert np.array_equal(mixed.label_counts()[clean], ordered.label_counts()[clean])
    if scheme == "iid":
        assert ordered.label_counts().std() < 1.5 * math.sqrt(9.4)  # hypergeometric: about 9.4 of each label
    within = ordered.server_validation[:4]  # of label 0: rows 0..99
    assert within.max() > 10  # not the first rows


def test_mixed_has_one_bad_client_of_every_kind():
    """Kinds in order; wrong labels exactly as many as the rate says; a copy is one; quality is the right
    share, and nothing by chance."""
    p = make("mixed", noisy=1, flip_rates=[0.25, 0.6], bad_samples=40, small_samples=5)
    assert p.kinds == ["clean"] * 3 + ["noisy", "flipped", "flipped", "shuffled", "duplicate", "small"]
    assert p.sizes[3:].tolist() == [40, 40, 40, 40, p.sizes[0], 5]
    wrong = [int((part_labels(p, i) != LABELS[part(p, i)]).sum()) for i in range(p.clients)]
    assert 0 < wrong[3] < 40  # some random labels are right by chance
    assert wrong[:3] == [0, 0, 0]
    assert wrong[4:] == [10, 24, 0, 0, 0]
    assert np.array_equal(part(p, 7), part(p, 0))
    assert p.quality == pytest.approx([1, 1, 1, 0, 0.75, 0.4, 0, 1, 1])
    assert p.oracle_weights()[3:].tolist() == [0.0] * 6


def test_the_servers_sets_do_not_depend_on_the_scheme():
    one, two = make("lead"), make("quantity")
    assert np.array_equal(one.server_validation, two.server_validation)
    assert np.array_equal(one.server_selection, two.server_selection)
    more = make("lead", selection=5)
    assert np.array_equal(one.server_validation, more.server_validation)


# ---------------------------------------------------------------------------------------- lead


def test_lead_protocol():
    p = make("lead")
    assert p.kinds == ["clean"] * 3 + ["noisy"] * 7
    assert p.client_labels == GROUPS + [list(range(10))] * 7
    # 94 of each label are left: all of them go to the clean client of the label.
    assert p.sizes.tolist() == [5 * 94, 3 * 94, 2 * 94] + [100] * 7
    assert np.allclose(p.oracle_weights(), [0.5, 0.3, 0.2] + [0] * 7, atol=1e-12)
    expected = np.zeros((3, 10), dtype=int)
    for i, group in enumerate(GROUPS):
        expected[i, group] = 94
    assert np.array_equal(p.label_counts()[:3], expected)


def test_noise_is_uniform_and_images_do_not_repeat_within_a_client():
    p = make("lead", noise_clients=40, noise_samples=500)
    noise = p.label_counts()[3:].sum(axis=0)
    # 20000 uniform labels: 2000 of each, standard deviation sqrt(20000 * 0.09) = 42.
    assert np.abs(noise - 2000).max() < 4 * 42
    agree = np.mean(p.labels[p.offsets[3] :] == LABELS[p.indices[p.offsets[3] :]])
    assert agree == pytest.approx(0.1, abs=4 * math.sqrt(0.09 / 20000))
    for i in range(3, 43):
        assert len(np.unique(part(p, i))) == 500
    assert len(np.unique(p.indices[p.offsets[3] :])) > 900  # from the whole pool of 940


def test_another_noise_client_changes_nobody_else():
    small, large = (
        make("lead", noise_clients=7, client_validation=0.2),
        make("lead", noise_clients=8, client_validation=0.2),
    )
    for i in range(10):
        assert np.array_equal(part(small, i), part(large, i))
        assert np.array_equal(part_labels(small, i), part_labels(large, i))
    assert np.array_equal(small.server_validation, large.server_validation)


def test_labels_outside_every_group_stay_with_the_server_and_the_noise():
    p = make("lead", groups=[[3], [1, 7]], noise_clients=1)
    assert p.client_labels[:2] == [[3], [1, 7]]
    assert np.allclose(p.oracle_weights(), [1 / 3, 2 / 3, 0])


# -------------------------------------------------------------------------------- other schemes


@pytest.mark.parametrize("scheme", ["iid", "shards", "quantity", "label_noise"])
def test_disjoint_schemes_deal_everything_once(scheme):
    p = make(scheme)
    assert len(np.unique(p.indices)) == len(p.indices) == 940


def test_iid_sizes_differ_by_one_at_most():
    p = make("iid", clients=7)  # 940 = 7 * 134 + 2
    assert sorted(p.sizes.tolist()) == [134] * 5 + [135] * 2


def test_shards_hold_few_labels():
    p = make("shards", clients=10, shards_per_client=2)  # shards of 47 = half a label: at most 2 labels each
    assert max(len(labels) for labels in p.client_labels) <= 2
    assert p.sizes.tolist() == [94] * 10


@pytest.mark.parametrize("replacement", ["cycle", "iid"])
@pytest.mark.parametrize("concentration", [0.1, 1.0, 100.0])
def test_dirichlet_statistics(concentration, replacement):
    """E sum_c p_c^2 = (a + 1) / (C a + 1): 0.55 for a = 0.1 (one dominant class), 0.18 for 1."""
    labels = true_labels(per_label=2006)
    p = make("dirichlet", labels=labels, clients=200, concentration=concentration, replacement=replacement)
    n = 20000 // 200
    assert p.sizes.tolist() == [n] * 200
    shares = p.label_counts() / n
    found = (shares**2).sum(axis=1).mean()
    exact = (concentration + 1) / (10 * concentration + 1)
    assert found == pytest.approx(exact + (1 - exact) / n, abs=0.05 if concentration < 1 else 0.015)
    if concentration == 0.1:
        assert np.mean(shares.max(axis=1) > 0.5) > 0.6
    if concentration == 1.0:
        assert shares.max(axis=1).mean() == pytest.approx(0.2929, abs=0.03)  # harmonic number H_10 / 10
    assert shares.mean(axis=0) == pytest.approx(0.1, abs=0.1)


def test_dirichlet_cycle_repeats_no_image_before_its_class_is_used_up():
    p = make("dirichlet", replacement="cycle", concentration=0.1)
    drawn = np.bincount(p.labels, minlength=10)
    for c in range(10):
        times = np.bincount(p.indices[p.labels == c], minlength=len(LABELS))[c == LABELS]
        times = np.sort(times)[6:]  # the server's six images of the label are never dealt
        assert times.max() - times.min() <= 1
        assert times.sum() == drawn[c]


def test_dirichlet_iid_repeats_as_independent_draws_do():
    p = make("dirichlet", replacement="iid", concentration=100.0)
    # 940 draws from 940 images: a share 1 - exp(-1) = 0.632 of them is met.
    assert len(np.unique(p.indices)) / 940 == pytest.approx(1 - math.exp(-1), abs=0.05)


def test_dirichlet_validation_parts_are_disjoint_although_images_repeat():
    p = make("dirichlet", concentration=0.05, client_validation=0.5)
    assert len(np.unique(p.indices)) < len(p.indices)
    check(p, LABELS)


def test_power_law_sizes():
    assert power_law_sizes(700, 4, 1.0, 1).tolist() == [336, 168, 112, 84]  # 700 / (25/12) = 336
    assert power_law_sizes(100, 4, 0.0, 1).tolist() == [25] * 4
    # Without the floor 48, 24, 16, 12; the last is raised to 20, then the third, and 60 go 2 : 1.
    assert power_law_sizes(100, 4, 1.0, 20).tolist() == [40, 20, 20, 20]
    assert power_law_sizes(40, 4, 3.0, 10).tolist() == [10] * 4
    assert power_law_sizes(1003, 3, 1000.0, 1).tolist() == [1001, 1, 1]


def test_quantity():
    p = make("quantity", clients=10, exponent=1.5, min_samples=30)
    assert p.sizes.min() == 30
    assert p.sizes.sum() == 940
    assert np.all(np.diff(p.sizes) <= 0)
    assert p.sizes[0] / p.sizes[1] == pytest.approx(2**1.5, rel=0.02)


@pytest.mark.parametrize("client_validation", [0.0, 0.3])
def test_duplicates_are_exact_copies(client_validation):
    p = make("duplicates", copies=2, source=1, client_validation=client_validation)
    assert p.kinds == ["clean"] * 3 + ["duplicate"] * 2
    for i in (3, 4):
        assert np.array_equal(part(p, i), part(p, 1))
        assert np.array_equal(part_labels(p, i), part_labels(p, 1))
        assert p.client_labels[i] == [5, 6, 7]
    assert np.allclose(p.oracle_weights(), [0.5, 0.3, 0.2, 0, 0])


def test_label_noise_rates():
    rates = [0.0, 0.25, 1.0, 0.0]
    p = make("label_noise", rates=rates)
    assert p.kinds == ["clean", "flipped", "flipped", "clean"]
    for i, rate in enumerate(rates):
        wrong = np.sum(part_labels(p, i) != LABELS[part(p, i)])
        assert wrong == round(rate * 235)  # a changed label is always another one
    shift = (part_labels(p, 2) - LABELS[part(p, 2)]) % 10
    assert set(shift.tolist()) == set(range(1, 10))
    clean = p.label_counts()[[0, 3]]
    expected = (clean / clean.sum(axis=0)).sum(axis=1) / 10
    assert np.allclose(p.oracle_weights(), [expected[0], 0, 0, expected[1]])


def test_nobody_clean_means_no_oracle():
    assert make("label_noise", rates=[0.5, 0.5]).oracle_weights().tolist() == [0.0, 0.0]


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
