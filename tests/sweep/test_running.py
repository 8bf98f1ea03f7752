"""A sweep's runs, one after another and together: the same results, whole or not at all, none of them twice."""

import csv
import json
from dataclasses import replace

import pytest

from pipeline.command import Paths
from pipeline.config.spec import override
from pipeline.data.datasets import prepare
from pipeline.errors import UserError
from pipeline.params import Params
from pipeline.report.sweep import table, write_summary
from pipeline.sweep import running
from pipeline.sweep.plan import plan

SMALL = {
    "model.name": "mlp",
    "model.options": {"hidden": [6]},
    "subset.train": 500,
    "subset.test": 60,
    "partition.lead.noise_clients": 2,
    "federation.batch_size": 4,
    "train.rounds": 5,
    "train.eval_every": 2,
    "train.checkpoint_every": 2,
    "train.precision": "64-true",
    "train.accelerator": "cpu",
}


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    folder = tmp_path_factory.mktemp("raw") / "digits"
    prepare("digits", folder)
    return folder


@pytest.fixture
def here(raw, tmp_path, monkeypatch):
    """A project's folder with the data in it, to work in."""
    (tmp_path / "data" / "raw").mkdir(parents=True)
    (tmp_path / "data" / "raw" / "digits").symlink_to(raw)
    monkeypatch.chdir(tmp_path)
    return Paths(root=tmp_path)


def runs_of(seeds, values, together="auto", **settings):
    settings = {name.replace("__", "."): value for name, value in settings.items()}
    sweep = {"sweep.seeds": list(seeds), "sweep.values": values, "sweep.together": together}
    return plan(override(Params(), SMALL | settings | sweep))


def run_all(runs, mode, paths, ended=lambda folder, failed: None):
    """And the names of the runs that ended."""
    ends_seen = []
    running.run_all(runs, mode, paths, lambda *end: (ends_seen.append((end[0].name, end[1])), ended(*end)))
    return ends_seen


def rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def same(a, b, but=("seconds",)):
    """Two tables, column by column, to float tolerance."""
    assert len(a) == len(b)
    assert list(a[0]) == list(b[0])
    for one, other in zip(a, b, strict=True):
        for name in one.keys() - set(but):
            try:
                assert float(one[name]) == pytest.approx(float(other[name]), rel=1e-8, abs=1e-10), name
            except ValueError:
                assert one[name] == other[name], name


SWEEPS = {
    "primal_dual": {
        "algorithms.primal_dual.eta_w": [0.05, 0.1],
        "algorithms.primal_dual.gamma": [1.0],
        "algorithms.primal_dual.gamma_schedule": ["rising"],
    },
    "rfho": {"algorithms.rfho.eta_w": [0.05, 0.1]},
    "fednest": {"algorithms.fednest.eta_h": [0.05, 0.1]},
    "sustain": {"algorithms.sustain.storm_weight": [0.3, 1.0]},
    "afl": {"algorithms.afl.eta_x": [0.005, 0.02]},
}


@pytest.mark.parametrize("algorithm", SWEEPS)
def test_together_is_one_after_another(algorithm, here):
    """Every column of every record, the final figures and the weights; four runs with two seeds' data."""
    settings = {"algorithm": algorithm, "federation__sampling": "fixed", "federation__participation": 0.6}
    settings[f"algorithms__{algorithm}__estimator"] = "normalised" if algorithm == "rfho" else "auto"
    runs = runs_of([0, 1], SWEEPS[algorithm], **settings)
    found = {}
    for mode in ("always", "never"):
        assert run_all(runs, mode, here) == [(run.name, False) for run in runs]
        for run in runs:
            folder = here.sweep / run.name
            tables = [rows(folder / name) for name in ("history.csv", "client_weights.csv")]
            found[mode, run.name] = [*tables, [json.loads((folder / "metrics.json").read_text())]]
        here.sweep.rename(f"{mode}-results")
    for run in runs:
        for together, alone in zip(found["always", run.name], found["never", run.name], strict=True):
            same(together, alone)
    history = [found["always", run.name][0] for run in runs]
    assert len(history[0]) == 6
    assert len({one[-1]["validation_loss"] for one in history}) == len(runs)


def test_a_repeated_sweep_runs_what_is_not_finished(here):
    """Interrupted after the first run; with another parameter it is another run."""
    runs = runs_of([0, 1], {})

    def stop(folder, failed):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_all(runs, "never", here, stop)
    assert [p.name for p in here.sweep.iterdir()] == ["seed=0"]
    first = (here.sweep / "seed=0" / "history.csv").read_text()
    assert run_all(runs, "never", here) == [("seed=0", False), ("seed=1", False)]
    assert (here.sweep / "seed=0" / "history.csv").read_text() == first
    assert not list(here.sweep.glob(".*"))

    assert run_all(runs_of([0], {}, train__rounds=4), "never", here) == [("seed=0", False)]
    assert len(rows(here.sweep / "seed=0" / "history.csv")) == 5


@pytest.mark.parametrize("mode", ["always", "never"])
def test_a_run_that_diverges_is_a_result_and_does_not_stop_the_others(mode, here):
    """Cosine steps of the second of five rounds: 0.905 of the first; after the first the model is large but finite."""
    runs = runs_of([0], {"algorithms.primal_dual.eta_w": [0.1, 1e200]}, algorithms__primal_dual__curvature_limit=0.0)
    assert sorted(run_all(runs, mode, here)) == [("eta_w=0.1,seed=0", False), ("eta_w=1e+200,seed=0", True)]
    folder = here.sweep / "eta_w=1e+200,seed=0"
    said = json.loads((folder / "run.json").read_text())["diverged"]
    assert said.startswith("round 2: the variable w is no longer finite; step sizes were w 9.05e+199, lambda 0.0905")
    assert [row["round"] for row in rows(folder / "history.csv")] == ["0", "1"]
    assert not (folder / "metrics.json").exists()
    write_summary(runs, here.sweep)
    assert [row["outcome"] for row in rows(here.sweep / "summary.csv")] == ["finished", "diverged"]
    assert run_all(runs, mode, here) == [(run.name, "200" in run.name) for run in runs]  # both are known


def test_clients_of_different_sizes_go_one_after_another(here, monkeypatch, capsys):
    runs = runs_of([0, 1], {}, partition__scheme="dirichlet", partition__client_validation=0.2)
    with pytest.raises(UserError, match=r"different numbers of samples.*Fix: run them one by one"):
        run_all(runs, "always", here)
    monkeypatch.setattr(running, "_faster_together", lambda params: True)
    assert run_all(runs, "auto", here) == [("seed=0", False), ("seed=1", False)]
    assert "one after another: runs whose clients hold different numbers" in capsys.readouterr().err


def test_the_summary_and_its_means(here):
    runs = runs_of([0, 1], {"train.rounds": [1, 2]})
    run_all(runs, "never", here)
    write_summary(runs, here.sweep)
    summary = rows(here.sweep / "summary.csv")
    assert [(row["train.rounds"], row["seed"], row["rounds"]) for row in summary] == [
        ("1", "0", "1"),
        ("1", "1", "1"),
        ("2", "0", "2"),
        ("2", "1", "2"),
    ]
    a, b = (float(row["test_accuracy"]) for row in summary[2:])
    lines = table(runs, here.sweep).splitlines()
    assert lines[0].split()[:3] == ["rounds", "seeds", "diverged"]
    assert f"{(a + b) / 2:.4g} ± {abs(a - b) / 2**0.5:.2g}" in lines[3]


@pytest.mark.parametrize("mode", ["always", "never"])
def test_a_run_that_collapses_keeps_its_best_model_and_says_so(mode, here, monkeypatch, capsys):
    """Evaluations after rounds 0, 2, 4 and 5 find these selection accuracies; the first of the two runs collapses."""
    accuracies = iter([[0.1, 0.9, 0.6, 0.5], [0.1, 0.5, 0.6, 0.9]])
    make = running.image_task

    def image_task(*given):
        task, left = make(*given), iter(next(accuracies))
        return replace(task, measure=lambda variables: task.measure(variables) | {"selection_accuracy": next(left)})

    monkeypatch.setattr(running, "image_task", image_task)
    run_all(runs_of([0, 1], {}), mode, here)
    for run, served in (("seed=0", 2), ("seed=1", 5)):
        metrics = json.loads((here.sweep / run / "metrics.json").read_text())
        history = rows(here.sweep / run / "history.csv")
        assert metrics["served_round"] == served
        assert metrics["test_accuracy"] == pytest.approx(float(history[served]["test_accuracy"]))
        weights = [float(row["weight"]) for row in rows(here.sweep / run / "client_weights.csv")]
        assert weights == pytest.approx([float(history[served][f"client_weight_{i}"]) for i in range(len(weights))])
    said = capsys.readouterr().err
    assert "seed=0 is finished: the model of round 2 is served: selection accuracy 90.0 % there" in said
    assert "seed=1 is finished\n" in said
