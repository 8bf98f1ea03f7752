"""What starting a stage, or the mathematics alone, costs in imports."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.stages.project import ROOT

CORE = (
    "pipeline.algorithms",
    "pipeline.oracles",
    "pipeline.models",
    "pipeline.problems.toy",
    "pipeline.problems.client_weighting",
)


@pytest.mark.parametrize(
    ("modules", "unwanted"),
    [
        (("stages.check", "stages.download", "stages.partition"), "torch,mlflow,dvc,matplotlib,torchvision,sklearn"),
        (CORE, "pytorch_lightning,mlflow,dvc,pydantic,ruamel,matplotlib,torchvision,sklearn,pandas"),
        (("pipeline.training.run",), "mlflow,dvc,pydantic,ruamel,sklearn,pandas"),
        (("stages.train",), "dvc,sklearn"),
        (("stages.evaluate",), "dvc,sklearn,pytorch_lightning"),
    ],
    ids=["cheap stages", "core", "training", "train", "evaluate"],
)
def test_nobody_imports_what_it_does_not_need(modules, unwanted):
    script = "import sys, importlib; [importlib.import_module(m) for m in sys.argv[2:]];"
    script += "print([m for m in sys.argv[1].split(',') if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", script, unwanted, *modules], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
