"""Rules between parameters, checked before any work starts."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pipeline.config.spec import dotted
from pipeline.data.losses import require_fit
from pipeline.data.raw import first
from pipeline.data.schemes import SCHEMES
from pipeline.data.schemes.natural import NATURAL
from pipeline.data.server_sets import require_left
from pipeline.data.sets.registry import data_for
from pipeline.errors import UserError, not_allowed
from pipeline.masking import masked
from pipeline.methods.consensus import robust
from pipeline.methods.registry import ALGORITHMS, algorithm_named, fits, fitting, heads, made_for, method_for
from pipeline.models import automatic as automatic_network
from pipeline.params.resolve import automatic_scheme, foreseen, problem_in_use
from pipeline.params.tree import Params
from pipeline.participation import usual_count
from pipeline.problems.registry import OWN_DATA, problem_named


def check_rules(params: Params) -> None:
    """UserError for the first setting that cannot work, whatever the data."""
    _numbers(params)
    _addresses(params)
    _own_data(params)
    if params.partition.scheme == "auto":
        # Of own data nothing is known yet; neither of the schemes it can stand for breaks any of the rules below.
        automatic = automatic_scheme(params, params.data.dataset.info)
        params = replace(params, partition=replace(params.partition, scheme=automatic))
    info = params.data.dataset.info
    if params.model.name == "auto" and info:
        params = replace(params, model=replace(params.model, name=automatic_network(info.size, info.images)))
    _problem(params)
    for name, scheme in SCHEMES.items():
        scheme.check(f"partition.{name}", getattr(params.partition, name))
    _pair(params)
    if params.data.dataset.problem == "toy":
        _has_products(params.train.precision)
    else:
        _validation(params)
    params.method.check(params.method.name, params.hyper, params, problem_in_use(params))
    robust.check(params, problem_in_use(params))
    _replicates(params)
    _known_samples(foreseen(params))


LARGEST_INT = 2**31 - 1
LARGEST_FLOAT, SMALLEST_FLOAT = 3.4028234e38, 1.1754944e-38
"""Of float32, in which all but `train.precision: 64-true` computes."""
TRACKERS = ("sqlite", "postgresql", "mysql", "mssql", "http", "https", "file", "databricks", "uc")


def _numbers(params: Params) -> None:
    """UserError for a number that the arithmetic in use would turn into infinity, zero or nothing."""
    wide = params.train.precision == "64-true" or params.data.dataset.problem == "toy"
    for name, value in dotted(params).items():
        for each in _leaves(value):
            if isinstance(each, int) and abs(each) > LARGEST_INT:
                raise not_allowed(name, value, f"at most {LARGEST_INT}", "a smaller number")
            size = abs(each) if isinstance(each, float) else 0
            if size and not wide and not SMALLEST_FLOAT <= size <= LARGEST_FLOAT:
                raise not_allowed(
                    name,
                    value,
                    f"0, or between {SMALLEST_FLOAT:.1g} and {LARGEST_FLOAT:.1g}, which is what"
                    f" train.precision: {params.train.precision} can hold",
                    "another number, or train.precision: 64-true",
                )


def _leaves(value: Any) -> list[Any]:
    return [leaf for each in value for leaf in _leaves(each)] if isinstance(value, list) else [value]


def _addresses(params: Params) -> None:
    """UserError for a tracker or a mirror whose address leads nowhere at all."""
    uri, mirror = params.tracking.uri, params.data.mirror
    kinds = {"tracking.uri": (uri, TRACKERS), "data.mirror": (mirror, ("http", "https", "file"))}
    for key, (address, schemes) in kinds.items():
        if address is None or "://" not in address:
            continue
        try:
            parts = urlsplit(address)
            known = re.split(r"[+]", parts.scheme)[0] in schemes and (parts.port or 1) > 0
        except ValueError:
            known = False
        if not known or (parts.scheme in ("http", "https") and not parts.hostname):
            allowed = f"a path, or an address that begins with {', '.join(schemes)} and ://"
            raise not_allowed(key, masked(address), allowed, "correct the address, or set it to null")
    for key, path in {"data.mirror": mirror, "data.path": params.data.path}.items():
        try:
            Path(path or "").expanduser()
        except RuntimeError:
            raise not_allowed(key, path, "a folder, and there is no such user", "write the whole path") from None


def _own_data(params: Params) -> None:
    """What own data need, and what goes with no other data."""
    dataset, part = params.data.dataset, params.partition
    dataset.check(params.data)
    if params.data.bad and not dataset.own:
        raise not_allowed(
            "data.bad",
            params.data.bad,
            f"empty with data.name: {params.data.name}, whose clients are dealt by partition.scheme",
            "set it to []",
        )
    if params.data.bad and part.scheme not in ("auto", NATURAL.name):
        raise not_allowed(
            "data.bad",
            params.data.bad,
            f"empty with partition.scheme: {part.scheme}, which deals clients of its own",
            "set it to [], or partition.scheme to auto",
        )
    if part.scheme == NATURAL.name and not dataset.own:
        raise UserError(
            f"partition.scheme: natural does not go with data.name: {params.data.name}, whose samples have no clients"
            " of their own. Fix: partition.scheme: auto."
        )
    for key, share in (("validation_per_label", "validation_share"), ("selection_per_label", "selection_share")):
        if dataset.own and getattr(part, key) != "auto":
            raise not_allowed(
                f"partition.{key}",
                getattr(part, key),
                f"auto with data.name: {params.data.name}, of which the server holds given samples or a share",
                f"set it to auto, and data.{share} as you like",
            )


def _known_samples(params: Params) -> None:
    """UserError for what the samples cannot serve, as far as their numbers decide it: of a data set whose size is known
    before it is read. params: as foreseen."""
    info, part = params.data.dataset.info, params.partition
    if not info:
        return
    require_fit(params.loss.name, params.loss.class_weights, info.classes, info.few_shot)
    if not info.classes:
        return
    images = first("subset.train", params.subset.train, info.images, params.data.name)
    validation, selection = int(part.validation_per_label), int(part.selection_per_label)
    least = info.classes * (validation + selection + 1)
    if images < least <= info.images:
        raise not_allowed(
            "subset.train",
            images,
            f"at least {least}: of each of {info.classes} labels {validation + selection} samples for the server"
            " (partition.validation_per_label and selection_per_label) and one for the clients",
            "raise it, or lower those",
        )
    require_left(validation, selection, images // info.classes, f"{params.data.name}: a label has about")
    pool = images - info.classes * (validation + selection)
    clients = part.dealing.foresee(getattr(part, part.dealing.name), pool, info.classes)
    if clients is None:
        return
    active = usual_count(clients, params.federation.sampling, params.federation.participation)
    if rule := robust.chosen(params.robust):
        rule.require(active)


def _replicates(params: Params) -> None:
    """A spread needs two runs, and a validation set that decides on client weights."""
    count, problem = params.train.replicates, problem_in_use(params)
    if count == 1:
        raise not_allowed("train.replicates", 1, "0 or at least 2: one run has no spread", "set it to 0, or to 5")
    if count and problem != "client_weighting":
        raise not_allowed(
            "train.replicates",
            count,
            f"0 for problem: {problem}, where no client weights are learned from the server's validation set",
            "set it to 0, or problem to client_weighting",
        )


def _has_products(precision: str) -> None:
    """UserError for a faster arithmetic of networks where there is none."""
    if precision in ("tf32", "bf16-mixed"):
        raise not_allowed(
            "train.precision", precision, "32-true or 64-true with data.name: toy, which has no network", "set 32-true"
        )


def _problem(params: Params) -> None:
    """Problems, data sets and partitions that come together only."""
    name, scheme = params.data.name, params.partition.scheme
    own = params.data.dataset.problem
    for problem in OWN_DATA:
        if params.problem != "auto" and (params.problem == problem) != (own == problem):
            names = data_for(problem)
            fix = "problem: auto" + (f", or data.name: {names[-1]}" if params.problem == problem else "")
            raise UserError(
                f"problem: {params.problem} does not go with data.name: {name}: the problem {problem} and the data"
                f" {' or '.join(names)} come together. Fix: {fix}."
            )
    few_shot = own == "few_shot"
    if own != "toy" and few_shot != (params.partition.dealing.own_problem == "few_shot"):
        raise UserError(
            f"partition.scheme: {scheme} does not go with data.name: {name}: the scheme few_shot and the data"
            f" {' or '.join(data_for('few_shot'))} come together. Fix: partition.scheme:"
            f" {'few_shot' if few_shot else 'lead'}."
        )
    for key in ("validation_per_label", "selection_per_label"):
        if few_shot and getattr(params.partition, key) not in ("auto", 0):
            raise not_allowed(
                f"partition.{key}",
                getattr(params.partition, key),
                f"auto or 0 with data.name: {name}, of which the server holds nothing",
                "set it to auto",
            )


def _pair(params: Params) -> None:
    """A problem that the method solves, and heads of the kind that it moves."""
    name = params.algorithm
    problem = problem_in_use(params)
    method = algorithm_named(method_for(name, problem))
    if not fits(method, problem):
        other = "" if problem in OWN_DATA else f"problem: {made_for(name)}, or "
        raise UserError(
            f"algorithm: {name} does not fit problem: {problem}: {method.family.otherwise}. Fix: {other}an algorithm"
            f" for {problem}: {', '.join(fitting(problem))}."
        )
    wanted, own = params.problems.hyper_representation.heads, heads(method)
    if problem == "hyper_representation" and wanted != "auto" and wanted not in own:
        methods = [other for other in fitting(problem) if wanted in heads(ALGORITHMS[other])]
        raise UserError(
            f"problems.hyper_representation.heads: {wanted} does not go with algorithm: {name}, which learns"
            f" {' or '.join(own)} ones. Fix: heads: auto; or an algorithm for {wanted} heads: {', '.join(methods)}."
        )


def _validation(params: Params) -> None:
    """The upper level needs samples, and right labels on them."""
    part = params.partition
    problem = problem_in_use(params)
    own, scheme, dealing = part.client_validation, part.scheme, part.dealing
    cleaning = params.problems.data_cleaning.validation
    if dealing.validation_size and own not in ("auto", 0):
        raise not_allowed(
            "partition.client_validation",
            own,
            f"auto or 0 with partition.scheme: {scheme}, which deals out validation parts of its own",
            f"set it to auto; their size is partition.{dealing.name}.{dealing.validation_size}",
        )
    formulation = problem_named(problem)
    on_clients = formulation.upper_on_clients(getattr(params.problems, formulation.name), dealing.clean_validation)
    if on_clients and own == 0 and not dealing.validation_size:
        raise not_allowed(
            "partition.client_validation",
            own,
            f"above 0 for problem: {problem}, whose upper level is the clients' own validation parts",
            "set it to auto, which is 0.2 here",
        )
    if problem == "data_cleaning" and cleaning == "clients" and dealing.wrong_labels:
        raise UserError(
            f"problems.data_cleaning.validation: clients does not go with partition.scheme: {scheme}, where the labels"
            " of the clients' validation parts are as wrong as those of their training parts. Fix: validation: auto, or"
            " partition.scheme: cleaning."
        )
    if not on_clients and part.validation_per_label == 0:
        raise not_allowed(
            "partition.validation_per_label",
            0,
            f"at least 1 for problem: {problem}, whose upper level is the server's validation set",
            "set it to auto",
        )
