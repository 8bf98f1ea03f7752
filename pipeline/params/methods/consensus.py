"""The methods with local steps (``pipeline.methods.consensus``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from pipeline.params.methods.client_weighting import ETA_X
from pipeline.params.spec import Auto, PositiveInt, Section, param, section


@dataclass(frozen=True)
class LocalOptions(Section):
    """What every method with local steps has in common: how a client trains between two exchanges.

    main_step_size: the one to lower first when a run diverges. momentum, schedule:
    of the server; the step size of the clients has its own decay, the server's is constant. served: the server's
    variable that the method returns as its model.
    """

    main_step_size: ClassVar[str] = "eta"
    schedule: ClassVar[str] = "constant"
    served: ClassVar[str] = "w"

    eta: float = param(0.1, "step size of the clients' local steps", gt=0, symbol="eta_0")
    eta_decay: float = param(0.998, "eta is multiplied by this after every round", gt=0, le=1)
    local_steps: int = param(5, "minibatch steps of a client per round", ge=1, symbol="K")
    local_epochs: int = param(
        0,
        "0 = local_steps minibatches drawn with replacement; more = that many passes over the client's shuffled"
        " samples instead, the last batch of a pass short",
        ge=0,
    )
    weight_decay: float = param(0.001, "adds this times the client's model to every local step", ge=0)
    clip_norm: float = param(
        10.0, "longest gradient of a local step, over all parameters jointly; 0 = no clipping", ge=0
    )
    clip_mode: Literal["loss", "simulator"] = param(
        "loss",
        "what is clipped: loss = the gradient of the loss alone; simulator = with the dual and the proximal anchor, as"
        " in the authors' simulator",
    )
    clients_at_once: PositiveInt | Auto = param(
        "auto",
        "clients trained in one batched pass; auto = all that fit into 4 GiB, but one by one for convolutions on a CPU,"
        " where that was measured faster",
    )
    optimizer: Literal["sgd", "momentum", "adam", "adagrad"] = param(
        "sgd", "torch optimizer of the server, which takes the clients' mean change for a gradient"
    )


@dataclass(frozen=True)
class LearnedWeights(Section):
    """Client weights x of a method with local steps (``pipeline.methods.consensus.common.weights``)."""

    mode: Literal["learned", "plain", "oracle"] = param(
        "learned",
        "learned = by the primal-dual rule from the server's validation set; plain = fixed, as federation.aggregation"
        " says; oracle = fixed, of somebody who knows which clients are clean",
    )
    dual: Literal["residual", "printed"] = param(
        "residual",
        "residual = the dual steps along its own residual grad f_0 + H lambda; printed = along the weighted"
        " pseudo-gradient: the same stationary points, but it carries the path of training and ranks clients backward"
        " at first",
    )
    weight_step: Literal["scaled", "plain"] = param(
        "scaled",
        "step of the learned weights: scaled = eta_x is in units of a fair share 1/N and of the hypergradient's own"
        " spread, so it fits any data; plain = eta_x times the hypergradient",
    )
    eta_w: float = param(
        0.1, "step size of what the validation set and the dual add to the model", gt=0, symbol="eta_w"
    )
    eta_lambda: float = param(0.1, "step size of the dual variable", gt=0, symbol="eta_lambda")
    eta_x: float = param(0.1, ETA_X, gt=0, symbol="eta_x")
    dual_radius: float = param(5.0, "the dual is kept in this ball", gt=0, symbol="D_lambda")
    dual_damping: float = param(
        0.0,
        "adds eta_g eta K / eta_w times this to every curvature of the dual's system, which bounds it where the loss is"
        " flat; under `dual: printed` it forgets at the rate eta_lambda times this",
        ge=0,
        symbol="rho",
    )
    active_weight_floor: float = param(
        0.3,
        "under partial participation the sum of active clients' learned weights is never taken below this, or n/N if"
        " that is less",
        gt=0,
        le=1,
    )
    server_steps: bool = param(
        False,
        "with fixed weights the server takes its steps on the validation set too, as it always does with learned ones",
    )

    @property
    def is_reference(self) -> bool:
        """Whether somebody asked for weights that are not learned."""
        return self.mode != "learned" or self.server_steps


@dataclass(frozen=True)
class PrimalOptions(LocalOptions):
    """Methods whose server steps along the clients' mean change."""

    eta_g: float = param(
        1.0, "server's step size; 1 = the mean of the clients' models under sgd; about 0.01 with adam and adagrad", gt=0
    )
    momentum: float = param(0.9, "of `optimizer: momentum`; unused otherwise", ge=0, lt=1)


@dataclass(frozen=True)
class WeightedOptions(PrimalOptions):
    """Those of them that can learn client weights (`problem: client_weighting`)."""

    weights: LearnedWeights = section(LearnedWeights, "client weights under `problem: client_weighting`")


@dataclass(frozen=True)
class DualOptions(LocalOptions):
    """Methods with a dual variable per client; the server's rule is theirs, so its step is a plain one of 1."""

    momentum: ClassVar[float] = 0.0

    rho: float = param(0.1, "penalty on a client's distance from the server's model", gt=0, symbol="rho")


def _radius(default: float) -> float:
    return param(default, "radius of the sharpness-aware perturbation; 0 = none", ge=0, symbol="r")


def _sam_eps() -> float:
    return param(0.01, "added to the gradient's norm where the perturbation is normalised", gt=0)


@dataclass(frozen=True)
class FedAvg(WeightedOptions):
    """Federated averaging (``pipeline.methods.consensus.fedavg``)."""


@dataclass(frozen=True)
class FedProx(WeightedOptions):
    """Averaging with a proximal term (``pipeline.methods.consensus.fedprox``)."""

    rho: float = param(0.1, "weight of the proximal term", ge=0, symbol="mu")


@dataclass(frozen=True)
class FedCm(WeightedOptions):
    """Client-level momentum (``pipeline.methods.consensus.fedcm``)."""

    weight_decay: float = param(
        0.0001,
        "adds this times the client's model to every local step; the momentum makes 1/alpha times as much of it",
        ge=0,
    )
    alpha: float = param(0.1, "share of the fresh gradient; 1 = FedAvg", gt=0, le=1, symbol="alpha")


@dataclass(frozen=True)
class Scaffold(PrimalOptions):
    """Control variates (``pipeline.methods.consensus.scaffold``)."""


@dataclass(frozen=True)
class FedSam(WeightedOptions):
    """Averaging of sharpness-aware local steps (``pipeline.methods.consensus.fedsam``)."""

    radius: float = _radius(0.05)
    sam_eps: float = _sam_eps()


@dataclass(frozen=True)
class FedPd(DualOptions):
    """Primal-dual, full participation (``pipeline.methods.consensus.fedpd``)."""


@dataclass(frozen=True)
class FedAdmm(DualOptions):
    """Primal-dual, averaging active clients only (``pipeline.methods.consensus.fedadmm``)."""


@dataclass(frozen=True)
class FedDyn(DualOptions):
    """Dynamic regularisation (``pipeline.methods.consensus.feddyn``)."""


@dataclass(frozen=True)
class FedSpeed(DualOptions):
    """FedDyn with sharpness-aware local steps (``pipeline.methods.consensus.fedspeed``)."""

    radius: float = _radius(0.1)
    sam_eps: float = _sam_eps()
    variant: Literal["simulator", "original"] = param(
        "simulator",
        "simulator = FedDyn's server and purely sharpness-aware gradients; original = FedADMM's server and a mixture",
    )
    sam_share: float = param(
        0.5, "of `variant: original`: share of the sharpness-aware gradient in the mixture", ge=0, le=1, symbol="alpha"
    )


@dataclass(frozen=True)
class AFedPd(DualOptions):
    """Aligned primal-dual (``pipeline.methods.consensus.a_fedpd``)."""

    served: ClassVar[str] = "w_bar"  # Algorithm 1 returns the mean of the models that came back

    form: Literal["low_memory", "reference"] = param(
        "low_memory",
        "the same iterates: reference = all duals move every round; low_memory = deviations, of which only active"
        " clients' rows are touched",
    )


@dataclass(frozen=True)
class AFedPdSam(AFedPd):
    """The same with sharpness-aware local steps (``pipeline.methods.consensus.a_fedpd_sam``)."""

    radius: float = _radius(0.1)
    sam_eps: float = _sam_eps()
