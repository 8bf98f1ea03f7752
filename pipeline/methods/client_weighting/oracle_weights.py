"""Training with the weights of somebody who knows which clients are clean: what learning the weights could win at best.

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

from pipeline.methods.base import Algorithm, State
from pipeline.methods.client_weighting import average
from pipeline.methods.client_weighting.common import estimators, lower
from pipeline.methods.client_weighting.common.weighting_context import WeightingContext
from pipeline.params import OracleWeights


def init(context: WeightingContext) -> State:
    """w = the model's initialisation, x = the problem's oracle weights."""
    w = context.problem.initial(context.seed)
    return average.with_weights(context, w, context.problem.oracle_weights.to(w, copy=True))


ORACLE_WEIGHTS = Algorithm(
    context=WeightingContext,
    init=init,
    step=lower.descend,
    inner_steps=lambda hyper: 1,
    step_sizes=lambda hyper: {"w": hyper.eta_w},
    projections={},
    client_rows=estimators.ROWS,
)

__all__ = ["ORACLE_WEIGHTS", "OracleWeights"]
