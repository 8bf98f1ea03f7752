"""What `auto` stands for: rules on numbers, never on a data set's name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

from pipeline.config.spec import Auto
from pipeline.data.catalog import (
    CATALOG,
    CLIENT_VALIDATION,
    TOY,
    DatasetInfo,
    Sizes,
    default_groups,
    own_problem,
    sizes,
)
from pipeline.data.scheme_settings import DEALS_VALIDATION
from pipeline.data.settings import PartitionSettings
from pipeline.methods.registry import heads, made_for, method_for
from pipeline.params.tree import Params
from pipeline.problems.forms import upper_on_clients
from pipeline.problems.settings import Problems

Value = TypeVar("Value")


def resolve(params: Params) -> Params:
    """Replace every `auto` that depends on the data, the problem or the method by its value; the toy deals out no
    samples, so none counts."""
    problem = problem_in_use(params)
    params = replace(params, problem=problem, algorithm=method_for(params.algorithm, problem))
    if params.data.name == TOY:
        part = replace(params.partition, client_validation=0.0)
        return replace(params, partition=part, federation=replace(params.federation, batch_size=1))
    info = CATALOG[params.data.name]
    size = sizes(info.images, info.few_shot)
    federation = replace(params.federation, batch_size=_settled(params.federation.batch_size, size.batch_size))
    params = replace(params, problems=_problems(params, info), federation=federation)
    return replace(params, partition=_partition(params, info, size))


def _settled(value: Value | Auto, auto: Value) -> Value:
    """A setting, or what its `auto` stands for."""
    return auto if value == "auto" else value


def _problems(params: Params, info: DatasetInfo) -> Problems:
    problems, colour = params.problems, info.channels > 1
    representation, cleaning, consensus = problems.hyper_representation, problems.data_cleaning, problems.consensus
    own_heads: Any = next(iter(heads(params.method)), "shared")
    on_clients = upper_on_clients("data_cleaning", "auto", params.partition.scheme)
    augment, normalise = _settled(consensus.augment, colour), _settled(consensus.normalise, colour)
    return replace(
        problems,
        hyper_representation=replace(representation, heads=_settled(representation.heads, own_heads)),
        data_cleaning=replace(
            cleaning, validation=_settled(cleaning.validation, "clients" if on_clients else "server")
        ),
        consensus=replace(consensus, augment=augment, normalise=normalise),
    )


def _partition(params: Params, info: DatasetInfo, size: Sizes) -> PartitionSettings:
    """params: with the problems' settings resolved."""
    part, groups = params.partition, default_groups(info.classes)
    lead, mixed, cleaning = part.lead, part.mixed, part.cleaning
    validates = part.scheme not in DEALS_VALIDATION and upper_on_clients(
        params.problem, params.problems.data_cleaning.validation, part.scheme
    )
    return replace(
        part,
        validation_per_label=_settled(part.validation_per_label, size.validation_per_label),
        selection_per_label=_settled(part.selection_per_label, size.selection_per_label),
        client_validation=_settled(part.client_validation, CLIENT_VALIDATION if validates else 0.0),
        lead=replace(
            lead, groups=_settled(lead.groups, groups), noise_samples=_settled(lead.noise_samples, size.bad_samples)
        ),
        duplicates=replace(part.duplicates, groups=_settled(part.duplicates.groups, groups)),
        mixed=replace(
            mixed, groups=_settled(mixed.groups, groups), bad_samples=_settled(mixed.bad_samples, size.bad_samples)
        ),
        cleaning=replace(
            cleaning,
            samples=_settled(cleaning.samples, size.cleaning_samples),
            validation_samples=_settled(cleaning.validation_samples, size.cleaning_validation),
        ),
        longtail=replace(part.longtail, imbalance=_settled(part.longtail.imbalance, size.imbalance)),
    )


def problem_in_use(params: Params) -> str:
    """`problem`, with `auto` resolved: what the data are made for, else what the method is."""
    if params.problem != "auto":
        return params.problem
    return own_problem(params.data.name) or made_for(params.algorithm)
