"""The methods made for client weighting (``pipeline.methods.client_weighting``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from pipeline.params.spec import Auto, NonNegativeInt, PositiveInt, Section, param

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
        " set; 2 = no step overshoots its own line; also limits the dual's step; 0 = no limits, as in the papers",
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
class PrimalDual(ServerOptions):
    """The lead method (``pipeline.methods.client_weighting.primal_dual``)."""

    dual: Literal["residual", "printed"] = param(
        "residual",
        "residual = the dual steps along its own residual grad f_0 + H lambda; printed = along the weighted gradient,"
        " as the paper prints it: the same stationary points, but it carries the path of training and ranks clients"
        " backward at first",
    )
    eta_w: float = param(0.2, "step size of the model", gt=0, symbol="eta_w")
    eta_lambda: float = param(0.1, "step size of the dual variable", gt=0, symbol="eta_lambda")
    eta_x: float = param(0.1, ETA_X, gt=0, symbol="eta_x")
    gamma: float = param(
        4.0, "augmentation: how strongly w also descends the weighted training loss", gt=0, symbol="Gamma"
    )
    gamma_schedule: Literal["rising", "constant"] = param(
        "constant",
        "rising = Gamma / s, s the schedule's factor, at the same step along the weighted training loss, for a model"
        " nearer that loss's minimum; constant = the paper",
    )
    dual_radius: float = param(
        5.0,
        "the dual is kept in this ball; too small biases the weights, too large may swing",
        gt=0,
        symbol="D_lambda",
    )
    dual_damping: float = param(
        0.0,
        "adds gamma times this to every curvature of the dual's system, which bounds it where the loss is flat;"
        " 0 = the paper",
        ge=0,
        symbol="rho",
    )
    dual_init: Literal["zero", "gradient"] = param(
        "zero", "initial dual: zero, or -grad f_0(w_1) cut to the ball (one step of the linear solve)"
    )
    inner_steps: int = param(1, "updates of (w, lambda) per update of the weights", ge=1, symbol="K")
    product_batch_size: PositiveInt | Auto | Literal["shared"] = param(
        "auto",
        "minibatch of the Hessian-vector product; auto = federation.batch_size; shared = the gradient's own minibatch,"
        " one pass for both, against the theory's independence",
        symbol="B'",
    )
    hypergradient_iterate: Literal["last", "random"] = param(
        "last",
        "inner step whose lambda and gradients move the weights: last as in the listing, random as in the theory",
    )
    hypergradient_batch: Literal["both", "gradient", "product"] = param(
        "both",
        "minibatch of lambda^T grad f_i: gradient = the gradient's, as in the listing; product = the product's, also"
        " unbiased; both = the mean of the two, half the variance for one more number sent;"
        " memory always uses its stored gradients, and with product_batch_size: shared there is but one",
    )


@dataclass(frozen=True)
class Rfho(ServerOptions):
    """Differentiation through realised steps (``pipeline.methods.client_weighting.rfho``)."""

    eta_w: float = param(0.2, "step size of the model", gt=0, symbol="eta_w")
    eta_x: float = param(0.1, ETA_X, gt=0, symbol="eta_x")
    inner_steps: int = param(1, "steps of the model that are differentiated through", ge=1, symbol="K")
    mode: Literal["reverse", "forward", "realtime"] = param(
        "reverse",
        "reverse and forward give the same hypergradient (forward costs N products a step); realtime = forward, with"
        " dw/dx carried over from one outer iteration to the next",
    )


@dataclass(frozen=True)
class FedNest(ServerOptions):
    """Lower steps and a Neumann series (``pipeline.methods.client_weighting.fednest``)."""

    eta_w: float = param(0.2, "step size of the model", gt=0, symbol="eta_w")
    eta_x: float = param(0.1, ETA_X, gt=0, symbol="eta_x")
    eta_h: float = param(0.1, "step of the Neumann series, below 1 / (largest curvature)", gt=0, symbol="eta_h")
    inner_steps: int = param(1, "steps of the model per update of the weights", ge=1, symbol="K")
    series_products: NonNegativeInt | Auto = param(
        "auto", "Hessian-vector products of the series; auto = inner_steps", symbol="Q"
    )
    series: Literal["deterministic", "randomised"] = param(
        "deterministic", "the whole series, or one random product of the same mean"
    )


@dataclass(frozen=True)
class Sustain(ServerOptions):
    """A single loop with recursive momentum (``pipeline.methods.client_weighting.sustain``)."""

    eta_w: float = param(0.2, "step size of the model", gt=0, symbol="eta_w")
    eta_x: float = param(0.1, ETA_X, gt=0, symbol="eta_x")
    eta_h: float = param(0.1, "step of the Neumann series, below 1 / (largest curvature)", gt=0, symbol="eta_h")
    storm_weight: float = param(
        0.5, "share of the fresh estimate in a direction; 1 = plain stochastic descent", gt=0, le=1, symbol="c"
    )
    series_products: int = param(1, "Hessian-vector products of the Neumann series", ge=0, symbol="K")
    series: Literal["deterministic", "randomised"] = param(
        "deterministic", "the whole series, or one random product of the same mean"
    )


@dataclass(frozen=True)
class Afl(ServerOptions):
    """The worst mixture of clients (``pipeline.methods.client_weighting.afl``)."""

    eta_w: float = param(0.2, "step size of the model", gt=0, symbol="eta_w")
    eta_x: float = param(0.1, f"{ETA_X}; uphill", gt=0, symbol="eta_x")


@dataclass(frozen=True)
class ValidationOnly(ServerOptions):
    """The server's validation set alone (``pipeline.methods.client_weighting.validation_only``)."""

    eta_w: float = param(0.2, "step size of the model", gt=0, symbol="eta_w")


@dataclass(frozen=True)
class Average(ServerOptions):
    """Fixed weights: 1/N, or by samples (``pipeline.methods.client_weighting.average``)."""

    eta_w: float = param(0.2, "step size of the model", gt=0, symbol="eta_w")


@dataclass(frozen=True)
class OracleWeights(ServerOptions):
    """Fixed weights: the clean clients' label shares (``pipeline.methods.client_weighting.oracle_weights``)."""

    eta_w: float = param(0.2, "step size of the model", gt=0, symbol="eta_w")


@dataclass(frozen=True)
class ExactGradient(ServerOptions):
    """Dense inverse Hessian, for small models (``pipeline.methods.client_weighting.exact_gradient``)."""

    eta_w: float = param(0.03, "step size of the model", gt=0, symbol="eta_w")
    eta_x: float = param(0.1, ETA_X, gt=0, symbol="eta_x")
    inner_steps: int = param(1, "steps of the model per update of the weights", ge=1, symbol="K")
