"""Values far off and clients in other units: named, and without a say in a column's scale."""

from __future__ import annotations

import numpy as np
import pytest

import fedbilevel as fb
from pipeline.data.own.scales import Scales
from tests.fitting import RULE, fitted, hospitals, in_frames, pictures, samples

NAMES = ["Graz", "Lyon", "Ulm", "Wien"]
RANDOM = np.random.default_rng(0)
OWNERS = np.repeat(np.arange(4), 100)
NORMAL = RANDOM.normal(5, 2, 400)
VALIDATION = RANDOM.normal(5, 2, 60)


def look(values, server=None, owners=OWNERS, names=NAMES) -> tuple[np.ndarray, list[str]]:
    scales = Scales(owners, names, 1)
    return scales.sound("column 'age'", values, server or {}), scales.notes


def times(factor: float, *clients: int) -> np.ndarray:
    return np.where(np.isin(OWNERS, clients), factor, 1.0) * NORMAL


@pytest.mark.parametrize(
    "values",
    [
        NORMAL,
        RANDOM.lognormal(0, 2, 400),
        RANDOM.standard_t(2, 400),
        np.where(RANDOM.random(400) < 0.95, 0, RANDOM.lognormal(3, 1, 400)),
        (np.arange(400) == 7) * 1.0,
        NORMAL + 100 * OWNERS,  # other places, not other units
        NORMAL * (1 + OWNERS),
        np.full(400, np.nan),
    ],
    ids=["normal", "lognormal", "student", "zeros", "one", "places", "spreads", "missing"],
)
def test_plain_values_all_count(values):
    counted, notes = look(values, {"validation": values[::5]})
    assert counted.all()
    assert not notes


@pytest.mark.parametrize("value", [300.0, 1e12, -1e20])
@pytest.mark.parametrize("pool", [False, True])
def test_a_value_far_off_is_named_and_does_not_count(value, pool):
    values = NORMAL.copy()
    values[120] = value
    counted, notes = look(values, **({"owners": 0 * OWNERS, "names": [""]} if pool else {}))
    assert np.flatnonzero(~counted).tolist() == [120]
    whose = "a row" if pool else "client 'Lyon'"
    assert len(notes) == 1
    assert f"column 'age': {whose} has {value:g}, and all other values lie within -" in notes[0]


def test_a_value_far_off_in_the_servers_set_is_named():
    counted, notes = look(NORMAL, {"validation": VALIDATION, "test": np.append(VALIDATION, 1e6)})
    assert counted.all()
    assert len(notes) == 1
    assert "test has 1e+06" in notes[0]


@pytest.mark.parametrize("server", [{}, {"validation": VALIDATION}])
@pytest.mark.parametrize(("factor", "bad"), [(1000, (1,)), (0.001, (1,)), (1000, (1, 2)), (10, (3,))])
def test_a_client_in_other_units_is_named_and_does_not_count(factor, bad, server):
    counted, notes = look(times(factor, *bad), server)
    assert set(OWNERS[~counted]) == set(bad)
    assert not counted[np.isin(OWNERS, bad)].any()
    assert len(notes) == len(bad)
    for i, line in zip(bad, notes, strict=True):
        whose, times_found = line.removesuffix(" times the others' in column 'age': other units?").split(
            ": values are about "
        )
        assert whose == f"client {NAMES[i]!r}"
        assert float(times_found) == pytest.approx(factor, rel=0.3)


def test_of_two_clients_the_validation_set_decides_or_the_smaller_one_counts():
    two, names = OWNERS[:200], NAMES[:2]
    for factor in (1000, 0.001):
        values = np.where(two == 0, factor, 1) * NORMAL[:200]
        counted, notes = look(values, {"validation": VALIDATION}, two, names)
        assert (two[counted] == 1).all()
        assert "client 'Graz'" in notes[0]
        counted, _ = look(values, {}, two, names)
        assert (two[counted] == (1 if factor > 1 else 0)).all()


def test_a_validation_set_in_other_units_is_named():
    counted, notes = look(NORMAL, {"validation": 1000 * VALIDATION})
    assert counted.all()
    assert len(notes) == 1
    assert notes[0].startswith("validation: values are about 1000 times the others'")
    one_place = NORMAL + 100 * OWNERS
    assert not look(one_place, {"validation": one_place[:100]})[1]


@pytest.mark.parametrize("few", [False, True])
def test_one_client_in_other_units_neither_decides_the_scale_nor_makes_twins(few, capsys):
    clients = hospitals()
    if few:
        clients = {name: clients[name] for name in ("Ulm", "Graz")}
    X, y = clients["Graz"]
    found = fitted(clients=clients | {"Graz": (1000 * X, y)}, rounds=2)
    said = capsys.readouterr().err
    assert "client 'Graz': values are " in said
    assert "feature 0 of X" in said
    assert "more than once" not in said
    assert max(found.raw.preprocessing["deviation"]) < 2
    for framed in (in_frames(), in_frames()):
        framed["clients"]["Lyon"][0]["x1"] *= 1000
        fitted(**framed)
        assert "client 'Lyon': values are about " in (said := capsys.readouterr().err)
        assert "in column 'x1': other units?" in said


def test_images_on_another_scale_are_named_and_do_not_decide_it(capsys):
    clients = {name: pictures(i, kind=np.float32) for i, name in enumerate("abcd")}
    sane = fitted(clients=clients, validation=pictures(8, kind=np.float32), test=None, rounds=2)
    assert not capsys.readouterr().err
    clients["b"] = clients["b"][0] / 255, clients["b"][1]
    found = fitted(clients=clients, validation=pictures(8, kind=np.float32), test=None, rounds=2)
    assert "client 'b': values are about 0.004 times the others' in the mean pixel of X" in capsys.readouterr().err
    (kept, all_of_them) = (fit.raw.preprocessing["mean"][0] for fit in (found, sane))
    assert kept == pytest.approx(all_of_them, rel=0.1)


def test_samples_alike_but_for_values_beyond_the_limit_are_no_twins(capsys):
    parts = in_frames()
    X = parts["clients"]["Lyon"][0]
    X.loc[:1] = X.loc[0].to_numpy()  # real twins
    X.loc[2:3] = X.loc[2].to_numpy()
    X.loc[2:3, "x0"] = [500.0, 600.0]  # both beyond ten deviations
    fitted(**parts)
    said = capsys.readouterr().err
    assert "1 of 240 clients' samples occur more than once" in said
    assert "column 'x0': client 'Lyon' has 500, client 'Lyon' has 600, and all other" in said


def test_an_outlying_target_is_named(capsys):
    def numbers(pair):
        return pair[0], pair[0] @ RULE[:, 0]

    clients = {name: numbers(pair) for name, pair in hospitals().items()}
    clients["Graz"][1][3] = 1000
    fitted(clients=clients, validation=numbers(samples(10, 40)), test=None, rounds=2)
    assert "note: y: client 'Graz' has 1000, and all other values lie within" in capsys.readouterr().err


def test_a_run_that_most_answers_are_left_out_of_names_the_clients():
    X, _ = samples(10, 60)
    clients = {"Ulm": (X, X @ RULE[:, 0]), "Graz": (1000 * X[::-1], X[::-1] @ RULE[:, 0])}
    with pytest.raises(fb.UserError, match=r"out of all proportion: .*Graz"):
        fitted(clients=clients, validation=(X, X @ RULE[:, 0]), test=None, rounds=60)
