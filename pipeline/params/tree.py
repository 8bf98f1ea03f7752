"""The whole of params.yaml."""

from __future__ import annotations

from dataclasses import dataclass, make_dataclass
from functools import cache
from typing import Annotated, Any, NewType

from pipeline.config.sections import FederationSettings, LossSettings, Screening, Sweep, Tracking, Train
from pipeline.config.spec import Named, OpenSection, Section, one_section_each, param, section
from pipeline.data.schemes import SCHEMES
from pipeline.data.settings import Data, PartitionSettings, Subset, scheme_named
from pipeline.methods import ALGORITHMS, Algorithm
from pipeline.methods.consensus.robust import Robust
from pipeline.methods.registry import NAMES, algorithm_named
from pipeline.models.settings import Model
from pipeline.problems.forms import Formulation
from pipeline.problems.registry import PROBLEMS, problem_named

MethodName = Annotated[str, NAMES]
ProblemName = Annotated[str, Named(("auto", *PROBLEMS), "a Formulation of your own")]


@one_section_each({name: (method.options, method.summary) for name, method in ALGORITHMS.items()})
class Algorithms(OpenSection):
    """One section per method; only the one named by `algorithm` is in use."""


@one_section_each({name: (problem.settings, problem.summary) for name, problem in PROBLEMS.items()})
class Problems(OpenSection):
    """One section per problem; only the one in use counts."""


@dataclass(frozen=True)
class Params(Section):
    """The whole of params.yaml."""

    seed: int = param(0, "all randomness comes from it; equal seeds give equal runs", ge=0, lt=2**31)
    data: Data = section(Data, "which images")
    subset: Subset = section(Subset, "the first images of the data set only")
    partition: PartitionSettings = section(PartitionSettings, "who holds what")
    model: Model = section(Model, "the network")
    loss: LossSettings = section(LossSettings, "of one sample")
    problem: ProblemName = param("auto", "what is optimised; auto = what the data or the algorithm are made for")
    problems: Problems = section(Problems, "settings of each problem")
    federation: FederationSettings = section(FederationSettings, "who takes part, and with how much data")
    screening: Screening = section(Screening, "which clients' answers count")
    robust: Robust = section(Robust, "how clients' changes are put together where some may be bad")
    algorithm: MethodName = param("primal_dual", "the method")
    algorithms: Algorithms = section(Algorithms, "settings of each method")
    train: Train = section(Train, "the loop")
    sweep: Sweep = section(Sweep, "the runs of `make sweep`; a single run does not look at it")
    tracking: Tracking = section(Tracking, "where runs are recorded")

    @property
    def method(self) -> Algorithm[Any]:
        """What `algorithm` names."""
        return algorithm_named(self.algorithm)

    @property
    def hyper(self) -> Any:
        """The method's hyper-parameters."""
        return getattr(self.algorithms, self.method.name)

    @property
    def formulation(self) -> Formulation:
        """What `problem` names; ValueError while it is auto."""
        if self.problem == "auto":
            raise ValueError("problem is still auto: resolve the settings first")
        return problem_named(self.problem)

    @property
    def problem_settings(self) -> Any:
        """The settings of the problem."""
        return getattr(self.problems, self.formulation.name)


Resolved = NewType("Resolved", Params)
"""Parameters in which no `auto` is left that depends on the data, the problem or the method
(`pipeline.params.resolve.resolve`): what training, evaluation and reports take. A method's or a problem's own choice
stays `auto` where another of its settings, the dealt samples, the memory or the machine decides it, which only the
place of its use knows; so records keep it as it was written."""


@cache
def params_of(algorithm: str, scheme: str, problem: str) -> type[Params]:
    """The record of a params.yaml with that `algorithm`, `partition.scheme` and `problem`: each custom one has a
    section."""
    fields = []
    if algorithm not in ALGORITHMS:
        own = algorithm_named(algorithm)
        fields.append(_with("algorithms", Algorithms, own.name, own.options, own.summary))
    if scheme not in ("auto", *SCHEMES):
        dealing = scheme_named(scheme)
        fields.append(_with("partition", PartitionSettings, dealing.name, dealing.settings, dealing.summary))
    if problem not in ("auto", *PROBLEMS):
        formulation = problem_named(problem)
        fields.append(_with("problems", Problems, formulation.name, formulation.settings, formulation.summary))
    return make_dataclass("Params", fields, bases=(Params,), frozen=True) if fields else Params


def _with(field: str, sections: type[OpenSection], name: str, record: type, summary: str) -> tuple[str, type, Any]:
    """A field of Params whose sections have one more."""
    kind = one_section_each({name: (record, summary)})(sections)
    return field, kind, section(kind, sections.__doc__ or "")
