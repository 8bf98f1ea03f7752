"""The methods of general federated bilevel learning (``pipeline.algorithms.bilevel``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pipeline.params.spec import PositiveInt, Section, param

Steps = PositiveInt | list[int] | Literal["random"]


@dataclass(frozen=True)
class BilevelOptions(Section):
    """What every method of the family may choose."""

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
    """One loop, one exchange (``pipeline.algorithms.bilevel.simfbo``)."""

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
    """SimFBO that forgives unequal local steps (``pipeline.algorithms.bilevel.simfbo``)."""
