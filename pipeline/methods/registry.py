"""Every method by its name in params.yaml, and which problems it fits.

A new method is a file and a line here; a custom method needs no line, its name is its dotted path. An
unknown name and a method that does not fit its problem are answered with what is in this table.
"""

from __future__ import annotations

from typing import Any

from pipeline.config import own_code
from pipeline.config.spec import Named
from pipeline.errors import UserError, not_allowed
from pipeline.methods.base import Algorithm, Family
from pipeline.problems.forms import Form
from pipeline.problems.registry import PROBLEMS, problem_named

ALGORITHMS: dict[str, Algorithm[Any]] = own_code.registered(
    "pipeline.methods",
    "client_weighting.primal_dual.PRIMAL_DUAL",
    "client_weighting.rfho.RFHO",
    "client_weighting.fednest.FEDNEST",
    "client_weighting.sustain.SUSTAIN",
    "client_weighting.afl.AFL",
    "client_weighting.validation_only.VALIDATION_ONLY",
    "client_weighting.average.AVERAGE",
    "client_weighting.oracle_weights.ORACLE_WEIGHTS",
    "client_weighting.exact_gradient.EXACT_GRADIENT",
    "bilevel.simfbo.SIMFBO",
    "bilevel.simfbo.SHROFBO",
    "bilevel.fednest_general.FEDNEST_GENERAL",
    "bilevel.lfednest.LFEDNEST",
    "bilevel.aggitd.AGGITD",
    "bilevel.fedbio.FEDBIO",
    "bilevel.fedbioacc.FEDBIOACC",
    "bilevel.fedbio_local.FEDBIO_LOCAL",
    "bilevel.fedbio_local.FEDBIOACC_LOCAL",
    "consensus.fedavg.FEDAVG",
    "consensus.fedprox.FEDPROX",
    "consensus.fedcm.FEDCM",
    "consensus.scaffold.SCAFFOLD",
    "consensus.fedsam.FEDSAM",
    "consensus.fedpd.FEDPD",
    "consensus.fedadmm.FEDADMM",
    "consensus.feddyn.FEDDYN",
    "consensus.fedspeed.FEDSPEED",
    "consensus.a_fedpd.A_FEDPD",
    "consensus.a_fedpd_sam.A_FEDPD_SAM",
)

FAMILIES: dict[str, tuple[str, ...]] = {
    family.name: tuple(name for name, algorithm in ALGORITHMS.items() if algorithm.family is family)
    for family in dict.fromkeys(algorithm.family for algorithm in ALGORITHMS.values())
}
"""Family -> its methods."""


ROOMS: dict[str, tuple[str, ...]] = {
    room: tuple(name for name, each in ALGORITHMS.items() if f".{room}." in each.context.__module__)
    for room in ("client_weighting", "bilevel", "consensus")
}
"""Folder -> its methods."""
NAMES = Named(
    tuple(ALGORITHMS),
    "an Algorithm of your own",
    tuple(
        (title, ROOMS[room])
        for room, title in (
            ("client_weighting", "client weighting"),
            ("bilevel", "general bilevel"),
            ("consensus", "consensus"),
        )
    ),
)


def fits(algorithm: Algorithm[Any], problem: str) -> bool:
    """Whether the problem offers a form that the method solves."""
    return not {*problem_named(problem).offers}.isdisjoint(algorithm.family.solves)


FITS: dict[str, tuple[str, ...]] = {
    problem: tuple(family for family, (first, *_) in FAMILIES.items() if fits(ALGORITHMS[first], problem))
    for problem in PROBLEMS
}
"""Problem -> families of methods."""


def algorithm_named(name: str) -> Algorithm[Any]:
    """The method of that name or dotted path; UserError, in one line, for whatever is wrong with either."""
    if name in ALGORITHMS:
        return ALGORITHMS[name]
    if "." not in name:
        raise not_allowed("algorithm", name, f"one of {NAMES.listed}; or a dotted path", "write one of them")
    found: Algorithm[Any] = own_code.found_at("algorithm", name, Algorithm, "Algorithm", " as an Algorithm(...)")
    fault = own_code.fault(found, ALGORITHMS, None, None) or _no_family(found)
    fault = fault or own_code.fault(found, ALGORITHMS, found.options, found.family.options)
    for part, count in ((found.init, 1), (found.step, 2), (found.step_sizes, 1), (found.inner_steps, 1)):
        fault = fault or own_code.not_called_with(part, count)
    if fault:
        raise UserError(f"algorithm = {name!r}: {fault}.")
    return found


def _no_family(own: Algorithm[Any]) -> str | None:
    if isinstance(own.family, Family):
        return None
    return f"its family is {own.family!r}. Fix: take one, such as WEIGHTING of pipeline.methods.client_weighting"


def fitting(problem: str) -> list[str]:
    """The methods for a problem."""
    return [method for names in FAMILIES.values() for method in names if fits(ALGORITHMS[method], problem)]


def method_for(name: str, problem: str) -> str:
    """The method that a name means on that problem: itself, or its general form where its own does not fit."""
    algorithm = algorithm_named(name)
    return algorithm.general_form if algorithm.general_form and not fits(algorithm, problem) else name


def family(name: str) -> str:
    """The name of the method's family."""
    return algorithm_named(name).family.name


def made_for(name: str) -> str:
    """What `problem: auto` means for the method on labelled images."""
    return algorithm_named(name).family.made_for


def heads(algorithm: Algorithm[Any]) -> tuple[str, ...]:
    """Heads of a hyper-representation that the method can learn; the first is what `auto` means."""
    kinds = {Form.LOCAL_LOWER: "local", Form.COMMON_LOWER: "shared"}
    return tuple(kinds[form] for form in algorithm.family.solves if form in kinds)
