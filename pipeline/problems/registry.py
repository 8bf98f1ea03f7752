"""Every problem by its name in params.yaml. A new one is a file and a line here."""

from __future__ import annotations

from pipeline.config import own_code
from pipeline.config.spec import Section
from pipeline.errors import UserError
from pipeline.problems.forms import Formulation

PROBLEMS: dict[str, Formulation] = own_code.registered(
    "pipeline.problems",
    "general_weighting.CLIENT_WEIGHTING",
    "hyper_representation.HYPER_REPRESENTATION",
    "few_shot.FEW_SHOT",
    "data_cleaning.DATA_CLEANING",
    "loss_tuning.LOSS_TUNING",
    "fair.FAIR",
    "consensus.CONSENSUS",
    "toy.TOY",
)

OWN_DATA = tuple(name for name, problem in PROBLEMS.items() if problem.own_data)
"""Problems that data of their own serve, and no other data. Which these are: `pipeline.data.sets.registry.data_for`."""


def problem_named(name: str) -> Formulation:
    """The problem of that name or dotted path; UserError, in one line, for whatever is wrong with either."""
    if name in PROBLEMS:
        return PROBLEMS[name]
    found: Formulation = own_code.found_at("problem", name, Formulation, "Formulation", " as a Formulation(...)")
    fault = own_code.fault(found, PROBLEMS, found.settings, Section) or own_code.not_called_with(found.build, 2)
    if fault:
        raise UserError(f"problem = {name!r}: {fault}.")
    return found
