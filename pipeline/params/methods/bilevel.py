"""The methods of general federated bilevel learning (``pipeline.methods.bilevel``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from pipeline.params.spec import Auto, PositiveInt, Section, param

Steps = PositiveInt | list[int] | Literal["random"]


@dataclass(frozen=True)
class BilevelOptions(Section):
    """What every method of the family may choose. main_step_size: the one to lower first when a run diverges."""

    main_step_size: ClassVar[str] = "eta_y"

    schedule: Literal["constant", "cosine"] = param(
        "cosine", "of all step sizes, the clients' included, over train.rounds; cosine = down to zero"
    )


@dataclass(frozen=True)
class HeterogeneousSteps(BilevelOptions):
    """Methods whose clients may take different numbers of local steps."""

    local_steps: Steps = param(
        1,
        "local steps of a client: a number, a list with one each, or random = uniform on 1..local_steps_max",
        symbol="tau_i",
    )
    local_steps_max: int = param(10, "of `local_steps: random`; unused otherwise", ge=1)
    local_steps_drawn: Literal["once", "every_round"] = param("once", "of `local_steps: random`; unused otherwise")


@dataclass(frozen=True)
class SimFbo(HeterogeneousSteps):
    """One loop, one exchange (``pipeline.methods.bilevel.simfbo``)."""

    main_step_size: ClassVar[str] = "gamma_y"

    gamma_x: float = param(0.05, "server's step size of the upper variable", gt=0, symbol="gamma_x")
    gamma_y: float = param(0.2, "server's step size of the lower variable", gt=0, symbol="gamma_y")
    gamma_v: float = param(0.1, "server's step size of the adjoint", gt=0, symbol="gamma_v")
    eta_x: float = param(0.05, "clients' step size of the upper variable; no effect with one local step", ge=0)
    eta_y: float = param(0.2, "clients' step size of the lower variable; no effect with one local step", ge=0)
    eta_v: float = param(0.1, "clients' step size of the adjoint; no effect with one local step", ge=0)
    adjoint_radius: float = param(
        100.0, "the server keeps the adjoint in this ball; it should (almost) never be reached", gt=0, symbol="r"
    )
    local_coefficients: Literal["constant", "momentum", "proximal"] | list[float] = param(
        "constant",
        "weights of a client's local gradients: constant = plain descent, momentum, proximal, or a list, one per step",
        symbol="a_i",
    )
    local_coefficient: float = param(
        0.5, "of momentum (its factor) and proximal (strength times local step); unused otherwise", ge=0, lt=1
    )
    shared_batch: bool = param(
        False, "one minibatch of each kind for all three directions: cheaper, but not what the analysis assumes"
    )


@dataclass(frozen=True)
class ShroFbo(SimFbo):
    """SimFBO that forgives unequal local steps (``pipeline.methods.bilevel.simfbo``)."""


@dataclass(frozen=True)
class NestedSteps(HeterogeneousSteps):
    """Methods that first move y for some rounds, then x (FedNest's relatives)."""

    local_steps: Steps = param(
        5,
        "a client's local steps on y: a number, a list with one each, or random = uniform on 1..local_steps_max",
        symbol="tau_i",
    )
    eta_x: float = param(0.05, "clients' step size of the upper variable", gt=0, symbol="alpha")
    eta_y: float = param(0.1, "clients' step size of the lower variable", gt=0, symbol="beta")
    eta_h: float = param(0.1, "step of the Neumann series, below 1 / (largest curvature)", gt=0, symbol="lambda")
    upper_local_steps: Steps = param(
        1, "a client's local steps on the upper variable, in the forms of local_steps", symbol="tau_i of FedOut"
    )
    local_step_size: Literal["common", "divided"] = param(
        "common", "common = eta for everybody; divided = eta / tau_i, as in FedNest's theory for unequal local steps"
    )


@dataclass(frozen=True)
class FedNestGeneral(NestedSteps):
    """FedNest for any bilevel problem (``pipeline.methods.bilevel.fednest_general``)."""

    lower_rounds: int = param(1, "calls of FedInn before each step of the upper variable", ge=1, symbol="T")
    correction: Literal["svrg", "none"] = param(
        "svrg", "svrg = local steps corrected against client drift, one exchange more; none = plain local descent"
    )
    series_terms: int = param(
        5, "terms of the Neumann series; with the public code's modes one more than its number", ge=1, symbol="N"
    )
    series: Literal["deterministic", "randomised"] = param(
        "deterministic", "of `mode: clean`: the whole series, or one random product of the same mean"
    )
    mode: Literal["clean", "code_global_batch", "code_local_batch"] = param(
        "clean", "clean = as published; code_... = the sums over local products of the public code's two modes"
    )
    client_sets: Literal["fresh", "one"] = param(
        "fresh", "active clients of the series' exchanges and the step of x: drawn for each, or one set for all"
    )
    counting: Literal["published", "exchanges"] = param(
        "published", "of deterministic series: the published 2T + N + 3 exchanges, or those of N terms, one fewer"
    )


@dataclass(frozen=True)
class LFedNest(NestedSteps):
    """FedNest's local variant (``pipeline.methods.bilevel.lfednest``)."""

    lower_rounds: int = param(1, "rounds of local steps before each step of the upper variable", ge=1, symbol="T")
    correction: Literal["svrg", "none"] = param(
        "none", "none = LFedNest; svrg = LFedNest_SVRG, whose steps of y are corrected against client drift"
    )
    series_terms: int = param(6, "terms of each client's own Neumann series", ge=1, symbol="M")


@dataclass(frozen=True)
class AggItd(NestedSteps):
    """Aggregated iterative differentiation (``pipeline.methods.bilevel.aggitd``)."""

    correction: Literal["svrg", "none"] = param(
        "svrg", "svrg = local steps corrected against client drift, one exchange more; none = plain local descent"
    )
    series_terms: int = param(5, "lower rounds, which are the terms of the series too", ge=1, symbol="N")
    series: Literal["deterministic", "randomised"] = param(
        "randomised", "randomised = from a random round Q on, as published; deterministic = its mean"
    )
    counting: Literal["exchanges", "published"] = param(
        "exchanges", "2N + 2, what is exchanged, or 2N + 3, what the original is recalled to count"
    )


@dataclass(frozen=True)
class FedBio(BilevelOptions):
    """Local steps on all three variables (``pipeline.methods.bilevel.fedbio``)."""

    eta_x: float = param(0.001, "step size of the upper variable", gt=0, symbol="eta")
    eta_y: float = param(0.05, "step size of the lower variable", gt=0, symbol="gamma")
    eta_v: float = param(0.02, "step size of the adjoint", gt=0, symbol="tau")
    local_steps: int = param(5, "iterations between synchronisations: one round of train.rounds", ge=1, symbol="I")
    shared_batch: bool = param(
        False, "one minibatch of each kind for all three directions: cheaper, but their noises are correlated"
    )


@dataclass(frozen=True)
class Momentum(BilevelOptions):
    """Recursive momentum (STORM), ``pipeline.methods.bilevel.common.storm``."""

    schedule: Literal["constant", "cosine"] = param("constant", "of all step sizes, on top of alpha_t")
    alpha_scale: float = param(1.0, "alpha_t = alpha_scale / (alpha_offset + t)^(1/3), t in iterations", gt=0)
    alpha_offset: float = param(8.0, "see alpha_scale", ge=0)
    storm_x: float = param(1.0, "momentum of the upper variable: share c alpha_t^2 is fresh", ge=0, symbol="c_nu")
    storm_y: float = param(1.0, "momentum of the lower variable", ge=0, symbol="c_omega")
    initial_batch_size: PositiveInt | Auto = param(
        "auto", "first minibatch, of the initial momenta; auto = federation.batch_size", symbol="b_1"
    )
    average_initial_momentum: bool = param(
        False, "average the initial momenta as well: one exchange more, once; false = as printed"
    )


@dataclass(frozen=True)
class FedBioAcc(Momentum):
    """FedBiO with recursive momentum (``pipeline.methods.bilevel.fedbioacc``)."""

    eta_x: float = param(0.01, "step size of the upper variable, times alpha_t", gt=0, symbol="eta")
    eta_y: float = param(0.2, "step size of the lower variable, times alpha_t", gt=0, symbol="gamma")
    eta_v: float = param(0.06, "step size of the adjoint, times alpha_t", gt=0, symbol="tau")
    storm_v: float = param(1.0, "momentum of the adjoint", ge=0, symbol="c_u")
    local_steps: int = param(5, "iterations between synchronisations: one round of train.rounds", ge=1, symbol="I")
    shared_batch: bool = param(
        False, "one minibatch of each kind for all three directions: cheaper, but their noises are correlated"
    )


@dataclass(frozen=True)
class FedBioLocal(BilevelOptions):
    """FedBiO with local lower levels (``pipeline.methods.bilevel.fedbio_local``)."""

    eta_x: float = param(0.01, "step size of the upper variable", gt=0, symbol="eta")
    eta_y: float = param(0.1, "step size of the clients' lower variables", gt=0, symbol="gamma")
    eta_h: float = param(0.1, "step of the Neumann series, below 1 / (largest curvature)", gt=0, symbol="tau")
    series_terms: int = param(6, "terms of the Neumann series, one product fewer", ge=1, symbol="Q + 1")
    local_steps: int = param(5, "iterations between synchronisations: one round of train.rounds", ge=1, symbol="I")


@dataclass(frozen=True)
class FedBioAccLocal(Momentum):
    """The same with recursive momentum (``pipeline.methods.bilevel.fedbio_local``)."""

    eta_x: float = param(0.02, "step size of the upper variable, times alpha_t", gt=0, symbol="eta")
    eta_y: float = param(0.2, "step size of the clients' lower variables, times alpha_t", gt=0, symbol="gamma")
    eta_h: float = param(0.1, "step of the Neumann series, below 1 / (largest curvature)", gt=0, symbol="tau")
    series_terms: int = param(6, "terms of the Neumann series, one product fewer", ge=1, symbol="Q + 1")
    local_steps: int = param(5, "iterations between synchronisations: one round of train.rounds", ge=1, symbol="I")
