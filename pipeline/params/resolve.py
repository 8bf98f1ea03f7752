"""What `auto` stands for: rules on numbers, never on a data set's name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pipeline.data.schemes import SCHEMES
from pipeline.data.schemes.base import settled
from pipeline.data.schemes.natural import NATURAL
from pipeline.data.sets.base import DatasetInfo
from pipeline.data.settings import PartitionSettings
from pipeline.data.sizes import CLIENT_VALIDATION, Sizes, sizes
from pipeline.methods.registry import algorithm_named, fits, heads, made_for, method_for
from pipeline.models import automatic
from pipeline.params.tree import Params, Problems, Resolved
from pipeline.problems.forms import Facts
from pipeline.problems.registry import PROBLEMS


def resolve(params: Params, info: DatasetInfo | None = None) -> Resolved:
    """Replace every `auto` that depends on the data, the problem or the method by its value, once: where a run begins.

    info: of the data, once they are read; shipped data sets are known before. ValueError without it for a user's own.
    """
    data = params.data.dataset
    if not (data.info or info or data.problem == "toy"):
        raise ValueError(f"data.name: {params.data.name} is not read yet: `foreseen` says what is known before")
    return Resolved(foreseen(params, info))


def foreseen(params: Params, info: DatasetInfo | None = None) -> Params:
    """As far as it is known: of a user's own data that are not read yet, what depends on them stays auto. The toy deals
    out no samples, so none counts there. Doing it again changes nothing."""
    problem = problem_in_use(params)
    params = replace(params, problem=problem, algorithm=method_for(params.algorithm, problem))
    if params.data.dataset.problem == "toy":
        part = replace(params.partition, scheme=settled(params.partition.scheme, "lead"), client_validation=0.0)
        return replace(params, partition=part, federation=replace(params.federation, batch_size=1))
    info = params.data.dataset.info or info
    if not info:
        return params
    part = replace(params.partition, scheme=settled(params.partition.scheme, automatic_scheme(params, info)))
    size = sizes(info.images, info.few_shot)
    federation = replace(params.federation, batch_size=settled(params.federation.batch_size, size.batch_size))
    model = replace(
        params.model, name=settled(params.model.name, automatic(info.size, info.images, params.formulation.body))
    )
    loss = replace(params.loss, name=settled(params.loss.name, "cross_entropy" if info.classes else "squared"))
    params = replace(params, partition=part, federation=federation, model=model, loss=loss)
    params = replace(params, problems=_problems(params, info))
    return replace(params, partition=_partition(params, info, size))


def automatic_scheme(params: Params, info: DatasetInfo | None) -> str:
    """What `partition.scheme: auto` stands for."""
    dataset = params.data.dataset
    if info and info.clients:
        return NATURAL.name
    if dataset.own:
        return "iid"
    return next(
        (name for name, scheme in SCHEMES.items() if dataset.problem and scheme.own_problem == dataset.problem), "lead"
    )


def _problems(params: Params, info: DatasetInfo) -> Problems:
    facts = Facts(heads(params.method), params.partition.dealing.clean_validation, info.channels > 1 and info.size > 1)
    known = PROBLEMS | {params.formulation.name: params.formulation}
    problems: Any = params.problems
    return replace(problems, **{name: each.resolve(getattr(problems, name), facts) for name, each in known.items()})


def _partition(params: Params, info: DatasetInfo, size: Sizes) -> PartitionSettings:
    """params: with the problems' settings resolved."""
    part, dealing = params.partition, params.partition.dealing
    validates = not dealing.validation_size and params.formulation.upper_on_clients(
        params.problem_settings, dealing.clean_validation
    )
    schemes = SCHEMES | {dealing.name: dealing}
    sections = {name: each.resolve(getattr(part, name), info.classes, size) for name, each in schemes.items()}
    return replace(
        part,
        validation_per_label=settled(part.validation_per_label, size.validation_per_label),
        selection_per_label=settled(part.selection_per_label, size.selection_per_label),
        client_validation=settled(part.client_validation, CLIENT_VALIDATION if validates else 0.0),
        **sections,
    )


def switched(params: Params) -> str | None:
    """What `problem: auto` has switched to for the sake of the method, in a line; None if it learns client weights."""
    if params.problem != "auto" or params.data.dataset.problem or made_for(params.algorithm) == "client_weighting":
        return None
    problem = made_for(params.algorithm)
    also = fits(algorithm_named(params.algorithm), "client_weighting")
    fix = " For client weights: problem: client_weighting." if also else " Client weights are not learned."
    return f"algorithm: {params.algorithm} switches the problem: problem: auto = {problem}.{fix}"


def problem_in_use(params: Params) -> str:
    """`problem`, with `auto` resolved: what the data are made for, else what the method is."""
    if params.problem != "auto":
        return params.problem
    return params.data.dataset.problem or made_for(params.algorithm)
