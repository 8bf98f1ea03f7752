"""What a client-weighting method may ask: minibatches of clients and server, derivatives at one shared w."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import Tensor

from pipeline.config.spec import Section, param
from pipeline.methods.base import Family, StepContext
from pipeline.oracles.screened import ScreenedOracle
from pipeline.oracles.shared import SharedOracle
from pipeline.oracles.weighting import ORACLES, Oracle
from pipeline.problems.base import Batch, WeightingProblem
from pipeline.problems.forms import Form

ETA_X = "step size of the client weights; with `weight_step: scaled` in fair shares 1/N per unit of spread"


@dataclass(frozen=True)
class ServerOptions(Section):
    """What every method of the client-weighting family may choose on the server, alike for a fair race.

    main_step_size: the one to lower first when a run diverges.
    """

    main_step_size: ClassVar[str] = "eta_w"

    optimizer: Literal["sgd", "momentum", "adam"] = param(
        "sgd", "torch optimizer of the model w; every other server variable takes plain steps"
    )
    momentum: float = param(0.9, "of `optimizer: momentum`; unused otherwise", ge=0, lt=1)
    schedule: Literal["constant", "cosine"] = param(
        "cosine", "of all step sizes over train.rounds; cosine = down to zero, steadier at the end"
    )
    weight_step: Literal["scaled", "plain"] = param(
        "scaled",
        "step of the learned client weights: scaled = eta_x is in units of a fair share 1/N and of the hypergradient's"
        " own spread, so it fits any data; plain = eta_x times the hypergradient, as in the papers",
    )
    curvature_limit: float = param(
        2.0,
        "the model's step is shortened to this over the curvature along it, which the server measures on its validation"
        " set, and over the one that the last move has met; 2 = no step overshoots its own line; also limits the dual's"
        " step; 0 = no limits, as in the papers",
        ge=0,
    )
    clip_norm: float = param(
        0.0, "the direction of the model w is shortened to this norm where it is longer; 0 = no clipping", ge=0
    )
    estimator: Literal["auto", "memory", "paper", "normalised"] = param(
        "auto",
        "how absent clients are accounted for: paper = scale by N/n, unbiased but noisy; normalised = divide by"
        " the active weights; memory = the server remembers every client's last answer (N d floats, 2 N d for"
        " primal_dual);"
        " auto = memory while that fits into memory_limit_mb, else normalised",
    )
    memory_limit_mb: int = param(2048, "the most `auto` lets the memory estimator use, in MiB", ge=0)
    active_weight_floor: float = param(
        0.3,
        "of `estimator: normalised`: the sum of active weights is never taken below this, or n/N if that is less",
        gt=0,
        le=1,
    )


@dataclass(frozen=True)
class WeightingContext(StepContext):
    """One inner step of a method of this family."""

    oracles: ClassVar[Mapping[str, Callable[[Any], Any]]] = ORACLES
    shared = SharedOracle
    screened = ScreenedOracle

    oracle: Oracle

    @property
    def problem(self) -> WeightingProblem:
        return self.oracle.problem

    def batch(self, purpose: str, clients: Tensor, size: int, *exchange: int) -> Batch:
        """A minibatch per client; different purposes, and exchanges of one step, are independent."""
        return self.oracle.draw(self.stream(purpose, *exchange), clients, size)

    def validation(self) -> Batch:
        """The server's minibatch of this step."""
        return self.problem.draw_validation(self.stream("validation"))


WEIGHTING = Family(
    name="weighting",
    context=WeightingContext,
    options=ServerOptions,
    solves=(Form.SHARED_MODEL,),
    made_for="client_weighting",
    otherwise="it learns client weights at one shared model, and has no other upper variable",
)
