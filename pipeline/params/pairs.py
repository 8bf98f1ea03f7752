"""Which methods fit which problems, and which problem `problem: auto` means. A new method is a name in one of the
families; a new problem is a line in `FITS`.

| family | solves |
|---|---|
| weighting | min_x f_0(w*(x)) over client weights x, with derivatives at one shared model (WeightingProblem) |
| bilevel | general problems with one lower variable for all clients (BilevelProblem) |
| local | general problems with a lower variable for each client (BilevelProblem, `local_lower`) |
| either | both of the latter |
| averaging | one model by clients' local steps; client weights too (LocalProblem) |
| consensus | the plain mean of the clients' losses by local steps with duals or control variates (LocalProblem) |
"""

from __future__ import annotations

from typing import Literal

ProblemName = Literal[
    "auto",
    "client_weighting",
    "hyper_representation",
    "few_shot",
    "data_cleaning",
    "loss_tuning",
    "fair",
    "consensus",
    "toy",
]
"""What `problem` may be."""

AlgorithmName = Literal[
    "primal_dual",
    "rfho",
    "fednest",
    "sustain",
    "afl",
    "validation_only",
    "average",
    "oracle_weights",
    "exact_gradient",
    "simfbo",
    "shrofbo",
    "fednest_general",
    "lfednest",
    "aggitd",
    "fedbio",
    "fedbioacc",
    "fedbio_local",
    "fedbioacc_local",
    "fedavg",
    "fedprox",
    "fedcm",
    "scaffold",
    "fedsam",
    "fedpd",
    "fedadmm",
    "feddyn",
    "fedspeed",
    "a_fedpd",
    "a_fedpd_sam",
]
"""What `algorithm` may be."""

Heads = Literal["shared", "local"]

FAMILIES: dict[str, tuple[str, ...]] = {
    "weighting": (
        "primal_dual",
        "rfho",
        "fednest",
        "sustain",
        "afl",
        "validation_only",
        "average",
        "oracle_weights",
        "exact_gradient",
    ),
    "bilevel": ("simfbo", "shrofbo", "fednest_general", "aggitd", "fedbio", "fedbioacc"),
    "local": ("fedbio_local", "fedbioacc_local"),
    "either": ("lfednest",),
    "averaging": ("fedavg", "fedprox", "fedcm", "fedsam"),
    "consensus": ("scaffold", "fedpd", "fedadmm", "feddyn", "fedspeed", "a_fedpd", "a_fedpd_sam"),
}

FITS: dict[str, tuple[str, ...]] = {
    "client_weighting": ("weighting", "bilevel", "either", "averaging"),
    "hyper_representation": ("bilevel", "local", "either"),
    "few_shot": ("local", "either"),
    "data_cleaning": ("bilevel", "either"),
    "loss_tuning": ("bilevel", "either"),
    "fair": ("bilevel", "either"),
    "consensus": ("averaging", "consensus"),
    "toy": ("weighting", "bilevel", "either"),
}
"""Problem -> families of methods."""

HEADS: dict[str, tuple[Heads, ...]] = {"bilevel": ("shared",), "local": ("local",), "either": ("local", "shared")}
"""Family -> heads of a hyper-representation that its methods can learn; the first is what `auto` means."""

REASONS: dict[str, str] = {
    "weighting": "it learns weights of clients at one shared model, and knows of no other upper variable",
    "bilevel": "it moves one lower variable for all clients",
    "local": "it is made for local lower levels, one lower variable per client",
    "either": "it needs an upper and a lower level",
    "averaging": "it trains one model by clients' local steps, and beside it nothing but client weights",
    "consensus": "its duals or control variates belong to the plain mean of the clients' losses",
}
"""Family -> why it does not fit elsewhere."""

AUTO: dict[str, ProblemName] = {
    "weighting": "client_weighting",
    "bilevel": "client_weighting",
    "local": "hyper_representation",
    "either": "hyper_representation",
    "averaging": "consensus",
    "consensus": "consensus",
}
"""Family -> the problem its methods are made for: what `problem: auto` means on images."""

OWN_DATA: tuple[ProblemName, ...] = ("toy", "few_shot")
"""Problems with data of their own, which serve no other: the toy's are drawn from the seed; those of `few_shot` are
tested on classes that nobody trains on. Which these are: `pipeline.data.catalog.data_for`."""

DEALS_VALIDATION = ("cleaning", "few_shot")
"""Partition schemes that deal out the clients' validation parts themselves."""

GENERAL_FORM: dict[str, AlgorithmName] = {"fednest": "fednest_general"}
"""Methods with a form of their own for client weighting -> the one for every other problem, a method by itself."""


def in_use(algorithm: AlgorithmName, problem: str) -> AlgorithmName:
    """The method that `algorithm` means on that problem."""
    return algorithm if "weighting" in FITS[problem] else GENERAL_FORM.get(algorithm, algorithm)


def family(algorithm: str) -> str:
    return next(name for name, methods in FAMILIES.items() if algorithm in methods)


def made_for(algorithm: str) -> ProblemName:
    """What `problem: auto` means for the method on labelled images."""
    return AUTO[family(algorithm)]


def fitting(problem: str) -> list[str]:
    """The methods for a problem."""
    return [method for name in FITS[problem] for method in FAMILIES[name]]


def upper_on_clients(problem: str, cleaning_validation: str, scheme: str) -> bool:
    """Whether the upper level lies on the clients' own validation parts, not on the server's validation set.

    cleaning_validation: problems.data_cleaning.validation; its auto means the clients' own where the scheme deals out
    clean ones.
    """
    if problem == "data_cleaning":
        return cleaning_validation == "clients" or (cleaning_validation == "auto" and scheme == "cleaning")
    return problem in ("hyper_representation", "few_shot", "loss_tuning", "fair")
