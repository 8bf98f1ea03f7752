"""Training with the weights that you would choose knowing the clean clients: the best that learning could reach.

The baseline "opt" of the lead paper, x = (0.5, 0.3, 0.2, 0, ..., 0) in its protocol; in general the clean clients'
label shares (`Partition.oracle_weights`). Otherwise as `average`: w <- w - eta_w sum_i x_i g_i; one exchange, d numbers
up and d down, one gradient per active client and iteration.

| symbol | here | shape |
|---|---|---|
| w | `w` | [d] |
| x | `x`, never moved | [N] |
| eta_w | `hyper.eta_w` | scalar |
"""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.config.spec import param
from pipeline.methods.base import Algorithm, State
from pipeline.methods.client_weighting import average
from pipeline.methods.client_weighting.common import estimators, lower
from pipeline.methods.client_weighting.common.weighting_context import WEIGHTING, ServerOptions, WeightingContext


@dataclass(frozen=True)
class OracleWeights(ServerOptions):
    """Fixed weights: the clean clients' label shares."""

    eta_w: float = param(0.6, "step size of the model", gt=0, symbol="eta_w")


def init(context: WeightingContext) -> State:
    """w = the model's initialisation, x = the problem's oracle weights."""
    w = context.problem.initial(context.seed)
    return average.with_weights(context, w, context.problem.oracle_weights.to(w, copy=True))


ORACLE_WEIGHTS = Algorithm(
    name="oracle_weights",
    summary="baseline: fixed weights that know who is clean",
    family=WEIGHTING,
    options=OracleWeights,
    init=init,
    step=lower.descend,
    step_sizes=lambda hyper: {"w": hyper.eta_w},
    client_rows=estimators.ROWS,
)
