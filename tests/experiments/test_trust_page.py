"""The page of the study of trust: its figures, and the small studies of intervals and changes on it."""

import numpy as np
import pytest

from experiments.study import ROOT
from experiments.trust import changes, coverage, page
from experiments.trust.federations import federation
from experiments.trust.picture import common
from experiments.trust.validation import BASES
from pipeline.config.loading import read_yaml


def _row(method, federation, accuracy, *, auc=None, rounds=100):
    row = {"method": method, "federation": federation, "seed": 0, "rounds": rounds, "participation": 1.0}
    row |= {"accuracy": accuracy, "best": accuracy + 0.01, "seconds": 1.0, "wrong": "random labels", "measures": {}}
    return row | ({"auc": auc, "bad_weight": 0.25} if auc is not None else {})


def test_the_page_s_figures_by_hand():
    """Against average: +10 and -2 points, mean +4; half of the runs are more than a point below."""
    rows = page.compared(
        [
            *(_row("average", name, 0.5) for name in "ab"),
            _row("oracle_weights", "a", 0.58),
            _row("primal_dual", "a", 0.6, auc=1.0),
            _row("primal_dual", "b", 0.48, auc=0.7),
            _row("afl", "b", 0.5) | {"measures": {"settled": 0.0}},
        ]
    )
    line = next(line for line in page.table(rows).splitlines() if "primal_dual" in line)
    figures = [cell.strip() for cell in line.strip("|").split("|")]
    expected = ["2", "54.0", "+4.0", "-2.0", "50 %", "+2.0", "+2.0", "0.85", "50 %", "0.250", "", "1.0", "0", "10.0"]
    assert figures == ["**primal_dual**", *expected]
    assert "| afl | 1 | 50.0 | +0.0 |" in page.table(rows)
    assert "| 100 % |" in next(line for line in page.table(rows).splitlines() if "afl" in line)
    assert page.shortcomings(rows).splitlines()[2:] == ["| b-0 | 100 | 1 | -2.0 | 0.70 | 0.250 |"]
    assert {row["federation"] for row in common(rows[:2] + rows[3:])} == {"b"}
    complete, note, shared = page.tables([row for row in rows if row["method"] != "oracle_weights"])
    assert "afl" not in complete
    assert "1 federations where each was run" in note
    assert "| **primal_dual** | 1 | 48.0 |" in shared


def test_what_the_validation_set_decides_by_hand(tmp_path):
    """With 20 samples -2 and +4 points against average, with all +10; other federations do not count."""
    base, other = BASES[:2]
    rows = page.compared(
        [
            *(_row("average", name, 0.5) for name in (base, f"{base}-v20", f"{other}-v20", "iris-1of3")),
            _row("primal_dual", base, 0.6, auc=1.0),
            _row("primal_dual", f"{base}-v20", 0.48, auc=0.8),
            _row("primal_dual", f"{other}-v20", 0.54, auc=1.0),
            _row("primal_dual", "iris-1of3", 0.1, auc=0.0),
        ]
    )
    text = page.about_validation(rows, tmp_path)
    assert text[0] == "## What the validation set decides (100 rounds, all clients in every round)"
    assert (tmp_path / "validation.png").stat().st_size > 1000
    assert text[-1].splitlines()[2:] == [
        "| all | primal_dual | 1 | 60.0 | +10.0 | +10.0 | 1.00 | 0 % | 0.250 |  |",
        "| 20 | primal_dual | 2 | 51.0 | +1.0 | -2.0 | 0.90 | 50 % | 0.250 |  |",
    ]


def test_coverage_by_hand():
    """Weights of four runs with means .5, .5 and 0. Client 0: three of four intervals hold its mean; client 1: all of
    them, width .2; client 2, at 0: all. So 11 of 12, and of the clients in use 7 of 8."""
    low = [[0.4, 0.4, 0.0], [0.4, 0.4, 0.0], [0.35, 0.4, 0.0], [0.55, 0.4, 0.0]]
    high = [[0.6, 0.6, 0.0], [0.6, 0.6, 0.0], [0.55, 0.6, 0.0], [0.75, 0.6, 0.0]]
    weights = [[0.5, 0.5, 0.0], [0.45, 0.55, 0.0], [0.4, 0.6, 0.0], [0.65, 0.35, 0.0]]
    rows = [dict(zip(("weights", "low", "high"), row, strict=True)) for row in zip(weights, low, high, strict=True)]
    found = coverage.covered(rows)
    assert found == pytest.approx({"covered": 11 / 12, "held": 7 / 8, "width": 0.6})


def test_coverage_redraws_the_server_s_samples_alone(tmp_path):
    made = federation("wine-1of4", 0)
    one, again, other = (coverage.redrawn(made, seed) for seed in (1, 1, 2))
    assert one.clients is made.clients
    assert [len(part[1]) for part in (one.validation, one.selection, one.test)] == [24, 20, 30]
    held = np.sort(np.concatenate([part[0].sum(1) for part in (made.validation, made.selection, made.test)]))
    assert np.allclose(
        held, np.sort(np.concatenate([part[0].sum(1) for part in (one.validation, one.selection, one.test)]))
    )
    assert np.array_equal(one.validation[0], again.validation[0])
    assert not np.array_equal(one.validation[0], other.validation[0])
    row = coverage.interval(one, 1, rounds=4, replicates=2)
    assert all(0 <= low <= x <= high <= 1 for low, x, high in zip(row["low"], row["weights"], row["high"], strict=True))
    row |= {"federation": "wine-1of4", "device": "here", "date": "today", "commit": "this"}
    assert "| wine-1of4 | 4 | 1 |" in page.about_intervals([row])[-1]


def test_changes_of_scale(tmp_path):
    """Standardised features do not know their unit; eight times the width; three times the step."""
    made = federation("wine-1of4", 0)
    plain, large = (changes.standardised(made, factor) for factor in (1.0, 1000.0))
    for (X, y), (Z, z) in zip(plain.clients, large.clients, strict=True):
        assert np.allclose(X, Z, atol=1e-5)
        assert np.array_equal(y, z)
    assert np.abs(np.concatenate([X for X, _ in plain.clients]).mean(axis=0)).max() < 0.5
    assert np.array_equal(changes.times(made, 1000.0).validation[0], (1000 * made.validation[0]).astype(np.float32))
    assert changes.wider(made).network[1]["hidden"] == [8 * made.network[1]["hidden"][0]]
    assert changes.CHANGES["eta_w x 3"].options == {"eta_w": 3 * changes.DEFAULTS.eta_w}


def test_what_is_switched_off_is_the_printed_recipe():
    """But for the steps of model and dual, and its gamma and radius, which go with them."""
    recipe = read_yaml(ROOT.parent / "recipes" / "printed.yaml")
    of_method = {key.removeprefix("algorithms.primal_dual."): value for key, value in recipe.items()}
    assert of_method.items() >= changes.PRINTED.items()
    together = changes.ADDITIONS["half, all of these and estimator: paper"]
    assert together.options == changes.PRINTED | {"estimator": of_method["estimator"]}
    assert together.participation == changes.ADDITIONS[together.against].participation == 0.5
    alone = [change.options for said, change in changes.ADDITIONS.items() if ":" in said and "all" not in said]
    switched = {name: value for options in alone for name, value in options.items()}
    assert switched.items() >= changes.PRINTED.items()


def test_the_table_of_changes_by_hand():
    """Width: +4 and -2 points; standardised then x 1,000 is held against standardised alone."""
    accuracies = {
        ("nothing", "a"): 0.90,
        ("nothing", "b"): 0.80,
        ("width x 8", "a"): 0.94,
        ("width x 8", "b"): 0.78,
        ("standardised", "a"): 0.7,
        ("x 1,000, then standardised", "a"): 0.6,
    }
    rows = [
        {
            "change": change,
            "federation": name,
            "seed": 0,
            "accuracy": value,
            "best": value + 0.01,
            "auc": 0.8 + value / 8,
        }
        for (change, name), value in accuracies.items()
    ]
    lines = changes.table(rows, changes.SCALES).splitlines()[2:]
    assert lines == [
        "| nothing | 2 | 85.0 | +0.0 | +0.0 | 0.91 | 0 % | 1.0 |",
        "| standardised | 1 | 70.0 | -20.0 | -20.0 | 0.89 | 100 % | 1.0 |",
        "| x 1,000, then standardised | 1 | 60.0 | -10.0 | -10.0 | 0.88 | 100 % | 1.0 |",
        "| width x 8 | 2 | 86.0 | +1.0 | -2.0 | 0.91 | 50 % | 1.0 |",
    ]
