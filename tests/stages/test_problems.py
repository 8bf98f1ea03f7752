"""From params.yaml to metrics.json on every problem, stage by stage, without DVC and without a tracker."""

from __future__ import annotations

import csv
import json

import pytest
import torch

from pipeline.command import Paths
from pipeline.config.spec import dotted, override
from pipeline.data.datasets import load, prepare
from pipeline.data.partition import Partition
from pipeline.params import Params
from pipeline.params.decides import params_in_use
from pipeline.params.resolve import resolve
from pipeline.report.assembly import write_report
from pipeline.report.record import Record
from pipeline.training.resume import ResumeFolder
from pipeline.training.run import run_fingerprint, train
from pipeline.training.saves import load_variables, save_variables
from pipeline.training.setup import build_problem
from pipeline.training.tasks import load_task
from stages.check import check
from stages.partition import partition

SMALL = {
    "model.name": "mlp",
    "model.options": {"hidden": [8]},
    "train.rounds": 3,
    "train.eval_every": 3,
    "subset.train": 900,
    "subset.test": 200,
}
RUNS = {  # problem: settings, what metrics.json gains
    "few_shot": (
        {
            "algorithm": "lfednest",
            "data.name": "glyphs",
            "partition.scheme": "few_shot",
            "problems.few_shot.test_tasks": 5,
            "subset.train": "all",
            "subset.test": "all",
        },
        {"train_accuracy"},
    ),
    "hyper_representation": ({"algorithm": "fedbio_local"}, {"train_accuracy", "train_loss"}),
    "data_cleaning": (
        {"algorithm": "simfbo", "partition.scheme": "cleaning", "partition.cleaning.samples": 60},
        {"sample_auc", "sample_f1", "correct_sample_weight", "wrong_sample_weight"},
    ),
    "loss_tuning": ({"algorithm": "simfbo", "partition.scheme": "longtail"}, set()),
    "fair": (
        {"algorithm": "fednest", "partition.scheme": "iid"},
        {"client_accuracy", "worst_client_accuracy", "client_accuracy_variance", "weight_error"},
    ),
    "client_weighting": ({"algorithm": "fedbio"}, {"clean_weight", "max_noise_weight", "weight_error"}),
}


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    """Both data sets that need no download, in folders of their names."""
    folder = tmp_path_factory.mktemp("raw")
    for name in ("digits", "glyphs"):
        prepare(name, folder / name)
    return folder


@pytest.mark.parametrize("problem", RUNS)
def test_every_problem_from_params_to_metrics(raw, tmp_path, monkeypatch, problem):
    """check and partition as commands; training and evaluation by what those stages call, in the same order."""
    monkeypatch.chdir(tmp_path)
    settings, measured = RUNS[problem]
    params, paths = override(Params(), {"problem": problem, **SMALL, **settings}), Paths.here()
    folder = paths.raw(params.data.name)
    folder.parent.mkdir(parents=True)
    folder.symlink_to(raw / params.data.name)
    paths.params.write_text("{}")
    check(params, paths)
    assert json.loads(paths.settings("train").read_text())["problem"] == problem
    params = resolve(params)
    dealt = json.loads(paths.settings("partition").read_text())
    assert dealt["partition.client_validation"] == params.partition.client_validation
    partition(params, paths)
    task = load_task(params, folder, paths.partition, torch.device("cpu"))
    with ResumeFolder(paths.resume, run_fingerprint(params, task)) as resume:
        module, history = train(params, task, resume, progress=False)
        save_variables(paths.model, module.served)
        history.export(paths.results)

    # What `evaluate` does: the problem built anew, the variables read from the file.
    dealt, cut = Partition.load(paths.partition), load(folder).first(params.subset)
    again = build_problem(params, cut, dealt, torch.device("cpu"))
    served = load_variables(paths.model)
    used = params_in_use(dotted(params))
    summary = write_report(again, served, dealt, Record("run", params.train.rounds, used, {}), paths.results)
    metrics = json.loads((paths.results / "metrics.json").read_text())
    assert (metrics["problem"], metrics["algorithm"]) == (problem, params.algorithm)
    assert measured <= set(metrics)
    assert ("weight_error" in metrics) == (problem in ("fair", "client_weighting"))
    assert 0 <= metrics["test_accuracy"] <= 1
    assert f"test accuracy {100 * metrics['test_accuracy']:.2f} %" in summary
    with (paths.results / "history.csv").open(newline="") as file:
        last = list(csv.DictReader(file))[-1]
    for name in task.measures:
        assert float(last[name]) == pytest.approx(metrics[name], rel=1e-5, abs=1e-6), name
    assert (paths.results / "plots" / "weights.csv").is_file()
    assert not any(name.startswith("problems.") and not name.startswith(f"problems.{problem}.") for name in used)
