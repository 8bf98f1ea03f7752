"""What decides a run, defined here alone: resume folders, MLflow's parameters and DVC's dependencies follow."""

from __future__ import annotations

from typing import Any

from pipeline.config.sections import LossSettings
from pipeline.config.spec import dotted
from pipeline.data.sets.registry import dataset_named
from pipeline.data.settings import scheme_named
from pipeline.methods.consensus.robust import MEAN
from pipeline.methods.registry import algorithm_named
from pipeline.params.tree import Params
from pipeline.problems.registry import problem_named

_IMAGES = ("seed", "data.name", "subset", "model", "loss")
_SPLIT = ("data.bad", "data.validation_share", "data.selection_share", "data.test_share")
"""Keys of `data` that decide who holds what, not what is read."""
STAGES: dict[str, tuple[str, ...]] = {
    "download": ("data",),
    "partition": ("seed", "subset", "partition", *_SPLIT),
    "train": (*_IMAGES, "problem", "problems", "federation", "screening", "robust", "algorithm", "algorithms", "train"),
    "evaluate": (*_IMAGES, "problem", "problems", "train.accelerator"),
}
"""Stage -> the sections and parameters that it reads; `check` writes them to data/settings/<stage>.json."""

WHERE_AND_AFTER = ("train.devices", "train.nodes", "train.strategy", "train.replicates")
"""Where a run is computed and what is computed after it: not what it computes."""


def of_stage(params: Params, stage: str) -> dict[str, Any]:
    """What decides what the stage makes, by dotted name. params: resolved."""
    places, used = STAGES[stage], params_in_use(dotted(params))
    if stage == "download":
        used = {name: value for name, value in used.items() if name not in _SPLIT}
    return {name: value for name, value in used.items() if any(f"{name}.".startswith(f"{place}.") for place in places)}


def of_run(params: Params) -> dict[str, Any]:
    """What decides what training computes and records, by dotted name. params: resolved."""
    return {name: value for name, value in of_stage(params, "train").items() if name not in WHERE_AND_AFTER}


def params_in_use(flat: dict[str, Any]) -> dict[str, Any]:
    """The dotted parameters that decide this run: no other method's, problem's or scheme's section, no sweep, no
    tracking; on the toy no partition and no network either."""
    method, scheme, problem = flat["algorithm"], flat["partition.scheme"], flat["problem"]
    chosen = {
        "algorithms": algorithm_named(method).name if "." in method else method,
        "problems": problem_named(problem).name if "." in problem else problem,
        "partition": scheme_named(scheme).name if "." in scheme else scheme,
    }
    rule = flat.get("robust.rule", MEAN)
    unused = ("partition", "model", "loss") if flat["problem"] == "toy" else ()
    reads = dataset_named(flat["data.name"]).reads if "data.name" in flat else ()
    defaults = dotted(LossSettings())
    sections = {name.split(".")[1] for name in flat if name.startswith("partition.") and name.count(".") > 1}
    automatic = ("natural", "iid") if scheme == "auto" else ()  # own data that nothing is known of yet
    kept = {}
    for name, value in flat.items():
        room, *rest = name.split(".")
        if room == "data" and rest[0] not in ("name", *reads):
            continue  # of other data sets
        if room == "loss" and ((rest[0] != "name" and value == defaults[rest[0]]) or value == "cross_entropy"):
            continue  # older records know no such choice, and are what they are without
        if room in ("sweep", "tracking") or name in ("data.mirror", "train.checkpoint_every"):
            continue  # they do not change what is computed
        if room == "robust" and (rule == MEAN or rest[0] not in ("rule", rule)):
            continue
        if room in unused or (room in ("algorithms", "problems") and rest[0] != chosen[room]):
            continue
        if room == "partition" and rest[0] in sections and rest[0] not in (chosen[room], *automatic):
            continue
        kept[name] = value
    return kept
