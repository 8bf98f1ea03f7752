"""A custom method: the trimmed mean of the clients' gradients, which a few arbitrary clients cannot move far.

Source: Yin, Chen, Ramchandran and Bartlett, "Byzantine-Robust Distributed Learning" (2018), Algorithm 1, option II.

    w <- w - eta_w trimmed_mean_i g_i        of each coordinate, without the largest and the smallest share b of them

In params.yaml:

    algorithm: examples.trimmed.TRIMMED
    algorithms:
      trimmed:
        trim: 0.2
"""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.config.spec import param
from pipeline.methods import Algorithm, Cost, State, Step
from pipeline.methods.client_weighting import WEIGHTING, ServerOptions, WeightingContext
from pipeline.methods.client_weighting.common import steps


@dataclass(frozen=True)
class Trimmed(ServerOptions):
    """Its hyper-parameters, beside those of all methods of the family."""

    eta_w: float = param(0.2, "step size of the model", gt=0, symbol="eta")
    trim: float = param(0.1, "share of the clients left out at each end", ge=0, lt=0.5, symbol="b")


def init(context: WeightingContext) -> State:
    """w [d] = the model's initialisation; x [N] = 1/N, never moved."""
    w, x = steps.start(context)
    return State({"w": w, "x": x})


def step(state: State, context: WeightingContext) -> Step:
    """The direction of w, [d]."""
    w, active = state.variables["w"], context.active().to(state.variables["w"].device)
    batch = context.batch("gradient", active, context.federation.batch_size)
    G = context.oracle.total(context.oracle.gradients(w, batch))  # a row per active client, [n, d]
    n, d = G.shape
    cut = int(context.hyper.trim * n)
    mean = G.sort(dim=0).values[cut : n - cut].mean(dim=0)
    return Step({"w": mean}, Cost(1, floats_up=d * n, floats_down=d * n, gradients=n))


TRIMMED = Algorithm(
    name="trimmed",
    summary="trimmed mean of the clients' gradients",
    family=WEIGHTING,
    options=Trimmed,
    init=init,
    step=step,
    step_sizes=lambda hyper: {"w": hyper.eta_w},
)
