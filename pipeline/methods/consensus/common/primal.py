"""The server of methods without duals: the clients' mean change is a pseudo-gradient.

    Delta = sum_{i active} c_i (theta_i - theta),   c_i = 1/n, or in proportion to samples (federation.aggregation)
    theta <- theta + eta_g Delta

by the server's optimizer, which sees -Delta as the gradient: plain steps with eta_g = 1 give the mean of the clients'
models, others are momentum, Adam and Adagrad on top of local training (Reddi et al., "Adaptive Federated Optimization",
2021). On a client-weighting problem the shares come from the clients' weights (`weights`).
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from pipeline import projections
from pipeline.methods.base import Algorithm, State, Step
from pipeline.methods.consensus.common import measures, weights
from pipeline.methods.consensus.common.local_context import LocalContext
from pipeline.methods.consensus.common.local_training import Trained


def start(context: LocalContext) -> State:
    """theta = the model's initialisation; with weights also x, and lambda = 0 if they are learned."""
    w = context.problem.initial(context.seed)
    if not context.weighting:
        return State({"w": w}, {})
    variables = weights.start(context, w)
    return State({"w": w} | variables, weights.memory(context, variables["x"]))


def shares(state: State, context: LocalContext) -> Tensor:
    """c_i of each client in the cohort, [m]; they sum to 1 over all active ones."""
    everybodys = (
        weights.shares(state, context) if context.weighting else context.shares(context.everybody, state.variables["w"])
    )
    return everybodys[context.here]


def change(context: LocalContext, c: Tensor, theta: Tensor, trained: Trained) -> Tensor:
    """sum_i c_i (theta_i - theta) over all active i, [d]."""
    return context.total(c @ trained.models - c.sum() * theta)


def move(
    state: State,
    context: LocalContext,
    active: Tensor,
    trained: Trained,
    *,
    down: int = 1,
    up: int = 1,
    server: int = 1,
    client: int = 0,
    rho: float = measures.RHO,
) -> Step:
    """The server's step. down, up: d-vectors sent to and by each active client; server, client: d-vectors kept.
    rho: in the dual residual."""
    theta, d = state.variables["w"], context.problem.dimension
    directions = {"w": -change(context, shares(state, context), theta, trained)}
    cost = context.cost(active, trained.gradients, down=down, up=up)
    if weights.server_steps(context):
        more, extra = weights.step(state, context, active, trained)
        directions = more | {"w": directions["w"] + more["w"]}
        cost = cost + extra
        server += "lambda" in directions
    report = measures.report(context, trained, theta, rho=rho, server=server * d, client=client * d)
    return Step(directions, cost, report)


def method(init: Any, step: Any, rows: str = "") -> Algorithm[LocalContext]:
    """The record of a method of this kind. rows: memory with a row per client."""
    return Algorithm(
        context=LocalContext,
        init=init,
        step=step,
        inner_steps=lambda hyper: 1,
        step_sizes=weights.step_sizes,
        projections={
            "lambda": lambda value, hyper: projections.ball(value, hyper.weights.dual_radius),
            "x": lambda value, hyper: projections.simplex(value),
        },
        client_rows=frozenset(rows.split()),
        measures=measures.PRIMAL,
    )
