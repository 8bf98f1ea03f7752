"""Which runs a sweep is made of, and which of them can be computed together; complaints come before any work.

`sweep.seeds` x `sweep.values`, the cross product, in the order in which they are written. A run is params.yaml with
that seed and those values in it, and its own partition with them.
"""

from __future__ import annotations

import dataclasses
import difflib
import itertools
import math
import re
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

from pipeline.config.spec import continuous, dotted, override
from pipeline.errors import UserError, not_allowed
from pipeline.methods.registry import FAMILIES, family
from pipeline.params import Params
from pipeline.params.decides import params_in_use
from pipeline.params.reading import params_from
from pipeline.params.resolve import foreseen
from pipeline.params.rules import check_rules
from pipeline.text import clipped, short_names

ELSEWHERE = {"seed": "sweep.seeds", "train.devices": "params.yaml itself", "train.nodes": "params.yaml itself"}
"""Parameters that are no values of a sweep, and where they belong."""
MOST_RUNS = 10_000


@dataclass(frozen=True)
class Run:
    """name: short and fit for a folder. varied: what is this run's own, dotted name -> value, the seed included.
    params: as far as they are known before the data are read."""

    name: str
    varied: dict[str, Any]
    params: Params

    @property
    def values(self) -> dict[str, Any]:
        """What is varied, but for the seed."""
        return {name: value for name, value in self.varied.items() if name != "seed"}


def plan(params: Params) -> list[Run]:
    """The runs of `params.sweep`; UserError for whatever cannot be swept over."""
    sweep = params.sweep
    values = {name: each for name, each in sweep.values.items() if each}
    if not sweep.seeds and not values:
        raise UserError(
            "sweep.seeds and sweep.values are empty: there is nothing to sweep over. Fix: for example"
            " `seeds: [0, 1, 2]`, or `values: {algorithms.primal_dual.eta_w: [0.05, 0.1]}`."
        )
    if params.train.devices * params.train.nodes > 1:
        raise UserError(
            f"train.devices * train.nodes = {params.train.devices * params.train.nodes} is not allowed in a sweep: its"
            " runs take one process. Fix: set both to 1."
        )
    count = math.prod(map(len, values.values())) * max(1, len(sweep.seeds))
    if count > MOST_RUNS:
        raise UserError(
            f"sweep.seeds and sweep.values make {count:,} runs, and {MOST_RUNS:,} is the most. Fix: fewer values."
        )
    axes = {name: _checked(params, name, each) for name, each in values.items()}
    axes["seed"] = _checked(params, "seed", sweep.seeds or [params.seed], section="sweep.seeds")
    runs = [
        _run(params, dict(zip(axes, combination, strict=True))) for combination in itertools.product(*axes.values())
    ]
    names = [run.name for run in runs]
    if len(set(names)) < len(names):  # values that look alike once they are fit for a folder's name
        runs = [replace(run, name=f"{place}_{run.name}") for place, run in enumerate(runs)]
    if sweep.together == "always":
        _require_one_group(params, runs)
    return runs


def check_values(params: Params) -> None:
    """UserError for a name or a value in `sweep` that `plan` would refuse whatever the others are."""
    for name, each in params.sweep.values.items():
        _checked(params, name, each)
    _checked(params, "seed", params.sweep.seeds, section="sweep.seeds")


def _checked(params: Params, name: str, values: list[Any], section: str = "sweep.values") -> list[Any]:
    """The values of one parameter as params.yaml would read them."""
    key, known = f"{section}: {name}", list(dotted(params))
    if section == "sweep.values" and (name in ELSEWHERE or name.split(".")[0] in ("sweep", "tracking")):
        place = ELSEWHERE.get(name, "params.yaml itself")
        raise UserError(
            f"{key} = {clipped(repr(values), 200)} is not allowed: it is no value of a sweep. Fix: set it in {place}."
        )
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
        inside = [other for other in known if other.startswith(f"{name}.")]
        reason = f"a section, not a parameter; it holds {', '.join(inside[:3])}" if inside else "not a known parameter"
        hint = f" Did you mean {near[0]}?" if near and not inside else ""
        raise UserError(
            f"{key} = {clipped(repr(values), 200)} is not allowed: it is {reason}.{hint}"
            " Fix: a dotted name of params.yaml."
        )
    found: list[Any] = []
    for value in values:
        tree = dataclasses.asdict(override(params, {name: value}))
        found.append(reduce(getattr, name.split("."), params_from(tree, section)))
    twice = [value for place, value in enumerate(found) if value in found[:place]]
    if twice:
        raise not_allowed(key, values, f"a list without repeats, and {twice[0]!r} is there twice", "name it once")
    return found


def _run(params: Params, varied: dict[str, Any]) -> Run:
    name = ",".join(
        f"{short}={_fit(value)}" for short, value in zip(short_names(list(varied)), varied.values(), strict=True)
    )
    one = override(params, varied)
    if {"algorithm", "partition.scheme"} & varied.keys():  # a custom one has a section
        one = params_from(dataclasses.asdict(one), "sweep.values")
    try:
        check_rules(one)
    except UserError as error:
        raise UserError(f"sweep, {name}: {error}") from None
    one = foreseen(one)
    used = params_in_use(dotted(one))
    for parameter in varied:
        if not any(name == parameter or name.startswith(f"{parameter}.") for name in used):
            raise UserError(
                f"sweep.values: {parameter} is not in use with algorithm: {one.algorithm}, problem: {one.problem},"
                f" data.name: {one.data.name}, partition.scheme: {one.partition.scheme}; its values would change"
                " nothing. Fix: leave it out, or choose what it belongs to."
            )
    return Run(name, varied, one)


def _fit(value: Any) -> str:
    """A value as a part of a folder's name."""
    return re.sub(r"[^\w.+-]+", "-", str(value)).strip("-")[:40]


# ------------------------------------------------------------------------------------------ computed together


def groups(runs: list[Run]) -> list[list[Run]]:
    """Runs that differ in seed and continuous hyper-parameters of their algorithm alone, which one computation can
    serve; those that cannot be computed together are groups of one."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        apart = {name: value for name, value in run.values.items() if name not in _continuous(run.params)}
        found.setdefault(repr(apart), []).append(run)
    return [part for group in found.values() for part in ([[run] for run in group] if obstacle(group) else [group])]


def obstacle(group: list[Run]) -> str | None:
    """Why these runs cannot be computed together; None if nothing is known against it. That their clients hold
    different numbers of samples shows when the data are dealt."""
    params, seeds = group[0].params, {run.params.seed for run in group}
    hyper, federation = params.hyper, params.federation
    if family(params.algorithm) != "weighting":
        return f"algorithm: {params.algorithm} is none of {', '.join(FAMILIES['weighting'])}"
    if hyper.optimizer != "sgd":
        return f"algorithms.{params.algorithm}.optimizer is {hyper.optimizer} and not sgd"
    if params.train.backend != "fused":
        return f"train.backend is {params.train.backend} and not fused"
    if len(seeds) == 1:
        return None
    if federation.sampling == "bernoulli" and federation.participation < 1.0:
        return "federation.sampling: bernoulli draws another number of active clients for every seed"
    if getattr(hyper, "series", "") == "randomised":
        return f"algorithms.{params.algorithm}.series: randomised draws another length for every seed"
    if getattr(hyper, "hypergradient_iterate", "") == "random" and hyper.inner_steps > 1:
        return f"algorithms.{params.algorithm}.hypergradient_iterate: random draws another step for every seed"
    return None


def _continuous(params: Params) -> list[str]:
    names = continuous(type(params.hyper))
    return [f"algorithms.{params.method.name}.{name}" for name in names]


def _require_one_group(params: Params, runs: list[Run]) -> None:
    """UserError if `together: always` cannot be had."""
    allowed = _continuous(runs[0].params)
    for name in runs[0].values:
        if name not in allowed:
            numbers = ", ".join(other.rsplit(".", 1)[1] for other in allowed)
            raise UserError(
                f"sweep.values: {name} is not allowed with sweep.together: always, which takes continuous"
                f" hyper-parameters of {runs[0].params.algorithm} alone: {numbers}. Fix: sweep.together: auto."
            )
    reason = obstacle(runs)
    if reason:
        raise UserError(
            f"sweep.together = 'always' is not allowed here: {reason}. Fix: sweep.together: auto, or correct that."
        )
