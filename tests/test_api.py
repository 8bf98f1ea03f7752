"""`fit`: what goes in, what comes out, and mistakes."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import fedbilevel as fb
from pipeline.leave_one_out import without
from tests.fitting import RULE, fitted, frames, hospitals, in_frames, samples


@pytest.fixture(scope="module")
def found() -> fb.Fit:
    return fitted()


def test_the_bad_client_is_found_and_the_model_is_right(found):
    assert list(found.weights.columns) == ["client", "weight", "low", "high", "samples"]
    weights = found.weights.set_index("client").weight
    assert set(weights.index) == set(hospitals())
    assert weights.sum() == pytest.approx(1)
    assert weights["Lyon"] < 0.01 < weights.drop("Lyon").min()
    assert found.suspicious == ["Lyon"]
    X, y = samples(12, 300)
    assert found.score(X, y) > 0.9
    assert found.score(X, y) == pytest.approx((found.predict(X) == y).mean())
    assert found.metrics["test_accuracy"] == pytest.approx(found.score(*samples(11, 200)))


def test_what_is_predicted(found):
    X, _ = samples(12, 5)
    probability = found.predict_proba(X)
    assert probability.shape == (5, 3)
    assert probability.sum(1) == pytest.approx(np.ones(5), abs=1e-5)
    assert found.predict(X).tolist() == probability.argmax(1).tolist()
    scores = found.model(found.prepared(X))
    assert torch.allclose(scores.softmax(1), torch.as_tensor(probability), atol=1e-6)


def test_history_page_and_picture(found, tmp_path):
    assert len(found.history) == 61
    assert found.history["Lyon"].iloc[0] == pytest.approx(0.25)
    page = found.report(tmp_path / "page" / "report.html").read_text(encoding="utf-8")
    assert "Köln" in page
    assert "Suspicious" in page
    assert found.plot_weights().axes


def test_the_example_in_the_readme_finds_the_bad_client(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    example = text.split("```python\n", 1)[1].split("```", 1)[0]
    exec(compile(example, "README.md", "exec"), {})
    assert "['Lyon']" in capsys.readouterr().out
    assert (tmp_path / "report.html").is_file()


def test_without_each_client(found, tmp_path):
    table = fb.leave_one_out(found, progress=False)
    assert list(table.columns) == ["client", "weight", "test_accuracy", "test_accuracy_without", "difference"]
    assert set(table.client) == set(hospitals())
    assert (table.test_accuracy == found.metrics["test_accuracy"]).all()
    assert table.difference.is_monotonic_decreasing
    # The same numbers as a fit that never saw the client; the features' scales differ a little.
    alone = fitted(clients={name: pair for name, pair in hospitals().items() if name != "Graz"})
    without = table.set_index("client").test_accuracy_without
    assert without["Graz"] == pytest.approx(alone.metrics["test_accuracy"], abs=0.03)
    one = fb.leave_one_out(found, clients="suspicious", progress=False)
    assert one.client.tolist() == ["Lyon"]
    assert one.iloc[0].equals(table[table.client == "Lyon"].iloc[0])
    page = found.report(tmp_path / "report.html", leave_one_out=one).read_text(encoding="utf-8")
    assert "test result without it" in page
    assert f"({100 * one.difference[0]:+.1f})" in page
    assert page.count("not tried") == 3
    assert "test result without it" not in found.report(tmp_path / "plain.html").read_text(encoding="utf-8")


def test_leaving_out_from_samples_and_mistakes(found):
    both = fb.leave_one_out(hospitals(), samples(10, 40), clients=["Lyon"], rounds=3, progress=False)
    assert both.client.tolist() == ["Lyon"]
    for wrong, said in (({"clients": "Rom"}, "no client 'Rom'. Fix: all, suspicious"), ({"rounds": 3}, "already")):
        with pytest.raises(fb.UserError, match=said):
            fb.leave_one_out(found, progress=False, **wrong)


def test_a_partition_without_a_client(found):
    left = without(found.partition, 1)
    assert left.names == [name for name in found.partition.names if name != found.partition.names[1]]
    held = np.split(found.partition.indices, found.partition.offsets[1:-1])
    for i, kept in enumerate((0, 2, 3)):
        assert left.indices[left.offsets[i] : left.offsets[i + 1]].tolist() == held[kept].tolist()
    assert left.hash != found.partition.hash


def test_equal_seeds_give_equal_fits(found):
    assert fitted().weights.equals(found.weights)
    assert not fitted(seed=1).weights.equals(found.weights)


def test_tensors_lists_and_texts_as_classes(found):
    names = np.array(["low", "mid", "high"], dtype=object)
    clients = {name: (torch.tensor(X), names[y].tolist()) for name, (X, y) in hospitals().items()}
    X0, y0 = samples(10, 40)
    worded = fitted(clients=clients, validation=(X0, names[y0]), test=None)
    assert set(worded.predict(samples(12, 50)[0])) <= set(names)
    assert worded.score(samples(12, 200)[0], names[samples(12, 200)[1]]) > 0.85


def test_frames_with_categories_and_missing_values():
    def frame(X: np.ndarray) -> pd.DataFrame:
        made = pd.DataFrame(X, columns=[f"x{i}" for i in range(6)])
        made["colour"] = np.where(X[:, 0] > 0, "red", "blau")
        made.loc[::7, "x1"] = np.nan
        return made

    clients = {name: (frame(X), pd.Series(y)) for name, (X, y) in hospitals().items()}
    X0, y0 = samples(10, 40)
    found = fitted(clients=clients, validation=(frame(X0), y0), test=None)
    assert found.suspicious == ["Lyon"]
    assert found.predict(frame(samples(12, 5)[0])).shape == (5,)


@pytest.mark.parametrize("framed", [False, True])
def test_a_client_without_any_value_is_named(framed, capsys):
    form = pd.DataFrame if framed else np.asarray
    clients = {name: (form(X), y) for name, (X, y) in hospitals().items()}
    X, y = clients["Lyon"]
    found = fitted(
        clients=clients | {"Lyon": (X * np.nan, y)},
        validation=(form(samples(10, 40)[0]), samples(10, 40)[1]),
        test=None,
        rounds=3,
    )
    assert np.isfinite(found.weights.weight).all()
    assert "note: client 'Lyon': every value of its samples is missing" in capsys.readouterr().err


def test_numbers_are_predicted_in_their_own_unit():
    def numbers(seed: int, m: int, *, bad: bool = False) -> tuple[np.ndarray, np.ndarray]:
        X, _ = samples(seed, m)
        y = 1000 + 50 * X @ RULE[:, 0]
        return X, np.random.default_rng(seed).permutation(y) if bad else y

    clients = {name: numbers(i, 60, bad=name == "Lyon") for i, name in enumerate(["Ulm", "Lyon", "Graz", "Köln"])}
    found = fitted(clients=clients, validation=numbers(10, 40), test=numbers(11, 200), rounds=150)
    X, y = numbers(12, 100)
    assert found.score(X, y) > 0.9
    assert abs(found.predict(X).mean() - y.mean()) < 20
    assert found.weights.set_index("client").weight["Lyon"] < 0.05
    assert found.suspicious == ["Lyon"]
    with pytest.raises(fb.UserError, match="predict_proba: the targets are numbers"):
        found.predict_proba(X)


def test_a_network_of_ones_own():
    own = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
    before = own[0].weight.clone()
    assert isinstance(fitted(model=own).model[1], torch.nn.Sequential)
    assert torch.equal(own[0].weight, before)
    made = fitted(model=lambda channels, size, classes: torch.nn.Linear(channels, classes), rounds=5)
    assert made.problem.dimension == 21


@pytest.mark.parametrize("model", [None, torch.nn.Linear(6, 3)])
def test_a_fit_can_be_kept(model):
    found = fitted(model=model, rounds=3)
    again = pickle.loads(pickle.dumps(found))
    X, _ = samples(12, 9)
    assert (again.predict_proba(X) == found.predict_proba(X)).all()
    assert again.weights.equals(found.weights)


def test_settings_by_short_and_dotted_name():
    found = fitted(rounds=3, participation=0.5, eta_w=0.1, **{"train.eval_every": 1}, replicates=2)
    assert (found.params.federation.participation, found.params.hyper.eta_w, found.params.train.eval_every) == (
        0.5,
        0.1,
        1,
    )
    assert (found.weights.low <= found.weights.weight).all()
    assert (found.weights.weight <= found.weights.high).all()


def test_classes_come_back_as_they_were_given():
    for kind, given in (
        (bool, lambda y: y == 0),
        (str, lambda y: y.astype(str)),
        (np.int64, lambda y: y),
        (np.int64, lambda y: y.astype(object)),
        (np.float64, lambda y: y + 0.5),
    ):
        clients = {name: (X, given(y)) for name, (X, y) in hospitals().items()}
        X0, y0 = samples(10, 40)
        found = fitted(clients=clients, validation=(X0, given(y0)), test=None, rounds=40, task="classification")
        X, y = samples(12, 50)
        guess = found.predict(X)
        assert all(isinstance(value, kind) for value in guess.tolist()) or guess.dtype == kind
        assert found.score(X, given(y)) == (guess == given(y)).mean() > 0.6


def test_numbers_held_as_objects_are_numbers(capsys):
    plain = fitted(**in_frames())
    x2 = samples(1, 60, bad=True)[0][:, 2]
    for held in (x2.astype(object), x2.astype(str), pd.array(x2, "Float64")):
        assert fitted(**in_frames(x2=held)).weights.equals(plain.weights)
    everywhere = in_frames()
    for part in ("validation", "test"):
        everywhere[part] = everywhere[part][0].astype(object), everywhere[part][1]
    everywhere["clients"] = {name: (X.astype(object), y) for name, (X, y) in everywhere["clients"].items()}
    assert fitted(**everywhere).weights.equals(fitted(**in_frames()).weights)
    X, y = hospitals()["Lyon"]
    mixed = fitted(rounds=3, clients=hospitals() | {"Lyon": (X.astype(object), y.astype(object))})
    assert mixed.weights.equals(fitted(rounds=3).weights)
    assert "note" not in capsys.readouterr().err
    empty = fitted(**in_frames(x2=None))
    assert empty.problem.data.test_images.shape[1] == 7  # and "x2 is missing"
    day = pd.Timestamp("2026-01-01")
    days = {name: [day + pd.Timedelta(days=i) for i in range(60)] for name in hospitals()}
    dated = in_frames()
    dated["clients"] = {
        name: (X.assign(x2=[str(d) for d in days[name]] if name == "Lyon" else days[name]), y)
        for name, (X, y) in dated["clients"].items()
    }
    for part in ("validation", "test"):
        dated[part] = dated[part][0].assign(x2=day.date()), dated[part][1]
    assert fitted(**dated).raw.preprocessing["columns"][2]["date"]


def test_a_feature_may_be_called_y_and_one_may_give_the_label_away(capsys):
    def leaking(pair):
        return np.c_[pair[0], pair[1]], pair[1]

    clients = {name: leaking(pair) for name, pair in hospitals().items()}
    fitted(clients=clients, validation=leaking(samples(10, 40)), test=None, rounds=2)
    assert "note: feature 6 of X gives away the class of 100.0 % of the rows" in capsys.readouterr().err
    named = in_frames()
    clients = {name: (X.rename(columns={"x0": "y"}), y) for name, (X, y) in named["clients"].items()}
    X, y = named["validation"]
    assert fitted(clients=clients, validation=(X.rename(columns={"x0": "y"}), y), test=None, rounds=2).classes


def test_clients_that_are_dealt_anew_are_announced(capsys):
    found = fitted(scheme="iid", rounds=2)
    assert len(found.weights) == 10
    assert "note: partition.scheme: iid deals the samples of the 4 clients anew, to 10" in capsys.readouterr().err


def test_a_validation_set_of_the_clients_own_samples_is_named(capsys, tmp_path):
    """Weights say who agrees with the others then; a given set, or weights that are not learned, need no such note."""
    note = "the validation set was held out from the clients"
    found = fitted(validation=None, rounds=2)
    assert note in capsys.readouterr().err
    assert note.replace("the", "The", 1) in found.report(tmp_path / "unchecked.html").read_text()
    fitted(validation=None, rounds=2, algorithm="fedavg")
    checked = fitted(rounds=2)
    assert note not in capsys.readouterr().err
    assert note[4:] not in checked.report(tmp_path / "checked.html").read_text()


def test_masked_cells_are_missing_ones():
    clients = hospitals()
    X, y = clients["Graz"]
    masked = fitted(clients=clients | {"Graz": (np.ma.masked_array(X, X > 1), y)}, rounds=5)
    missing = fitted(clients=clients | {"Graz": (np.where(X > 1, np.nan, X), y)}, rounds=5)
    assert masked.weights.equals(missing.weights)
    assert masked.problem.data.test_images.shape[1] > 6  # features that say what is missing
    whole = fitted(clients=clients | {"Graz": (np.ma.masked_array(X, False), y)}, rounds=5)
    assert whole.weights.equals(fitted(rounds=5).weights)


@pytest.mark.parametrize("form", [np.asarray, pd.Series])
def test_samples_of_one_feature_need_no_second_axis(form):
    def one(pair):
        return form(pair[0][:, 0]), pair[1]

    clients = {name: one(pair) for name, pair in hospitals().items()}
    found = fitted(clients=clients, validation=one(samples(10, 40)), test=None, rounds=5)
    X = samples(12, 9)[0][:, :1]
    assert found.predict(form(X[:, 0])).tolist() == found.predict(X).tolist()


def test_a_column_that_the_first_client_has_not_is_named(capsys):
    fitted(**in_frames(height=1.7))
    assert "column 'height' is left out: client 'Lyon' has it, client 'Ulm' has not" in capsys.readouterr().err


def test_dates_as_texts_are_numbers_of_days(capsys):
    def dated(pair, seed):
        after = np.random.default_rng(seed).integers(0, 2000, len(pair[1]))
        days = pd.Timestamp("2020-01-01") + pd.to_timedelta(after, unit="D")
        return pair[0].assign(day=days.strftime("%Y-%m-%d").to_numpy()), pair[1]

    parts = in_frames()
    clients = {name: dated(pair, i) for i, (name, pair) in enumerate(parts["clients"].items())}
    found = fitted(clients=clients, validation=dated(parts["validation"], 8), test=None, rounds=5)
    column = found.raw.preprocessing["columns"][-1]
    assert (column["name"], column["kind"], column["date"]) == ("day", "number", True)
    assert 300 < column["deviation"] < 900
    assert "column 'day' is taken for dates" in capsys.readouterr().err
    assert found.predict(dated(frames(samples(12, 3)), 9)[0]).shape == (3,)
    with pytest.raises(fb.UserError, match=r"column 'day' holds texts, such as 'soon', .* such as 2026-01-31"):
        found.predict(frames(samples(12, 3), day="soon")[0])


@pytest.mark.parametrize("framed", [False, True])
def test_the_samples_of_a_group_stay_together(framed):
    form = frames if framed else lambda pair: pair
    clients = {name: form(pair) for name, pair in hospitals().items()}
    # Twelve persons; the third is a patient of both Ulm and Lyon.
    persons = {
        name: np.repeat([2, 3 * i, 3 * i + 1] if i < 2 else [3 * i, 3 * i + 1, 3 * i + 2], 20)
        for i, name in enumerate(clients)
    }
    for groups, together in ((persons, True), (None, False)):
        part = fitted(clients=clients, validation=None, test=None, groups=groups, rounds=1, test_share=0.3).partition
        raw_order = np.concatenate([persons[name] for name in clients])
        sides = [part.server_test, part.server_validation, part.server_selection, part.indices]
        held = [set(raw_order[rows].tolist()) for rows in sides]
        assert len(held[0]) > 1
        assert (sum(map(len, held)) == len(set().union(*held))) == together


def test_nothing_is_known_of_clients_that_a_scheme_dealt():
    found = fitted(scheme="iid", rounds=2)
    assert set(found.partition.kinds) == {"unknown"}
    assert not {"clean_weight", "weight_error", "detection_auc"} & found.metrics.keys()
    assert "noisy" in fitted(scheme="lead", rounds=2).partition.kinds  # which the scheme itself makes


def test_half_precision_tensors_numpys_numbers_and_a_client_called_round():
    clients = {name: (torch.tensor(X).bfloat16(), y) for name, (X, y) in hospitals("round").items()}
    clients["round"] = clients.pop("Graz")
    found = fitted(clients=clients, rounds=np.int64(2), eta_w=np.float64(0.1))
    assert found.history["round"].tolist() == [0, 1, 2]
    assert found.history["client round"][0] == pytest.approx(0.25)


def test_importing_it_needs_neither_dvc_nor_mlflow_nor_lightning():
    heavy = "{'dvc', 'mlflow', 'pytorch_lightning', 'matplotlib'}"
    script = f"import sys, fedbilevel; sys.exit(str({heavy} & set(sys.modules)) if {heavy} & set(sys.modules) else 0)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("eta_w", "said"), [(0.2, False), (50.0, True)])
def test_a_model_that_is_worse_than_untrained_is_announced(eta_w, said, capsys):
    X, _ = samples(10, 60)
    numbers = {name: (X, X @ np.arange(6.0)) for name, (X, _) in hospitals().items()}
    settings = {"algorithm": "average", "curvature_limit": 0.0, "eta_w": eta_w, "model": "linear", "rounds": 8}
    fb.fit(numbers, validation=(X, X @ np.arange(6.0)), selection=None, progress=False, **settings)
    assert ("above the untrained model's" in capsys.readouterr().err) == said
