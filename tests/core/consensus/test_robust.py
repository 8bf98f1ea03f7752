"""Robust rules in place of the mean of the clients' changes: numbers by hand, what they bear, and who refuses them."""

import dataclasses

import pytest
import torch

from pipeline.config.spec import override
from pipeline.errors import UserError
from pipeline.methods import ALGORITHMS
from pipeline.methods.consensus import robust
from pipeline.methods.consensus.robust import RULES, Robust
from pipeline.methods.consensus.robust.base import Chosen, count
from pipeline.methods.consensus.robust.clipped import clipped
from pipeline.methods.consensus.robust.krum import krum, scores
from pipeline.methods.consensus.robust.median import median
from pipeline.methods.consensus.robust.trimmed_mean import trimmed_mean
from pipeline.methods.registry import FAMILIES
from pipeline.oracles import FusedLocal, LoopLocal
from pipeline.params import Params
from pipeline.params.decides import of_run
from pipeline.params.resolve import resolve
from tests.core.consensus.quadratics import context_for, options, run, theta

FIVE = torch.tensor([[1.0, 10.0], [2.0, -4.0], [3.0, 0.0], [4.0, 2.0], [100.0, 1.0]], dtype=torch.float64)
EQUAL = torch.full((5,), 0.2, dtype=torch.float64)
SETTINGS = {
    "median": {},
    "trimmed_mean": {"trimmed_mean.share": 0.3},
    "clipped": {"clipped.factor": 1.5},
    "krum": {"krum.bad": 0.2, "krum.keep": 2},
}
NEUTRAL = {"trimmed_mean": {"share": 0.0}, "clipped": {"factor": 1e9}, "krum": {"bad": 0.0, "keep": 100}}


def chosen(rule: str, **settings) -> Chosen:
    return robust.chosen(override(Robust(), {"rule": rule} | (settings or SETTINGS[rule])))


def rows(n: int = 9, d: int = 6, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def shares(n: int) -> torch.Tensor:
    return torch.full((n,), 1 / n, dtype=torch.float64)


# ----------------------------------------------------------------------------------------------- numbers by hand


def test_the_median_by_hand():
    assert median(FIVE).tolist() == [3.0, 1.0]
    assert median(FIVE[:4]).tolist() == [2.5, 1.0]  # of an even number the middle of the two


def test_the_trimmed_mean_by_hand():
    assert trimmed_mean(FIVE, 0.2).tolist() == [3.0, 1.0]
    assert trimmed_mean(FIVE[:4], 0.25).tolist() == [2.5, 1.0]
    assert trimmed_mean(FIVE, 0.21).tolist() == [3.0, 1.0]  # 1.05 clients are two: the median is left
    assert trimmed_mean(torch.arange(10.0)[:, None] ** 2, 0.3).tolist() == [(9 + 16 + 25 + 36) / 4]
    assert count(0.28, 25) == 7  # though 0.28 * 25 is a little more
    assert trimmed_mean(FIVE[:3], 0.49).tolist() == [2.0, 0.0]


def test_clipping_by_hand():
    D = torch.tensor([[3.0, 4.0], [0.0, 1.0], [0.0, 10.0]], dtype=torch.float64)  # norms 5, 1, 10: median 5
    torch.testing.assert_close(clipped(D, shares(3), 1.0), torch.tensor([1.0, 10 / 3], dtype=torch.float64))
    uneven = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    torch.testing.assert_close(clipped(D, uneven, 2.0), torch.tensor([1.5, 4.3], dtype=torch.float64))
    torch.testing.assert_close(clipped(D[:2], shares(2), 1.0), torch.tensor([0.3, 0.9], dtype=torch.float64))
    assert clipped(torch.zeros(3, 2), torch.ones(3) / 3, 1.0).tolist() == [0.0, 0.0]


def test_krum_by_hand():
    D = torch.tensor([[0.0], [1.0], [3.0], [7.0], [50.0]], dtype=torch.float64)
    assert scores(D, 1).tolist() == [1 + 9, 1 + 4, 4 + 9, 16 + 36, 43**2 + 47**2]  # each one's two closest
    assert krum(D, 1).tolist() == [1.0]
    assert krum(D, 1, keep=3).tolist() == [4 / 3]
    assert krum(D, 2).tolist() == [1.0]  # five rows bear one bad one: f is lowered
    assert krum(D, 0).tolist() == [3.0]  # scores 59, 41, 29, ...


# ----------------------------------------------------------------------------------------------- what they keep


@pytest.mark.parametrize("rule", RULES)
def test_the_order_of_the_clients_does_not_matter(rule):
    D, order = rows(), torch.randperm(9, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(chosen(rule)(D[order], shares(9)), chosen(rule)(D, shares(9)))


@pytest.mark.parametrize("rule", ["median", "trimmed_mean", "krum"])
def test_a_common_change_is_kept(rule):
    """Not by clipping, which measures lengths from the server's model."""
    D, shift = rows(), rows(1, seed=5)[0]
    torch.testing.assert_close(chosen(rule)(D + shift, shares(9)), chosen(rule)(D, shares(9)) + shift)
    assert not torch.allclose(chosen("clipped")(D + shift, shares(9)), chosen("clipped")(D, shares(9)) + shift)


@pytest.mark.parametrize("rule", RULES)
def test_the_unit_is_kept(rule):
    torch.testing.assert_close(chosen(rule)(1e6 * rows(), shares(9)), 1e6 * chosen(rule)(rows(), shares(9)))


@pytest.mark.parametrize("rule", RULES)
def test_equal_changes_are_their_mean(rule):
    D = rows(1).expand(9, -1)
    torch.testing.assert_close(chosen(rule)(D, shares(9)), D[0])


@pytest.mark.parametrize("rule", NEUTRAL)
def test_the_neutral_setting_is_the_mean(rule):
    settings = {f"{rule}.{name}": value for name, value in NEUTRAL[rule].items()}
    torch.testing.assert_close(chosen(rule, **settings)(rows(), shares(9)), rows().mean(0))


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("rule", RULES)
def test_fewer_than_three_have_their_mean(rule, n):
    D, uneven = rows(n), torch.tensor([0.7, 0.3], dtype=torch.float64)[:n]
    assert torch.equal(chosen(rule)(D, uneven), uneven @ D)


# ----------------------------------------------------------------------------------------------- what they bear


@pytest.mark.parametrize("size", [10.0, -1e12, 1e300])
@pytest.mark.parametrize("rule", RULES)
def test_bad_rows_move_them_boundedly(rule, size):
    """Two of nine; the mean goes wherever they want."""
    D = rows()
    D[[2, 6]] *= size
    honest = D[[0, 1, 3, 4, 5, 7, 8]]
    found = chosen(rule)(D, shares(9))
    assert bool(found.isfinite().all())
    if rule == "clipped":
        assert found.norm() <= 1.5 * honest.norm(dim=1).max() * (1 + 1e-12)
    else:
        assert bool((found >= honest.min(0).values).all() and (found <= honest.max(0).values).all())
    if abs(size) > 1e3:
        assert D.mean(0).norm() > 1e3 * found.norm()


@pytest.mark.parametrize("rule", ["median", "trimmed_mean", "krum"])
def test_missing_numbers_count_as_large(rule):
    D = rows()
    D[[2, 6]] = torch.nan
    assert bool(chosen(rule)(D, shares(9)).isfinite().all())


@pytest.mark.parametrize("seed", range(5))
def test_krum_tells_rows_apart_that_have_much_in_common(seed):
    """In float32, where the squares leave no digit for the differences."""
    D = (rows(seed=seed) + 3e4).float()
    assert torch.equal(krum(D, 1), krum(D.double(), 1).float())


# ----------------------------------------------------------------------------------------------- in a method


@pytest.mark.parametrize("algorithm", FAMILIES["averaging"])
@pytest.mark.parametrize("rule", RULES)
def test_one_lying_client_of_eight(algorithm, rule, exact):
    """Its optimum is a thousand times as far away. The mean follows it; the rules stay near the others' optimum."""
    lying = dataclasses.replace(exact, b=exact.b.clone())
    lying.b[3] *= 1000
    settings = {"eta": 0.05, "local_steps": 3}
    truth = theta(run(algorithm, exact, 60, **settings))
    found = {
        name: (theta(run(algorithm, lying, 60, federation={"robust": how}, **settings)) - truth).norm()
        for name, how in {"mean": None, rule: chosen(rule)}.items()
    }
    assert found["mean"] > 50
    assert found[rule] < 3


@pytest.mark.parametrize("algorithm", FAMILIES["averaging"])
def test_the_neutral_rule_gives_the_run_of_the_mean(algorithm, noisy):
    """FedCM's momentum too; half of the clients active, with shares by samples."""
    counted = dataclasses.replace(noisy, counts=torch.tensor([3, 7, 5, 1, 4, 2, 6, 8]))
    how = {"participation": 0.5, "aggregation": "samples"}
    mean, neutral = (
        run(algorithm, counted, 5, federation=how | {"robust": rule}, eta=0.1)
        for rule in (None, chosen("clipped", **{"clipped.factor": 1e9}))
    )
    torch.testing.assert_close(theta(neutral), theta(mean))
    for name, value in mean.memory.items():
        torch.testing.assert_close(neutral.memory[name], value)


@pytest.mark.parametrize("rule", RULES)
def test_absent_clients_do_not_count(rule, noisy):
    """A round is that of a federation of its active clients alone."""
    some = [0, 2, 3, 5, 7]
    ids = torch.tensor(some)
    alone = dataclasses.replace(noisy, A=noisy.A[ids], b=noisy.b[ids], ids=ids)
    how = {"robust": chosen(rule)}
    a = run("fedavg", noisy, 3, sets=lambda t: some, federation=how, eta=0.1)
    b = run("fedavg", alone, 3, federation=how, eta=0.1)
    torch.testing.assert_close(theta(a), theta(b))


@pytest.mark.parametrize("rule", RULES)
def test_fused_and_loop_agree(rule, noisy):
    fused, loop = (
        theta(run("fedcm", noisy, 4, oracle=oracle, federation={"robust": chosen(rule)}, alpha=0.5, eta=0.1))
        for oracle in (FusedLocal, LoopLocal)
    )
    torch.testing.assert_close(fused, loop)


# ----------------------------------------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("rule", "settings", "federation", "parts"),
    [
        ("krum", {"krum.bad": 0.4}, {}, ["robust.rule = 'krum'", "at least 11 active clients", "about 8", "krum.bad"]),
        ("krum", {"krum.bad": 0.2}, {"participation": 0.5}, ["at least 5", "about 4", "participation"]),
        ("trimmed_mean", {"trimmed_mean.share": 0.4}, {"participation": 0.25}, ["at least 3", "about 2", "share"]),
        (
            "median",
            {},
            {"participation": 0.25, "sampling": "bernoulli"},
            ["at least 3", "about 2", "robust.rule: mean"],
        ),
        ("trimmed_mean", {"trimmed_mean.share": 0.45}, {}, ["at least 9 active clients", "about 8", "share"]),
    ],
)
def test_too_few_clients_get_an_answer_before_the_first_round(rule, settings, federation, parts, exact):
    how = {"robust": chosen(rule, **settings)} | federation
    with pytest.raises(UserError) as caught:
        ALGORITHMS["fedavg"].init(context_for(exact, options("fedavg"), **how))
    for part in (*parts, "Fix:"):
        assert part in str(caught.value)


def test_only_the_rule_in_use_decides_a_run():
    """So a run without one is the run that it was before there were any."""

    def keys(**settings):
        params = resolve(override(Params(), {"algorithm": "fedavg"} | settings))
        return {name: value for name, value in of_run(params).items() if name.startswith("robust")}

    assert keys(**{"robust.krum.keep": 3}) == {}
    assert keys(**{"robust.rule": "krum"}) == {"robust.rule": "krum", "robust.krum.bad": 0.2, "robust.krum.keep": 1}
    assert keys(**{"robust.rule": "median"}) == {"robust.rule": "median", "robust.median": {}}
