"""Agnostic federated learning: train for the worst mixture of clients.

Source: Mohri, Sivek and Suresh, "Agnostic Federated Learning" (2019), as specialised in the lead specification,
section 3:

    max_x min_w sum_i x_i f_i(w)        x on the simplex

| paper | here | shape |
|---|---|---|
| w | `w` | [d] |
| x | `x` | [N] |
| A, n | `active`, `n` | [n] |
| f_i(w), grad f_i(w) on one minibatch | `losses`, rows of `G` | [n], [n, d] |
| eta_w, eta_x | `hyper.eta_w`, `hyper.eta_x` | scalars |

    w <- w - eta_w sum_i x_i grad f_i(w) ;   x <- Proj_X( x + eta_x f(w) )         simultaneously

with sums and absent clients' losses by the active estimator: (N/n) f_i and 0 for the absent, or under `memory` the
last loss each client has reported. At the fixed point sum_i x_i grad f_i = 0 and every client of positive weight has
the largest loss: with noise clients the weight goes TO them, which is the method's purpose and no defect.

Per active client and iteration: one exchange, down w (d), up g_i and f_i (d + 1), one gradient.
"""

from __future__ import annotations

from dataclasses import dataclass

from pipeline import projections
from pipeline.config.spec import param
from pipeline.methods.base import Algorithm, Cost, State, Step
from pipeline.methods.client_weighting.common import estimators, lower, steps
from pipeline.methods.client_weighting.common.weighting_context import ETA_X, WEIGHTING, ServerOptions, WeightingContext


@dataclass(frozen=True)
class Afl(ServerOptions):
    """The worst mixture of clients."""

    eta_w: float = param(0.6, "step size of the model", gt=0, symbol="eta_w")
    eta_x: float = param(0.03, f"{ETA_X}; uphill", gt=0, symbol="eta_x")


def init(context: WeightingContext) -> State:
    """w = the model's initialisation, x = 1/N."""
    w, x = steps.start(context)
    memory = estimators.remembered(context, w)
    if memory:
        memory["losses"] = w.new_zeros(context.problem.clients)
    return State({"w": w, "x": x}, steps.remembered(context, memory, w, x))


def step(state: State, context: WeightingContext) -> Step:
    """Directions: w descends the weighted loss, x ascends the clients' losses on the same minibatch."""
    descent = lower.descend(state, context)
    w, memory = state.variables["w"], state.memory
    active = context.active().to(w.device)
    losses = context.oracle.losses(w, context.batch("gradient", active, context.federation.batch_size))
    if "losses" in memory:
        memory["losses"][active] = losses
        ascent = memory["losses"].clone()
    else:
        ascent = estimators.scatter(losses, active, context.problem.clients)
    directions = descent.directions | {"x": steps.weight_direction(context, memory, -ascent, active)}
    return Step(directions, descent.cost + Cost(floats_up=len(active)), steps.settling(context, memory))


AFL = Algorithm(
    name="afl",
    summary="agnostic: the worst mixture of clients",
    family=WEIGHTING,
    options=Afl,
    init=init,
    step=step,
    step_sizes=lambda hyper: {"w": hyper.eta_w, "x": hyper.eta_x},
    projections={"x": lambda value, hyper: projections.simplex(value)},
    measures=steps.MEASURES,
    client_rows=estimators.ROWS,
)
