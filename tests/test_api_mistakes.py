"""Every mistake with `fit` and what it returns gets one line: whose, where, and the fix."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

import fedbilevel as fb
from tests.fitting import fitted, frames, hospitals, in_frames, pictures, samples


def _with(name: str, pair: object) -> dict[str, object]:
    return hospitals() | {name: pair}


def _changed(array: np.ndarray, place: object, value: object) -> np.ndarray:
    array = array.astype(object if isinstance(value, str) else np.float64)
    array[place] = value
    return array


X, Y = samples(0, 60)
NUMBERS = {name: (X, 100 * X[:, 0]) for name, (X, _) in hospitals().items()}
NOT_FINITE = r"Fix: lower the method's step sizes, eta_y first\.$"
MISTAKES = [
    ({"algorithm": "fedbio_local"}, "keeps a head of its own on each client"),
    ({"algorithm": "lfednest"}, "keeps a head of its own on each client"),
    ({"validation": (None, None)}, "validation: X is NoneType"),
    ({"validation": (np.full((9, 6), np.nan), np.arange(9) % 3)}, "validation: every value of its samples is missing"),
    ({"clients": {"a": (1, 2), "b": (1, 2)}}, "client 'a': X is int"),
    ({"clients": {"one": (X, Y)}}, "at least two"),
    ({"clients": _with("Ulm", (X, Y[:5]))}, "client 'Ulm': 60 samples and targets of shape"),
    ({"clients": _with("Ulm", X)}, "client 'Ulm' is ndarray"),
    ({"clients": _with("Ulm", (X[:, :4], Y))}, "samples of shape"),
    ({"clients": _with("Ulm", (pd.DataFrame(X), Y))}, "is a DataFrame and"),
    ({"algorithm": "primal_duel"}, "primal_dual"),
    ({"eta_q": 0.1}, "eta_q is no parameter"),
    ({"eta_w": -1.0}, "greater than 0"),
    ({"rounds": 0}, "rounds"),
    ({"model": "lenet6"}, "lenet5"),
    ({"model": torch.nn.Linear(5, 3)}, "model: it fails on samples"),
    ({"model": torch.nn.Linear(6, 2)}, "last layer"),
    ({"participation": 2}, "participation"),
    ({"clients": _with("Ulm", (_changed(X, (3, 2), np.inf), Y))}, r"client 'Ulm': X\[3, 2\] is inf"),
    ({"clients": _with("Ulm", (_changed(X, (3, 2), "many"), Y))}, r"client 'Ulm': X\[3, 2\] is 'many', no number"),
    ({"clients": _with("Ulm", (X, _changed(Y, 3, np.nan)))}, r"client 'Ulm': y\[3\] is missing \(1 of 60"),
    ({"validation": (X, _changed(Y, 3, np.inf))}, r"validation: y\[3\] is inf"),
    ({"clients": _with("Ulm", (X[:0], Y[:0]))}, "client 'Ulm' holds no samples. Fix: leave the client out"),
    ({"validation": (X[:0], Y[:0])}, "validation holds no samples. Fix: None"),
    ({"clients": list(hospitals().values())}, "clients is list. Fix: a dictionary"),
    ({"clients": {1: (X, Y), "1": (X, Y)}}, "clients: 1 and '1' have the same name"),
    ({"clients": _with("", (X, Y))}, "clients: '' is no name"),
    ({"clients": _with("Ulm", (X, np.eye(3)[Y]))}, r"client 'Ulm': targets of shape \(60, 3\). Fix: y.argmax"),
    (
        {"clients": NUMBERS | {"Ulm": (X, ["7.5"] * 60)}},
        r"client 'Ulm': y\[0\] is the text '7.5', and y of client 'Lyon'",
    ),
    (
        {"clients": {name: pictures(i) for i, name in enumerate("ab")}, "validation": pictures(8, kind=float)},
        "validation: the pixels are float64, and uint8 of client 'a'",
    ),
    (
        in_frames(x2=["7"] * 59 + ["many"]),
        "client 'Lyon': column 'x2' holds 'many' in row 59 .*numbers in client 'Ulm'",
    ),
    (in_frames(x2=pd.Timestamp("2026-01-01")), "client 'Lyon': column 'x2' holds dates, and numbers in client 'Ulm'"),
    (in_frames(x2=[np.inf] * 60), r"client 'Lyon': X\['x2'\]\[0\] is inf"),
    (in_frames() | {"validation": (frames((X, Y))[0][["x0", "x0"]], Y)}, "validation: column 'x0' of X is there twice"),
    (
        in_frames() | {"validation": (pd.DataFrame(X, columns=pd.MultiIndex.from_product([[0, 1], [0, 1, 2]])), Y)},
        "validation: the columns of X have 2 levels",
    ),
    ({"clients": {str(i): samples(i, 1) for i in range(12)}, "test": None}, r"each client keeps one.*test=\(X, y\)"),
    ({"clients": _with("Ulm", ([[1.0] * 6, [2.0]], [0, 1]))}, "client 'Ulm': X or y: its rows have several lengths"),
    (
        {"validation": (X, Y + 5)},
        "validation: none of its classes, such as '5', is a client's; theirs are '0', '1', '2'",
    ),
    ({"validation": None, "clients": {"a": samples(0, 2), "b": samples(1, 2)}}, r"give a validation set \(fit: valid"),
    ({"algorithm": None}, "algorithm is NoneType"),
    ({"model": 3}, "model is int. Fix: a name, a module"),
    ({"model": lambda: 3}, r"model: calling it with \(6, 1, 3\) failed \(TypeError"),
    ({"model": torch.nn.Sequential(torch.nn.Linear(6, 3), torch.nn.Dropout())}, "model cannot be used: it is random"),
    ({"model": torch.nn.Linear(6, 3).double()}, r"model: its parameters are torch.float64. Fix: model.float\(\)"),
    ({"alpha": 1.0}, "alpha is no parameter of primal_dual .* It is one of fedcm"),
    ({"lr": 0.1, "algorithm": "fedavg"}, "lr is no parameter of fedavg .* Its steps are eta, eta_decay, eta_g"),
    ({"group": "person"}, "fit: group is of files and stages.* Fix: groups, a dictionary"),
    ({"groups": [1] * 60}, "groups is list. Fix: a dictionary"),
    ({"groups": {"Ulm": [1] * 60}}, "groups: 'Lyon' is missing there"),
    ({"groups": dict.fromkeys([*hospitals(), "Rom"], [1] * 60)}, "groups: 'Rom' is no client"),
    ({"groups": dict.fromkeys(hospitals(), [1] * 59)}, r"client 'Ulm' has 60 samples and groups of shape \(59,\)"),
    ({"groups": dict.fromkeys(hospitals(), (None, *[1] * 59))}, "client 'Ulm' has none for sample 0"),
    ({"clients": _with("Ulm", (X, None))}, "client 'Ulm': y is None. Fix: a target for each sample"),
    (
        {"clients": _with("Ulm", (X, np.ma.masked_array(Y, Y == 0)))},
        rf"client 'Ulm': y\[{int((Y == 0).argmax())}\] is missing",
    ),
    ({"clients": _with("Ulm", (X, [1, "1", 2] * 20))}, r"client 'Ulm': y\[1\] is the text '1', and 1 is there too"),
    (
        {"clients": _with("Ulm", (X, np.array([True, "True"] * 30, dtype=object)))},
        r"y\[1\] is the text 'True', and True is there too",
    ),
    (
        {"clients": _with("Ulm", (np.full((60, 6), np.inf, np.float16), Y))},
        r"client 'Ulm': X\[0, 0\] is inf. Fix: nan",
    ),
    (
        {"clients": NUMBERS, "validation": NUMBERS["Ulm"], "test": None, "task": "classification"},
        "nearly every sample has a class of its own",
    ),
    *(
        ({"algorithm": name, "eta_y": 1e30, "clients": NUMBERS, "validation": NUMBERS["Graz"], "test": None}, said)
        for name, said in (("fedbio", NOT_FINITE), ("fedbioacc", NOT_FINITE))
    ),
]


@pytest.mark.parametrize(("wrong", "said"), MISTAKES, ids=range(len(MISTAKES)))
def test_a_mistake_is_answered_in_a_line(wrong, said):
    with pytest.raises(fb.UserError, match=said) as caught:
        fitted(**wrong)
    assert "\n" not in str(caught.value)
    assert "Fix: " in str(caught.value) or "Did you mean" in str(caught.value)


def test_samples_for_a_prediction_must_be_as_those_of_the_clients(tmp_path):
    X, y = samples(12, 40)
    found = fitted(rounds=2)
    seen = fitted(
        clients={name: pictures(i) for i, name in enumerate("abc")}, validation=pictures(8), test=None, rounds=2
    )
    pixels = pictures(9)[0]
    assert (seen.predict_proba(pixels) == seen.predict_proba(pixels.astype(np.int64))).all()
    scaled = fitted(
        clients={name: pictures(i, kind=np.float32) for i, name in enumerate("abc")},
        validation=pictures(8, kind=np.float64),
        test=None,
        rounds=2,
    )
    framed = fitted(**in_frames())
    (tmp_path / "a file").touch()
    good = frames((X, y))[0]
    for ask, said in (
        (lambda: seen.predict(pixels.astype(float)), "it holds float64, and the clients' images are uint8, 0 to 255"),
        (lambda: seen.predict_proba(pixels / 255), "it holds float64, and the clients' images are uint8"),
        (lambda: seen.predict(pixels.astype(int) + 200), "int64 beyond 0..255"),
        (lambda: scaled.predict(pixels), "it holds uint8, and the clients' images are float32"),
        (lambda: framed.predict(X), r"a table is wanted, and this is ndarray. Fix: pandas.DataFrame"),
        (lambda: framed.predict(X.tolist()), "a table is wanted"),
        (lambda: framed.predict(good.set_axis([*good.columns[:5], "x0"], axis=1)), "no column 'x5'"),
        (lambda: framed.predict(pd.concat([good, good["x0"]], axis=1)), "column 'x0' is there twice"),
        (lambda: framed.predict(good.assign(x3="many")), "holds texts, such as 'many'"),
        (lambda: found.predict(np.array([["a"] * 6], dtype=object)), r"X\[0, 0\] is 'a', no number"),
        (lambda: found.predict(X[0]), r"its shape is \[6\], and \[m, 6\] is wanted. Fix: X\[None\]"),
        (lambda: found.predict(None), "X is NoneType. Fix: an array of samples"),
        (lambda: found.predict({"x0": [1.0]}), "X is dict. Fix: an array of samples"),
        (lambda: framed.predict(None), "X is NoneType. Fix: a DataFrame of samples"),
        (lambda: framed.predict({"x0": [1.0]}), r"X is dict. Fix: pandas.DataFrame\(X\)"),
        (lambda: framed.predict(good.iloc[0]), r"X is Series. Fix: X.to_frame\(\).T for one row"),
        (lambda: found.score(X[:0], []), "score: 0 samples"),
        (lambda: found.report(tmp_path / "a file" / "r.html"), "cannot be written"),
        (lambda: found.score(X, y[:5]), "score: 40 samples and 5 targets"),
        (lambda: found.score(X, ["a"] * 40), "no target is one of the classes '0', '1', '2'"),
        (lambda: found.report(tmp_path), "is a folder. Fix: a file, such as"),
    ):
        with pytest.raises(fb.UserError, match=said) as caught:
            ask()
        assert "\n" not in str(caught.value)
