"""What starting a stage, or the mathematics alone, costs in imports; and that dvc.yaml knows them all."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from pipeline.params.decides import STAGES
from tests.stages.project import ROOT

CORE = (
    "pipeline.methods",
    "pipeline.params",
    "pipeline.oracles",
    "pipeline.models",
    "pipeline.problems.toy",
    "pipeline.problems.client_weighting",
    "pipeline.problems.hyper_representation",
    "pipeline.problems.few_shot",
    "pipeline.problems.data_cleaning",
    "pipeline.problems.loss_tuning",
    "pipeline.problems.fair",
    "pipeline.problems.general_weighting",
    "pipeline.oracles.bilevel",
)


@pytest.mark.parametrize(
    ("modules", "unwanted"),
    [
        (("stages.check", "stages.download", "stages.partition"), "pytorch_lightning,mlflow,dvc,sklearn,torchvision"),
        (CORE, "pytorch_lightning,mlflow,dvc,pydantic,ruamel,matplotlib,torchvision,sklearn,pandas"),
        (("pipeline.training.run",), "mlflow,dvc,pydantic,ruamel,sklearn,pandas"),
        (("stages.train",), "dvc,sklearn"),
        (("stages.evaluate",), "dvc,sklearn,pytorch_lightning"),
        (("benchmarks.__main__",), "mlflow,dvc,pydantic,ruamel,sklearn,pandas"),
    ],
    ids=["cheap stages", "core", "training", "train", "evaluate", "benchmarks"],
)
def test_nobody_imports_what_it_does_not_need(modules, unwanted):
    script = "import sys, importlib; [importlib.import_module(m) for m in sys.argv[2:]];"
    script += "print([m for m in sys.argv[1].split(',') if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", script, unwanted, *modules], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


# Every command reads params.yaml and prints messages by these; `check` depends on them for all.
SHARED = {
    "pipeline/command.py",
    "pipeline/config",
    "pipeline/data/sets",
    "pipeline/data/settings.py",
    "pipeline/data/sizes.py",
    "pipeline/errors.py",
    "pipeline/interruption.py",
    "pipeline/masking.py",
    "pipeline/models/settings.py",
    "pipeline/params",
    "pipeline/problems/forms.py",
    "pipeline/problems/registry.py",
}
# Imported along with what is used, and without a say in what the stage makes: the mathematics beside a method's
# hyper-parameters where these are only read; how data were fetched and dealt is in the files the stage reads; how
# columns are aligned and a run is sent to the tracker does not change what is computed.
_METHODS = {"pipeline/methods", "pipeline/oracles", "pipeline/sharing.py"}
_MATHEMATICS = _METHODS | {f"pipeline/{name}" for name in ("models", "problems", "participation.py", "projections.py")}
_MATHEMATICS |= {f"pipeline/{name}.py" for name in ("randomness", "seeds", "text")}
_FETCHED = {"pipeline/data/originals"}
_DEALT = _FETCHED | {"pipeline/data/schemes", "pipeline/text.py"}
_DEALT |= {f"pipeline/data/{name}.py" for name in ("holdings", "partition_rules", "server_sets")}
_TRACKED = {f"pipeline/tracking/{name}.py" for name in ("live", "metrics", "store", "worker")}
_TRACKED |= {f"pipeline/report/{name}.py" for name in ("record", "series", "settings", "writing")}
_TRACKED |= {"pipeline/text.py"}
_SAMPLES = {f"pipeline/data/{name}.py" for name in ("arrays", "federated", "losses", "partition", "raw", "scaling")}
NO_MATTER: dict[str, set[str]] = {
    "check": _MATHEMATICS | _SAMPLES | _DEALT,
    "download": _MATHEMATICS | _SAMPLES | _DEALT,
    "partition": _MATHEMATICS | _SAMPLES | _FETCHED,
    "train": _DEALT | _TRACKED,
    "evaluate": _DEALT | _METHODS,
}


@pytest.mark.parametrize("stage", list(NO_MATTER))
def test_dvc_yaml_lists_every_module_a_stage_imports(stage):
    """A module that a stage uses and dvc.yaml does not name could change without the stage being run again."""
    script = "import sys, importlib; importlib.import_module(sys.argv[1]);"
    script += "ours = [m for n, m in sys.modules.items() if n.split('.')[0] in ('pipeline', 'stages')];"
    script += "print(*(m.__file__ for m in ours if m.__file__))"
    done = subprocess.run(
        [sys.executable, "-c", script, f"stages.{stage}"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    stages = YAML(typ="safe").load((ROOT / "dvc.yaml").read_text())["stages"]
    used = {file.relative_to(ROOT).as_posix() for file in map(Path, done.stdout.split()) if file.name != "__init__.py"}
    missing = used - within(used, SHARED | NO_MATTER[stage] | set(stages[stage]["deps"]))
    assert not missing
    shared = within(used, SHARED)
    assert shared == within(shared, set(stages["check"]["deps"]))


def test_what_decides_a_stage_is_what_dvc_yaml_makes_it_depend_on():
    """One place says which settings a stage reads; dvc.yaml names that file, and no parameter besides."""
    stages = YAML(typ="safe").load((ROOT / "dvc.yaml").read_text())["stages"]
    assert set(stages) == {"check", *STAGES}
    for stage in STAGES:
        assert f"data/settings/{stage}.json" in stages["check"]["outs"]
        own = [dep for dep in stages[stage]["deps"] if dep.startswith("data/settings/")]
        assert own == [f"data/settings/{stage}.json"]
        assert "params" not in stages[stage]


def within(names: set[str], places: set[str]) -> set[str]:
    """Those that are, or lie in, one of the places."""
    return {name for name in names if any(name == place or name.startswith(f"{place}/") for place in places)}


@pytest.mark.parametrize("study", ["a_fedpd", "client_weights", "fedbio", "primal_dual_weighting", "simfbo", "trust"])
def test_a_study_s_dvc_yaml_lists_what_it_consists_of(study):
    """A stage is run anew when any module changes that it imports; what runs cells depends on the whole library."""
    folder = ROOT / "experiments" / study
    stages = YAML(typ="safe").load((folder / "dvc.yaml").read_text())["stages"]
    run = {ROOT / "experiments" / "__main__.py"} | {file for file in folder.glob("*.py") if file.stem in HOOKS}
    page = {folder / "page.py"} if study == "trust" else {ROOT / f"experiments/{name}.py" for name in LATE}
    for name, stage in stages.items():
        profile, _, what = name.partition("-")
        named = {(folder / dep).resolve() for dep in stage["deps"]}
        used = imported(run | page if what == "page" else run)
        assert len(used) > 8
        assert ROOT / "pipeline" in named, name
        assert used - named <= (set() if what == "page" else {ROOT / "experiments" / "report.py"}), name
        if what == "page" and study != "trust":
            assert folder / "results" / f"{profile}.jsonl" in named, name


HOOKS, LATE = ("more", "commands"), ("report", "tracking")
"""Modules of a study that the engine looks for, and modules of the engine that are imported for a page alone."""


def imported(files):
    """These files, and those of experiments that they import when they are imported themselves."""
    found, left = set(), set(files)
    while left:
        file = left.pop()
        found.add(file)
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "experiments":
                names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
                paths = {ROOT / f"{name.replace('.', '/')}.py" for name in names}
                left |= {path for path in paths if path.is_file()} - found
    return found
