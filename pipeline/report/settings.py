"""A run's settings as people compare them: which differ from the defaults, and a name that distinguishes runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from pipeline.config.spec import dotted, override
from pipeline.data.sets.registry import dataset_named
from pipeline.params.decides import params_in_use
from pipeline.params.resolve import foreseen
from pipeline.params.tree import Params, params_of
from pipeline.text import clipped, short_names

CHOICES = ("data.name", "algorithm", "partition.scheme")
"""Settings that other defaults follow from, as far as a run has them; `problem` follows from the first two."""
READ = ("partition.", "model.", "loss.", "problems.", "federation.")
"""Sections whose `auto` a user's own data decide."""
_NAMED = ("algorithm", "data.name", "model.name", "train.rounds", "seed")
_LONGEST = 120


def changed(used: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a run that differ from the defaults; with these alone in params.yaml the run is the same.

    used: the parameters in use under their dotted names, `auto` resolved, as `Record.params` holds them; one that is
    left out counts as unchanged.
    """
    plain = Params()
    scheme = used.get("partition.scheme", plain.partition.scheme)
    chosen = (used.get("algorithm", plain.algorithm), used.get("data.name", plain.data.name), scheme)
    usual = _defaults(*chosen)
    if usual["problem"] != used.get("problem", usual["problem"]):
        usual = _defaults(*chosen, used["problem"]) | {"problem": usual["problem"]}
    usual = usual | {name: value for name, value in dotted(plain).items() if name in CHOICES}
    usual["partition.scheme"] = _defaults(*chosen[:2], plain.partition.scheme).get("partition.scheme")
    data = dataset_named(chosen[1])
    unread = () if data.info or data.problem else READ
    # What is `auto` until a user's own data are read does not follow from what was set.
    known = {name: value for name, value in used.items() if usual.get(name) != "auto" or not name.startswith(unread)}
    return {name: value for name, value in known.items() if _plain(value) != _plain(usual.get(name))}


def run_name(used: Mapping[str, Any]) -> str:
    """Method, data, network, rounds and seed, then what else differs from the defaults:
    `primal_dual digits lenet5 r500 seed 0, gamma 1`."""
    others = {name: value for name, value in changed(used).items() if name not in _NAMED}
    parts = [f"{short} {value}" for short, value in zip(short_names(list(others)), others.values(), strict=True)]
    return clipped(", ".join([_head(used), *parts]), _LONGEST)


def sweep_name(common: Mapping[str, Any], varied: Mapping[str, int]) -> str:
    """What is swept over, then what the runs have in common: `sweep of eta_w (3), seed (5): primal_dual digits lenet5
    r500`. varied: how many values each swept parameter has, by dotted name."""
    axes = zip(short_names(list(varied)), varied.values(), strict=True)
    swept = ", ".join(f"{short} ({count})" for short, count in axes)
    return clipped(f"sweep of {swept}: {_head(common)}", _LONGEST)


def _head(used: Mapping[str, Any]) -> str:
    forms = {"train.rounds": "r{}", "seed": "seed {}"}
    return " ".join(forms.get(name, "{}").format(used[name]) for name in _NAMED if name in used)


@cache
def _defaults(algorithm: str, data: str, scheme: str, problem: str = "auto") -> dict[str, Any]:
    chosen = {"algorithm": algorithm, "data.name": data, "partition.scheme": scheme, "problem": problem}
    return params_in_use(dotted(foreseen(override(params_of(algorithm, scheme, problem)(), chosen))))


def _plain(value: Any) -> Any:
    """As it is once it has been written to a file."""
    return json.loads(json.dumps(value, default=str))
