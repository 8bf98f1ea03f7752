"""Plain averaging: the weights are fixed and equal (or in proportion to samples), only the model is trained.

The baseline "avg" of the lead paper. w <- w - eta_w sum_i x_i g_i with x_i = 1/N, or x_i = n_i / sum_j n_j under
federation.aggregation: samples.

| symbol | here | shape |
|---|---|---|
| w | `w` | [d] |
| x | `x`, never moved | [N] |
| eta_w | `hyper.eta_w` | scalar |

Per active client and iteration: one exchange, d numbers up and d down, one gradient.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from pipeline.config.spec import param
from pipeline.methods.base import Algorithm, State
from pipeline.methods.client_weighting.common import estimators, lower, steps
from pipeline.methods.client_weighting.common.weighting_context import WEIGHTING, ServerOptions, WeightingContext


@dataclass(frozen=True)
class Average(ServerOptions):
    """Fixed weights: 1/N, or by samples."""

    eta_w: float = param(0.6, "step size of the model", gt=0, symbol="eta_w")


def init(context: WeightingContext) -> State:
    """w = the model's initialisation, x as federation.aggregation says."""
    w, x = steps.start(context)
    if context.federation.aggregation == "samples":
        samples = context.problem.samples.to(w)
        x = samples / samples.sum()
    return with_weights(context, w, x)


def with_weights(context: WeightingContext, w: Tensor, x: Tensor) -> State:
    """Training with the weights x for ever."""
    return State({"w": w, "x": x}, estimators.remembered(context, w) | steps.curvature(context, w))


AVERAGE = Algorithm(
    name="average",
    summary="baseline: fixed equal weights",
    family=WEIGHTING,
    options=Average,
    init=init,
    step=lower.descend,
    step_sizes=lambda hyper: {"w": hyper.eta_w},
    client_rows=estimators.ROWS,
)
