"""Training on the server's validation set alone: what the clients' data must beat.

The baseline "val" of the lead paper: w <- w - eta_w grad f_0(w; B_0). Nothing is sent; the clients' weights are 0.

| symbol | here | shape |
|---|---|---|
| w | `w` | [d] |
| x | `x` = 0, never moved | [N] |
| eta_w | `hyper.eta_w` | scalar |
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from pipeline import projections
from pipeline.config.spec import param
from pipeline.methods.base import Algorithm, Cost, State, Step
from pipeline.methods.client_weighting.common import steps
from pipeline.methods.client_weighting.common.weighting_context import WEIGHTING, ServerOptions, WeightingContext


@dataclass(frozen=True)
class ValidationOnly(ServerOptions):
    """The server's validation set alone."""

    eta_w: float = param(0.4, "step size of the model", gt=0, symbol="eta_w")


def init(context: WeightingContext) -> State:
    """w = the model's initialisation, x = 0."""
    w = context.problem.initial(context.seed)
    return State(
        {"w": w, "x": torch.zeros(context.problem.clients, dtype=w.dtype, device=w.device)}, steps.curvature(context, w)
    )


def step(state: State, context: WeightingContext) -> Step:
    """The direction of w: grad f_0."""
    w = state.variables["w"]
    gradient = context.oracle.validation_gradient(w, context.validation())
    return Step(
        {"w": steps.within_curvature(context, state.memory, w, projections.clip(gradient, context.hyper.clip_norm))},
        Cost(),
    )


VALIDATION_ONLY = Algorithm(
    name="validation_only",
    summary="baseline: the server's validation set alone",
    family=WEIGHTING,
    options=ValidationOnly,
    init=init,
    step=step,
    step_sizes=lambda hyper: {"w": hyper.eta_w},
)
