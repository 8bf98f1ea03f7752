"""Rules between parameters, checked before any work starts."""

from __future__ import annotations

import difflib

from pipeline.data.catalog import data_for, own_problem, problem_in_use
from pipeline.errors import UserError, not_allowed
from pipeline.params.methods import DualOptions, FedProx, LocalOptions, PrimalOptions, ServerOptions, WeightedOptions
from pipeline.params.pairs import (
    DEALS_VALIDATION,
    FAMILIES,
    FITS,
    HEADS,
    OWN_DATA,
    REASONS,
    family,
    fitting,
    in_use,
    made_for,
    upper_on_clients,
)
from pipeline.params.sections import MODEL_NAMES, Params


def check_rules(params: Params) -> None:
    """UserError for the first setting that cannot work, whatever the data."""
    _problem(params)
    require_rates("partition.mixed.flip_rates", params.partition.mixed.flip_rates)
    require_rates("partition.label_noise.rates", params.partition.label_noise.rates)
    _pair(params)
    if own_problem(params.data.name) == "toy":
        _has_products(params.train.precision)
    else:
        _model(params.model.name)
        _small_enough(params)
        _validation(params)
    if params.algorithm == "rfho":
        require_plain_steps("rfho", params.algorithms.rfho)
    _local_steps(params)
    _replicates(params)


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


def require_rates(key: str, rates: list[float]) -> None:
    """UserError for a share of wrong labels that is none."""
    if not all(0.0 <= rate <= 1.0 for rate in rates):
        raise not_allowed(key, rates, "a list of numbers in [0, 1], one per client", f"for example {key}: [0.2, 0.4]")


def require_plain_steps(method: str, options: ServerOptions) -> None:
    """UserError for an optimizer other than sgd, where a method's derivation contains the step itself."""
    if options.optimizer != "sgd":
        raise not_allowed(
            f"algorithms.{method}.optimizer",
            options.optimizer,
            f"sgd, since {method} differentiates through plain steps of the model",
            "set it to sgd, or choose another algorithm",
        )
    if options.clip_norm:
        raise not_allowed(
            f"algorithms.{method}.clip_norm",
            options.clip_norm,
            f"0, since {method} differentiates through plain steps of the model",
            "set it to 0, or choose another algorithm",
        )


def _problem(params: Params) -> None:
    """Problems, data sets and partitions that come together only."""
    name, scheme = params.data.name, params.partition.scheme
    own = own_problem(name)
    for problem in OWN_DATA:
        if params.problem != "auto" and (params.problem == problem) != (own == problem):
            names = data_for(problem)
            fix = "problem: auto" + (f", or data.name: {names[-1]}" if params.problem == problem else "")
            raise UserError(
                f"problem: {params.problem} does not go with data.name: {name}: the problem {problem} and the data"
                f" {' or '.join(names)} come together. Fix: {fix}."
            )
    few_shot = own == "few_shot"
    if own != "toy" and few_shot != (scheme == "few_shot"):
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
    """The table of `pipeline.params.pairs`, and heads of the kind that the method moves."""
    name = params.algorithm
    problem = problem_in_use(params)
    kind = family(in_use(name, problem))
    if kind not in FITS[problem]:
        other = "" if problem in OWN_DATA else f"problem: {made_for(name)}, or "
        raise UserError(
            f"algorithm: {name} does not fit problem: {problem}: {REASONS[kind]}. Fix: {other}an algorithm for"
            f" {problem}: {', '.join(fitting(problem))}."
        )
    heads = params.problems.hyper_representation.heads
    if problem == "hyper_representation" and heads != "auto" and heads not in HEADS[kind]:
        methods = [method for name, allowed in HEADS.items() if heads in allowed for method in FAMILIES[name]]
        raise UserError(
            f"problems.hyper_representation.heads: {heads} does not go with algorithm: {name}, which learns"
            f" {' or '.join(HEADS[kind])} ones. Fix: heads: auto; or an algorithm for {heads} heads:"
            f" {', '.join(methods)}."
        )


def _validation(params: Params) -> None:
    """The upper level needs samples, and right labels on them."""
    part = params.partition
    problem = problem_in_use(params)
    own, scheme = part.client_validation, part.scheme
    cleaning = params.problems.data_cleaning.validation
    if scheme in DEALS_VALIDATION and own not in ("auto", 0):
        size = {"cleaning": "validation_samples", "few_shot": "queries"}[scheme]
        raise not_allowed(
            "partition.client_validation",
            own,
            f"auto or 0 with partition.scheme: {scheme}, which deals out validation parts of its own",
            f"set it to auto; their size is partition.{scheme}.{size}",
        )
    on_clients = upper_on_clients(problem, cleaning, scheme)
    if on_clients and own == 0 and scheme not in DEALS_VALIDATION:
        raise not_allowed(
            "partition.client_validation",
            own,
            f"above 0 for problem: {problem}, whose upper level is the clients' own validation parts",
            "set it to auto, which is 0.2 here",
        )
    if problem == "data_cleaning" and cleaning == "clients" and scheme in ("lead", "label_noise", "mixed"):
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


def _local_steps(params: Params) -> None:
    """What learned client weights, control variates and duals cannot be combined with."""
    options, name, federation = getattr(params.algorithms, params.algorithm), params.algorithm, params.federation
    weighted = problem_in_use(params) == "client_weighting"
    steps = isinstance(options, WeightedOptions) and (options.weights.mode == "learned" or options.weights.server_steps)
    if steps and weighted and options.optimizer != "sgd":
        raise not_allowed(
            f"algorithms.{name}.optimizer",
            options.optimizer,
            "sgd with learned client weights or server_steps: true, where the server's step holds a part with a step"
            " size of its own",
            "set it to sgd, or weights.mode: plain and server_steps: false",
        )
    if isinstance(options, WeightedOptions) and not weighted and options.weights.is_reference:
        raise not_allowed(
            "problem",
            params.problem,
            f"client_weighting with algorithms.{name}.weights.mode or server_steps set, which nothing else uses",
            "set it to client_weighting, or mode to learned and server_steps to false",
        )
    if isinstance(options, LocalOptions):
        _stable(name, options)
    if name == "scaffold" and federation.aggregation != "uniform":
        raise not_allowed(
            "federation.aggregation",
            federation.aggregation,
            "uniform for scaffold, whose control variates belong to the plain mean of the clients' losses",
            "set it to uniform, or choose fedavg",
        )
    if not isinstance(options, DualOptions):
        return
    if options.optimizer != "sgd":
        raise not_allowed(
            f"algorithms.{name}.optimizer",
            options.optimizer,
            f"sgd: the server of {name} takes the minimiser that its duals belong to, not a step along a gradient",
            "set it to sgd, or choose fedavg, fedprox, fedcm, scaffold or fedsam",
        )
    if federation.aggregation != "uniform":
        raise not_allowed(
            "federation.aggregation",
            federation.aggregation,
            f"uniform for {name}, whose duals belong to the plain mean of the clients' losses",
            "set it to uniform, or choose fedavg",
        )
    if name == "fedpd" and federation.participation < 1.0:
        raise not_allowed(
            "federation.participation",
            federation.participation,
            "1.0 for fedpd, whose rule is defined for full participation only",
            "set it to 1.0, or choose a_fedpd, feddyn or fedadmm",
        )


def _stable(name: str, options: LocalOptions) -> None:
    """Steps that ruin a run on any data: x <- x - eta pull x with eta pull of 2 or more, and Adam's of length 1."""
    pulls = {"weight_decay": options.weight_decay, "rho": getattr(options, "rho", 0.0)}
    if isinstance(options, FedProx) and options.local_steps == 1 and not options.local_epochs:
        pulls["rho"] = 0.0  # a single step starts where the proximal term is 0
    if options.eta * sum(pulls.values()) >= 2.0:
        key = max(pulls, key=lambda each: pulls[each])
        room = 2.0 / options.eta - sum(pulls.values()) + pulls[key]
        raise not_allowed(
            f"algorithms.{name}.{key}",
            pulls[key],
            f"less than {room:g} (eta times rho and weight_decay below 2), or local steps diverge on any data",
            f"lower it, or algorithms.{name}.eta",
        )
    # Their first step is eta_g for every parameter, several times what a network's weights are at the start.
    if isinstance(options, PrimalOptions) and options.optimizer in ("adam", "adagrad") and options.eta_g > 0.3:
        raise not_allowed(
            f"algorithms.{name}.eta_g",
            options.eta_g,
            f"at most 0.3 with {options.optimizer}, whose first step moves every parameter by about that much",
            "set it to 0.01, or the optimizer to sgd",
        )


def _small_enough(params: Params) -> None:
    """The exact gradient's dense Hessian: every named network has thousands of parameters on any image data set."""
    if params.algorithm == "exact_gradient" and params.model.name in MODEL_NAMES:
        raise UserError(
            f"algorithm: exact_gradient needs a dense Hessian, so at most 2000 model parameters; {params.model.name} on"
            f" {params.data.name} has more. Fix: another algorithm, such as primal_dual; or data.name: toy."
        )


def _model(name: str) -> None:
    """A known network or a dotted path; the network itself is built, and tried, by the train stage."""
    if name in MODEL_NAMES or ("." in name and all(part.isidentifier() for part in name.split("."))):
        return
    near = difflib.get_close_matches(name, MODEL_NAMES, n=1)
    hint = f" Did you mean {near[0]}?" if near else ""
    raise UserError(
        f'model.name = "{name}" is not allowed: it must be one of {", ".join(MODEL_NAMES)}, or the dotted path of your'
        f" own function.{hint} Fix: for example `name: lenet5` (the default)."
    )
