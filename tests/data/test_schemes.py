"""What each scheme deals to whom."""

import math

import numpy as np
import pytest

from pipeline.data.partition import check
from pipeline.data.schemes.base import default_groups
from pipeline.data.schemes.dirichlet import _dealt_in_turn
from pipeline.data.schemes.quantity import power_law_sizes
from tests.data.dealing import GROUPS, LABELS, make, part, part_labels, true_labels


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


def test_another_noise_client_leaves_the_others_as_they_are():
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


@pytest.mark.parametrize("scheme", ["iid", "shards", "quantity", "label_noise", "balanced", "powerlaw"])
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
@pytest.mark.parametrize("classes", [3, 25])
def test_the_concentration_is_per_class_however_many_there_are(classes, replacement):
    """E sum_c p_c^2 = (a + 1) / (C a + 1), a = 0.5: 0.6 for three classes, 1/9 for 25; n samples add (1 - that) / n.
    Were it a times 10 / C, 0.444 and 0.2. Means over 300 clients, whose standard deviations are below 0.22 and 0.06."""
    labels = true_labels(per_label=6 + 30_000 // classes, classes=classes)
    p = make("dirichlet", labels=labels, classes=classes, clients=300, concentration=0.5, replacement=replacement)
    shares = p.label_counts() / 100
    exact = 1.5 / (0.5 * classes + 1)
    expected, deviation = exact + (1 - exact) / 100, {3: 0.22, 25: 0.06}[classes]
    assert (shares**2).sum(axis=1).std() < deviation
    assert (shares**2).sum(axis=1).mean() == pytest.approx(expected, abs=4.5 * deviation / math.sqrt(300))


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


def test_dirichlet_cycle_deals_to_clients_in_random_order():
    """One class of 1000 images for ten clients: what a client gets is spread over the whole deal, a mean place of 499.5
    with a standard deviation of 1000 / sqrt(12 * 100) = 29. Dealt to one after another, the first would have 49.5."""
    hands = _dealt_in_turn(np.ones((10, 1)), [np.arange(1000)], 100, np.random.default_rng(0))
    assert sorted(np.concatenate(hands)) == list(range(1000))
    assert all(abs(hand.mean() - 499.5) < 4 * 29 for hand in hands)


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


def test_every_client_s_label_noise_is_its_own():
    """Two clients of 470 samples with a rate of 1/4: which of a client's samples are wrong has nothing to do with which
    of the other's are (118 * 118 / 470 = 30 in common, standard deviation 4), and does not change with its rate."""
    p, other = make("label_noise", rates=[0.25, 0.25]), make("label_noise", rates=[0.75, 0.25])
    wrong = [part_labels(p, i) != LABELS[part(p, i)] for i in (0, 1)]
    assert [int(mask.sum()) for mask in wrong] == [118, 118]
    assert abs(int((wrong[0] & wrong[1]).sum()) - 118 * 118 / 470) < 5 * 4
    assert np.array_equal(part_labels(other, 1), part_labels(p, 1))
    assert not np.array_equal(part_labels(other, 0), part_labels(p, 0))


def test_without_clean_clients_there_is_no_oracle():
    assert make("label_noise", rates=[0.5, 0.5]).oracle_weights().tolist() == [0.0, 0.0]


@pytest.mark.parametrize(("classes", "groups"), [(2, [[0], [1]]), (3, [[0], [1], [2]]), (5, [[0, 1], [2, 3], [4]])])
def test_no_group_of_few_labels_is_empty(classes, groups):
    assert default_groups(classes) == groups
