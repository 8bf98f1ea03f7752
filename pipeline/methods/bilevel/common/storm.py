"""STORM: recursive momentum with a step size that decays like t^(-1/3). What both FedBiOAcc have in common.

    alpha_t = delta / (u_0 + t)^(1/3),    m_(t+1) = G(z_(t+1); B) + (1 - c alpha_t^2) (m_t - G(z_t; B))

with ONE draw B at both points. FedBiO specification, section 2.2: the theory's
alpha_t = [16 L (u-bar + t / (b M)^2)]^(-1/3) is delta = (b M)^(2/3) / (16 L)^(1/3), u_0 = u-bar (b M)^2 (the noise
level cancels); it wants u-bar >= max(2, 16^2 I^(9/2) L^2, c^(3/2)). c alpha^2 = 1 is plain stochastic descent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from pipeline.config.spec import Auto, PositiveInt, param
from pipeline.errors import not_allowed
from pipeline.methods.bilevel.common.bilevel_context import BilevelOptions


@dataclass(frozen=True)
class Momentum(BilevelOptions):
    """Recursive momentum (STORM)."""

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


def alpha(hyper: Any, t: int) -> float:
    """alpha_t, t from 1 over the whole run."""
    return float(hyper.alpha_scale / (hyper.alpha_offset + t) ** (1 / 3))


def require_weights(method: str, hyper: Any, names: tuple[str, ...]) -> None:
    """UserError unless every c alpha_1^2 <= 1, but for rounding: a share of the fresh estimate above 1 overshoots."""
    for name in names:
        c = getattr(hyper, name)
        if c * alpha(hyper, 1) ** 2 > 1 + 1e-9:
            raise not_allowed(
                f"algorithms.{method}.{name}",
                c,
                f"at most 1 / alpha_1^2 = {1 / alpha(hyper, 1) ** 2:.4g}, with alpha_1 = alpha_scale /"
                " (alpha_offset + 1)^(1/3)",
                "lower it, or raise alpha_offset",
            )
