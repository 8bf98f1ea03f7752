"""Training on the server's validation set alone: what the clients' data must beat.

The baseline "val" of the lead paper: w <- w - eta_w grad f_0(w; B_0). Nothing is sent; the clients' weights are 0.

| symbol | here | shape |
|---|---|---|
| w | `w` | [d] |
| x | `x` = 0, never moved | [N] |
| eta_w | `hyper.eta_w` | scalar |
"""

from __future__ import annotations

import torch

from pipeline import projections
from pipeline.algorithms.base import Algorithm, Cost, State, Step
from pipeline.algorithms.client_weighting import steps
from pipeline.algorithms.client_weighting.turn import WeightingTurn
from pipeline.params import ValidationOnly


def init(turn: WeightingTurn) -> State:
    """w = the model's initialisation, x = 0."""
    w = turn.problem.initial(turn.seed)
    return State(
        {"w": w, "x": torch.zeros(turn.problem.clients, dtype=w.dtype, device=w.device)}, steps.curvature(turn, w)
    )


def step(state: State, turn: WeightingTurn) -> Step:
    """The direction of w: grad f_0."""
    w = state.variables["w"]
    gradient = turn.oracle.validation_gradient(w, turn.validation())
    return Step(
        {"w": steps.within_curvature(turn, state.memory, w, projections.clip(gradient, turn.hyper.clip_norm))}, Cost()
    )


VALIDATION_ONLY = Algorithm(
    turn=WeightingTurn,
    init=init,
    step=step,
    inner_steps=lambda hyper: 1,
    step_sizes=lambda hyper: {"w": hyper.eta_w},
    projections={},
)

__all__ = ["VALIDATION_ONLY", "ValidationOnly"]
