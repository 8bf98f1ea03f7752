"""What decides a run, defined here alone: resume folders, MLflow's parameters and DVC's dependencies follow."""

from __future__ import annotations

from typing import Any

from pipeline.config.spec import dotted
from pipeline.data.settings import scheme_named
from pipeline.methods.registry import algorithm_named
from pipeline.params.tree import Params
from pipeline.problems.registry import problem_named

_IMAGES = ("seed", "data", "subset", "model")
STAGES: dict[str, tuple[str, ...]] = {
    "download": ("data",),
    "partition": ("seed", "subset", "partition"),
    "train": (*_IMAGES, "problem", "problems", "federation", "screening", "algorithm", "algorithms", "train"),
    "evaluate": (*_IMAGES, "problem", "problems", "train.accelerator"),
}
"""Stage -> the sections and parameters that it reads; `check` writes them to data/settings/<stage>.json."""

WHERE_AND_AFTER = ("train.devices", "train.nodes", "train.strategy", "train.replicates")
"""Where a run is computed and what is computed after it: not what it computes."""


def of_stage(params: Params, stage: str) -> dict[str, Any]:
    """What decides what the stage makes, by dotted name. params: resolved."""
    places, used = STAGES[stage], params_in_use(dotted(params))
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
    unused = ("partition", "model") if flat["problem"] == "toy" else ()
    sections = {name.split(".")[1] for name in flat if name.startswith("partition.") and name.count(".") > 1}
    kept = {}
    for name, value in flat.items():
        room, *rest = name.split(".")
        if room in ("sweep", "tracking") or name in ("data.mirror", "train.checkpoint_every"):
            continue  # they do not change what is computed
        if room in unused or (room in ("algorithms", "problems") and rest[0] != chosen[room]):
            continue
        if room == "partition" and rest[0] in sections and rest[0] != chosen[room]:
            continue
        kept[name] = value
    return kept
