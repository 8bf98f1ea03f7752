"""Rules between parameters, checked before any work starts."""

from __future__ import annotations

import difflib

from pipeline.errors import UserError, not_allowed
from pipeline.params.methods import DualOptions, ServerOptions
from pipeline.params.sections import MODEL_NAMES, Params


def check_rules(params: Params) -> None:
    """UserError for the first setting that cannot work, whatever the data."""
    _problem(params)
    _fits(params)
    require_rates("partition.mixed.flip_rates", params.partition.mixed.flip_rates)
    require_rates("partition.label_noise.rates", params.partition.label_noise.rates)
    if params.data.name != "toy":
        _model(params.model.name)
        _small_enough(params)
    if params.algorithm == "rfho":
        require_plain_steps("rfho", params.algorithms.rfho)
    _local_steps(params)


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


def _problem(params: Params) -> None:
    """The toy is data set and problem in one."""
    if params.problem != "auto" and (params.problem == "toy") != (params.data.name == "toy"):
        raise UserError(
            f"problem: {params.problem} does not go with data.name: {params.data.name}: the toy problem and the"
            " data set toy come together. Fix: problem: auto."
        )


def _fits(params: Params) -> None:
    """Method and problem go together."""
    options = getattr(params.algorithms, params.algorithm)
    problem = "toy" if params.data.name == "toy" else params.problem
    if problem == "auto" or problem in options.problems:
        return
    key, value = ("data.name", "toy") if problem == "toy" else ("problem", params.problem)
    reason = {
        "toy": "the toy's clients have hypergradients to learn and no samples to train on for several steps",
        "consensus": "it minimises the plain mean of the clients' losses, and this method learns client weights",
        "client_weighting": "it learns client weights, which this method's duals or control variates, made for the"
        " plain mean over all clients, have no place for",
    }[problem]
    fix = "problem: auto" if problem != "toy" else "data.name: digits, or an algorithm for the toy such as primal_dual"
    raise UserError(f"algorithm: {params.algorithm} does not go with {key}: {value}: {reason}. Fix: {fix}.")


def _local_steps(params: Params) -> None:
    """What the methods with duals cannot be combined with."""
    options, name, federation = getattr(params.algorithms, params.algorithm), params.algorithm, params.federation
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
