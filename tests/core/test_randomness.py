"""Streams: reproducible, independent of each other, uniform, and no client's draw depends on the others."""

import itertools
from collections import Counter

import pytest
import torch

from pipeline import participation, randomness
from pipeline.errors import UserError
from pipeline.participation import active_clients, by_gaps, distinct, fixed_count


def test_keys_differ_by_every_part():
    keys = {
        randomness.key(seed, purpose, *rest)
        for seed in range(3)
        for purpose in ("gradient", "product")
        for rest in ((1,), (2,), (1, 2), (12,))
    }
    assert len(keys) == 24
    assert all(0 <= key < 2**63 for key in keys)


def test_a_client_s_stream_ignores_the_others():
    stream = randomness.key(0, "gradient", 5)
    alone = randomness.bits(stream, torch.tensor([3]), 8)
    among = randomness.bits(stream, torch.tensor([9, 3, 1000]), 12)
    assert torch.equal(among[1, :8], alone[0])


def test_bits_are_splitmix64():
    """By hand, in Python integers: the finaliser of key + counter * golden ratio."""
    mask, golden = (1 << 64) - 1, 0x9E3779B97F4A7C15

    def mix(z: int) -> int:
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        return z ^ (z >> 31)

    stream, client = randomness.key(1, "x"), 4
    of_client = mix(((client + 1) * golden & mask) ^ stream)
    expected = [mix((of_client + j * golden) & mask) for j in (1, 2, 3)]
    got = randomness.bits(stream, torch.tensor([client]), 3)[0].tolist()
    assert [g & mask for g in got] == expected


def test_positions_are_uniform_with_replacement_in_range():
    sizes = torch.tensor([7, 1, 60_000])
    drawn = randomness.positions(randomness.key(0, "gradient"), torch.arange(3), sizes, 70_000)
    assert (drawn >= 0).all()
    assert (drawn < sizes[:, None]).all()
    counts = torch.bincount(drawn[0], minlength=7).double()
    chi2 = ((counts - 10_000).square() / 10_000).sum()
    assert chi2 < 22.5  # 99.9 % quantile, 6 degrees of freedom


def test_normal_moments():
    z = randomness.normal(randomness.key(0, "noise"), torch.arange(100), 10_000)
    assert float(z.mean()) == pytest.approx(0.0, abs=5e-3)
    assert float(z.var()) == pytest.approx(1.0, abs=1e-2)
    assert float((z**4).mean()) == pytest.approx(3.0, abs=5e-2)


def test_all_clients_take_part():
    assert torch.equal(active_clients(5, "bernoulli", 1.0, 0, 1), torch.arange(5))


@pytest.mark.slow
def test_bernoulli_is_bernoulli_given_non_empty():
    """N = 3, p = 0.2: P(i active | one is) = 0.2 / (1 - 0.8^3) = 0.4098; P(all three) = 0.008 / 0.488 = 0.01639."""
    rounds, present, full = 20_000, torch.zeros(3), 0
    for t in range(rounds):
        active = active_clients(3, "bernoulli", 0.2, seed=1, round_=t)
        assert len(active)
        present[active] += 1
        full += len(active) == 3
    torch.testing.assert_close(present / rounds, torch.full((3,), 0.40984), atol=0.012, rtol=0)
    assert full / rounds == pytest.approx(0.01639, abs=0.003)


def test_fixed_takes_exactly_its_share_without_repeats_and_evenly():
    present = torch.zeros(10)
    for t in range(4000):
        active = active_clients(10, "fixed", 0.3, seed=0, round_=t)
        assert len(set(active.tolist())) == 3
        present[active] += 1
    torch.testing.assert_close(present / 4000, torch.full((10,), 0.3), atol=0.03, rtol=0)


def test_participation_is_a_function_of_seed_round_and_inner_step():
    draw = [active_clients(50, "bernoulli", 0.5, s, t, k).tolist() for s, t, k in ((0, 1, 1), (0, 1, 2), (0, 2, 1))]
    assert draw[0] != draw[1] != draw[2]
    assert draw[0] == active_clients(50, "bernoulli", 0.5, 0, 1, 1).tolist()


def test_no_active_client_is_an_error():
    with pytest.raises(UserError, match=r"federation\.participation = 0\.01.*at least 0\.05.*Fix"):
        fixed_count(10, 0.01)


def test_permutations_are_orders_of_each_client_s_own_positions():
    sizes = torch.tensor([3, 7, 1])
    order = randomness.permutations(5, torch.tensor([4, 0, 9]), sizes)
    assert order.shape == (3, 7)
    for row, n in zip(order.tolist(), sizes.tolist(), strict=True):
        assert sorted(row[:n]) == list(range(n))
        assert sorted(row) == list(range(7))
    alone = randomness.permutations(5, torch.tensor([0]), torch.tensor([7]))
    assert torch.equal(alone[0], order[1])  # the others do not matter


def test_permutations_are_uniform():
    """All 6 orders of 3 samples, over 6000 clients: each within 4.5 standard deviations of 1000."""
    order = randomness.permutations(8, torch.arange(6000), torch.full((6000,), 3))
    counts = (order @ torch.tensor([9, 3, 1])).unique(return_counts=True)[1]
    assert len(counts) == 6
    assert (counts - 1000).abs().max() < 4.5 * (6000 * 1 / 6 * 5 / 6) ** 0.5


def chi_square(counts, probabilities):
    draws = sum(counts.values())
    return sum((counts.get(event, 0) - draws * p) ** 2 / (draws * p) for event, p in probabilities.items())


@pytest.mark.parametrize("p", [0.05, 0.3, 0.8])
def test_clients_drawn_by_gaps_follow_the_law_given_that_one_is_active(p):
    """Every non-empty set of 4 clients, against p^n q^(4 - n) / (1 - q^4): 14 degrees of freedom, 99.99 % quantile."""
    sets = [frozenset(s) for n in (1, 2, 3, 4) for s in itertools.combinations(range(4), n)]
    expected = {s: p ** len(s) * (1 - p) ** (4 - len(s)) / (1 - (1 - p) ** 4) for s in sets}
    assert sum(expected.values()) == pytest.approx(1)
    counts = Counter(frozenset(by_gaps(4, p, 0, t).tolist()) for t in range(4000))
    assert set(counts) <= set(expected)
    assert chi_square(counts, expected) < 42.6


@pytest.mark.parametrize("count", [2, 3])
def test_distinct_clients_are_uniform(count):
    """All subsets of 5 clients of that size, also where the absent ones are drawn: 9 degrees of freedom."""
    subsets = [frozenset(s) for s in itertools.combinations(range(5), count)]
    counts = Counter(frozenset(distinct(5, count, 0, t).tolist()) for t in range(3000))
    assert chi_square(counts, dict.fromkeys(subsets, 1 / len(subsets))) < 33.7


@pytest.mark.parametrize("sampling", ["bernoulli", "fixed"])
@pytest.mark.parametrize("p", [1e-6, 1e-3, 0.4, 0.6, 1 - 1e-9])
def test_a_million_clients(sampling, p):
    active = active_clients(10**6, sampling, p, 0, 1)
    assert torch.equal(active, active_clients(10**6, sampling, p, 0, 1))
    assert bool((active.diff() > 0).all())
    assert active[0] >= 0
    assert active[-1] < 10**6
    assert len(active) == pytest.approx(p * 10**6, abs=1 + 5 * (p * (1 - p) * 10**6) ** 0.5)
    assert p > 0.5 or not torch.equal(active, active_clients(10**6, sampling, p, 0, 2))


@pytest.mark.parametrize(("clients", "p"), [(10, 1e-12), (10, 5e-324), (10**6, 1e-12), (3, 0.1)])
def test_the_rarest_participation_is_drawn_at_once(clients, p, monkeypatch):
    """One uniform client where hardly any comes; a draw per client would be repeated for ever, or be long."""
    monkeypatch.setattr(participation, "_by_client", None)
    found = [active_clients(clients, "bernoulli", p, 0, t) for t in range(300)]
    assert max(map(len, found)) <= 3
    mean = sum(float(active[0]) for active in found) / 300
    assert mean == pytest.approx((clients - 1) / 2, abs=4 * clients / 12**0.5 / 300**0.5)


def test_gaps_go_on_where_more_clients_come_than_expected(monkeypatch):
    monkeypatch.setattr(participation, "SPREAD", -9.0)  # 13 numbers at once, for about 90 clients
    found = [by_gaps(100, 0.9, 0, t) for t in range(300)]
    assert all(bool((active.diff() > 0).all()) for active in found)
    assert sum(map(len, found)) / 300 == pytest.approx(90, abs=4 * 3 / 300**0.5)


def test_where_few_clients_are_drawn_one_by_one_the_draws_are_those_of_recorded_runs():
    assert active_clients(10, "bernoulli", 0.5, 0, 1).tolist() == [2, 5, 9]
    assert active_clients(10, "fixed", 0.3, 0, 1).tolist() == [4, 7, 9]
