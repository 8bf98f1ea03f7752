"""Equal label counts on every client; few labels each, with power-law sizes."""

import math

import numpy as np
import pytest

from pipeline.data.partition import make_partition
from pipeline.data.schemes.balanced import Balanced
from pipeline.data.schemes.powerlaw import Powerlaw, in_proportion
from pipeline.errors import UserError
from pipeline.params import PartitionSettings as Settings
from tests.data.dealing import make, part
from tests.data.test_bilevel_schemes import mnist_labels

# -------------------------------------------------------------------------------------- balanced


def test_a_hundred_clients_of_cifar100_hold_five_of_every_label():
    """Section 4.2 of the a_fedpd specification: 50,000 images, 500 of every label."""
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(100), 500))
    settings = Settings("balanced", 0, 0, 0.0, balanced=Balanced(100))
    p = make_partition(labels, "cifar100", 100, settings, 0)
    assert np.array_equal(p.label_counts(), np.full((100, 100), 5))
    assert len(np.unique(p.indices)) == 50_000


def test_what_is_left_over_goes_round():
    """94 of every label = 7 * 13 + 3, and 940 = 7 * 134 + 2: neither counts nor sizes differ by more than one."""
    p = make("balanced", clients=7)
    counts = p.label_counts()
    assert [sorted(column) for column in counts.T.tolist()] == [[13] * 4 + [14] * 3] * 10
    assert sorted(p.sizes.tolist()) == [134] * 5 + [135] * 2
    others = make("balanced", clients=7, seed=1)
    assert not np.array_equal(counts, others.label_counts())  # who gets them is drawn


@pytest.mark.parametrize("scheme", ["balanced", "powerlaw"])
def test_samples_of_a_label_are_dealt_at_random(scheme):
    """Rows sorted by label, two clients with half of every label: of 2,000 samples in random order the next belongs to
    the same client half of the time; dealt in turn never, dealt in blocks always. Four standard deviations."""
    more = {"clients": 2} if scheme == "balanced" else {"clients": 2, "labels_per_client": 10, "sigma": 0.0}
    p = make(scheme, labels=np.repeat(np.arange(10), 206), **more)
    owner = np.full(2060, -1)
    owner[part(p, 0)], owner[part(p, 1)] = 0, 1
    dealt = owner[owner >= 0]  # without the server's
    assert np.mean(dealt[1:] == dealt[:-1]) == pytest.approx(0.5, abs=4 * 0.5 / math.sqrt(2000))


# -------------------------------------------------------------------------------------- powerlaw


@pytest.mark.parametrize("k", [1, 2, 3])
def test_client_i_holds_k_labels_from_i_on(k):
    p = make("powerlaw", clients=12, labels_per_client=k, min_per_label=7)
    assert p.client_labels == [sorted((i + j) % 10 for j in range(k)) for i in range(12)]
    counts = p.label_counts()
    assert np.array_equal(np.count_nonzero(counts, axis=1), [k] * 12)
    assert counts[counts > 0].min() >= 7
    assert np.array_equal(counts.sum(axis=0), [94] * 10)


def test_the_largest_fractions_are_rounded_up():
    """7 in proportion to 1 : 2 : 3 are 1.17, 2.33 and 3.5; 8 are 1.33, 2.67 and 4."""
    weight = np.array([1.0, 2.0, 3.0])
    assert in_proportion(7, weight).tolist() == [1, 2, 4]
    assert in_proportion(8, weight).tolist() == [1, 3, 4]
    assert in_proportion(0, weight).tolist() == [0, 0, 0]


def test_no_spread_means_equal_shares():
    """Each label has two clients of ten, 94 samples for both."""
    counts = make("powerlaw", sigma=0.0).label_counts()
    assert counts[counts > 0].tolist() == [47] * 20


def test_the_split_of_mnist_in_the_literature():
    """A thousand clients of two labels, at least five of each; mean 60 of 60,000 images. A label's shares beyond the
    five are log-normal: from one to two deviations above the median they grow by e^2. The public generator's rule,
    drawn two hundred times, gives sizes of a deviation 1.8 to 3.6 times their mean, most often 2.4."""
    ratios, growths = [], []
    for seed in range(3):
        settings = Settings("powerlaw", 0, 0, 0.0, powerlaw=Powerlaw(1000))
        p = make_partition(mnist_labels(), "mnist", 10, settings, seed)
        assert p.sizes.sum() == len(np.unique(p.indices)) == 60_000
        counts = p.label_counts()
        assert set(np.count_nonzero(counts, axis=1)) == {2}
        assert counts[counts > 0].min() == 5  # reached: many shares are below one image
        growths.append(np.quantile(counts[counts > 0] - 5, 0.977) / np.quantile(counts[counts > 0] - 5, 0.841))
        ratios.append(p.sizes.std() / p.sizes.mean())
    assert np.mean(growths) == pytest.approx(math.exp(2), rel=0.2)
    assert min(ratios) > 1.8
    assert max(ratios) < 3.6


def test_another_spread_another_tail():
    largest = [make("powerlaw", sigma=sigma).sizes.max() for sigma in (0.0, 0.5, 4.0)]
    assert largest[0] < largest[1] < largest[2]


# ------------------------------------------------------------------------------------ complaints


@pytest.mark.parametrize(
    ("scheme", "changes", "said"),
    [
        ("balanced", {"clients": 95}, r"partition\.balanced\.clients = 95 .* at most 94, since label 0 .* Fix.* iid"),
        ("powerlaw", {"labels_per_client": 11}, r"partition\.powerlaw\.labels_per_client = 11 .* at most 10.* Fix"),
        ("powerlaw", {"clients": 8}, r"partition\.powerlaw\.clients = 8 .* at least 9, .* all 10 labels.* Fix"),
        ("powerlaw", {"min_per_label": 48}, r"min_per_label = 48 .* at most 47, since 10 clients .* 940 samples.* Fix"),
        (
            "powerlaw",
            {"clients": 11, "min_per_label": 40},
            r"min_per_label = 40 .* at most 31, since 3 clients share the 94.* Fix",
        ),
    ],
)
def test_what_the_pool_cannot_serve_is_refused(scheme, changes, said):
    with pytest.raises(UserError, match=said):
        make(scheme, **changes)


def test_the_largest_settings_that_can_work_do():
    assert set(make("balanced", clients=94).sizes) == {10}
    assert set(make("powerlaw", min_per_label=47).sizes) == {94}
    make("powerlaw", clients=9)
    make("powerlaw", clients=1, labels_per_client=10)
