"""What a run is: written and read back, and named so that runs can be distinguished."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.config.spec import dotted, override
from pipeline.errors import UserError
from pipeline.params import Params
from pipeline.params.decides import params_in_use
from pipeline.params.resolve import resolve
from pipeline.report import record
from pipeline.report.record import Record, RunInfo, describe_sweep
from pipeline.report.settings import changed, run_name
from tests.report.synthetic import Synthetic


def test_record_survives_the_disk(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    whole = replace(Synthetic(tmp_path).record, run=RunInfo("sqlite:///x.db", "e", "1"))
    whole.save(path)
    assert Record.load(path) == whole
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"rounds": whole.rounds + 1}))
    with pytest.raises(UserError, match=r"record\.json is damaged\. Fix"):
        Record.load(path)
    del content["sha256"]
    path.write_text(json.dumps(content | {"of_another_version": 1}))
    assert Record.load(path) == whole


def test_code_tags_name_the_commit() -> None:
    tags = record.code_tags()
    assert tags["mlflow.source.type"] == "LOCAL"
    assert len(tags.get("mlflow.source.git.commit", "0" * 40)) == 40


def used(**settings: object) -> dict[str, object]:
    named = {name.replace("__", "."): value for name, value in settings.items()}
    return params_in_use(dotted(resolve(override(Params(), named))))


@pytest.mark.parametrize(
    ("settings", "differs", "name"),
    [
        ({}, {}, "primal_dual digits lenet5 r500 seed 0"),
        (
            {"seed": 3, "algorithms__primal_dual__gamma": 1.0, "federation__participation": 0.5},
            {"seed": 3, "algorithms.primal_dual.gamma": 1.0, "federation.participation": 0.5},
            "primal_dual digits lenet5 r500 seed 3, participation 0.5, gamma 1.0",
        ),
        # What follows from a choice is no change of its own: data set, method and scheme bring other defaults.
        ({"data__name": "mnist"}, {"data.name": "mnist"}, "primal_dual mnist lenet5 r500 seed 0"),
        ({"algorithm": "fedavg"}, {"algorithm": "fedavg"}, "fedavg digits lenet5 r500 seed 0"),
        (
            {"algorithm": "simfbo", "problem": "fair", "problems__fair__q": 2.0},
            {"algorithm": "simfbo", "problem": "fair", "problems.fair.q": 2.0},
            "simfbo digits lenet5 r500 seed 0, problem fair, q 2.0",
        ),
        # A choice whose default is `auto` as long as the run lasts.
        (
            {"algorithms__primal_dual__product_batch_size": "shared", "algorithms__primal_dual__estimator": "memory"},
            {
                "algorithms.primal_dual.product_batch_size": "shared",
                "algorithms.primal_dual.estimator": "memory",
            },
            "primal_dual digits lenet5 r500 seed 0, estimator memory, product_batch_size shared",
        ),
        (
            {"data__name": "toy", "train__rounds": 9},
            {"data.name": "toy", "train.rounds": 9},
            "primal_dual toy r9 seed 0",
        ),
    ],
    ids=["defaults", "settings", "data set", "method", "problem", "automatic", "toy"],
)
def test_what_a_run_changes_and_its_name(settings, differs, name) -> None:
    assert changed(used(**settings)) == differs
    assert run_name(used(**settings)) == name


def test_with_what_is_changed_alone_a_run_is_the_same() -> None:
    """Left out, every other key has its default: the settings in use are all there again."""
    first = used(algorithm="simfbo", partition__scheme="dirichlet", partition__dirichlet__clients=7, seed=4)
    assert params_in_use(dotted(resolve(override(Params(), changed(first))))) == first


def test_a_name_is_never_endless() -> None:
    assert (
        len(run_name(used(model__name="cnn", model__options={f"width_of_layer_{i}": 10 * i for i in range(20)}))) == 120
    )


def test_a_sweep_is_named_for_what_it_sweeps() -> None:
    runs = [
        dotted(resolve(override(Params(), {"algorithm": a, "seed": s}))) for a in ("sustain", "afl") for s in (0, 1, 2)
    ]
    found = describe_sweep(runs, ["algorithm", "seed"])
    assert found.name == "sweep of algorithm (2), seed (3): digits lenet5 r500"
    assert found.params["sweep.seed"] == ["0", "1", "2"]
    assert "algorithm" not in found.params
