"""The server of methods without duals: the clients' mean change is a pseudo-gradient.

    Delta = sum_{i active} c_i (theta_i - theta),   c_i = 1/n, or in proportion to samples (federation.aggregation)
    theta <- theta + eta_g Delta

by the server's optimizer, which sees -Delta as the gradient: plain steps with eta_g = 1 give the mean of the clients'
models, others are momentum, Adam and Adagrad on top of local training (Reddi et al., "Adaptive Federated Optimization",
2021). On a client-weighting problem the shares come from the clients' weights (`weights`). With `robust.rule` set, a
robust rule takes the place of the sum (`pipeline.methods.consensus.robust`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pipeline import projections
from pipeline.config.spec import param, section
from pipeline.errors import not_allowed
from pipeline.methods.base import Algorithm, Family, State, Step
from pipeline.methods.consensus.common import local_training, measures, weights
from pipeline.methods.consensus.common.local_context import LocalContext, LocalOptions
from pipeline.methods.consensus.common.local_training import Trained
from pipeline.methods.consensus.common.weights import LearnedWeights
from pipeline.participation import usual_count
from pipeline.problems.forms import Form


@dataclass(frozen=True)
class PrimalOptions(LocalOptions):
    """Methods whose server steps along the clients' mean change."""

    eta_g: float = param(
        1.0, "server's step size; 1 = the mean of the clients' models under sgd; about 0.01 with adam and adagrad", gt=0
    )
    momentum: float = param(0.9, "of `optimizer: momentum`; unused otherwise", ge=0, lt=1)


@dataclass(frozen=True)
class WeightedOptions(PrimalOptions):
    """Those of them that can learn client weights (`problem: client_weighting`)."""

    weights: LearnedWeights = section(LearnedWeights, "client weights under `problem: client_weighting`")


AVERAGING = Family(
    name="averaging",
    context=LocalContext,
    options=WeightedOptions,
    solves=(Form.LOCAL_MEAN, Form.LOCAL_WEIGHTS),
    made_for="consensus",
    otherwise="it trains one model by clients' local steps, and beside it nothing but client weights",
)


def start(context: LocalContext) -> State:
    """theta = the model's initialisation; with weights also x, and lambda = 0 if they are learned."""
    _require_enough(context)
    w = context.problem.initial(context.seed)
    if not context.weighting:
        return State({"w": w}, {})
    variables = weights.start(context, w)
    return State({"w": w} | variables, weights.memory(context, variables["x"]))


def _require_enough(context: LocalContext) -> None:
    """UserError for rounds with too few clients for the robust rule."""
    federation = context.federation
    if federation.robust:
        federation.robust.require(usual_count(context.problem.clients, federation.sampling, federation.participation))


def shares(state: State, context: LocalContext) -> Tensor:
    """c_i of each client in the cohort, [m]; they sum to 1 over all active ones."""
    if context.weighting:
        return weights.shares(state, context)[context.here]
    return context.shares(context.participants, state.variables["w"])[context.here]


def change(state: State, context: LocalContext, theta: Tensor, trained: Trained, per: Tensor | float = 1.0) -> Tensor:
    """sum_i c_i (theta_i - theta) / per_i over all active i, [d]; or what a robust rule makes of these changes. per:
    [m], of the cohort."""
    c, rule = shares(state, context), context.federation.robust
    if rule is None:
        c = c / per
        return context.total(c @ trained.models - c.sum() * theta)
    rows = theta.new_zeros(len(context.participants), len(theta))  # zero for clients simulated elsewhere
    rows[context.here] = (trained.models - theta) / torch.as_tensor(per).reshape(-1, 1)
    shared = theta.new_zeros(len(rows))
    shared[context.here] = c
    rows, shared = context.share.total(rows, shared)
    found: Tensor = rule(rows, shared)
    return found


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
    directions = {"w": -change(state, context, theta, trained)}
    cost = context.cost(active, trained.gradients, down=down, up=up)
    if weights.server_steps(context):
        more, extra = weights.step(state, context, active, trained)
        directions = more | {"w": directions["w"] + more["w"]}
        cost = cost + extra
        server += "lambda" in directions
    report = measures.report(context, trained, theta, rho=rho, server=server * d, client=client * d)
    return Step(directions, cost, report)


def check(name: str, options: PrimalOptions, params: Any, problem: str, rho: float = 0.0) -> None:
    """UserError for settings of weights and of the server's optimizer that cannot work. rho: of a proximal
    term."""
    weighted = problem == "client_weighting"
    if isinstance(options, WeightedOptions):
        steps = options.weights.mode == "learned" or options.weights.server_steps
        if steps and weighted and options.optimizer != "sgd":
            raise not_allowed(
                f"algorithms.{name}.optimizer",
                options.optimizer,
                "sgd with learned client weights or server_steps: true, where the server's step holds a part with a"
                " step size of its own",
                "set it to sgd, or weights.mode: plain and server_steps: false",
            )
        if not weighted and options.weights.is_reference:
            raise not_allowed(
                "problem",
                params.problem,
                f"client_weighting with algorithms.{name}.weights.mode or server_steps set, which nothing else uses",
                "set it to client_weighting, or mode to learned and server_steps to false",
            )
    local_training.require_contraction(name, options, rho)
    # Their first step is eta_g for every parameter, several times what a network's weights are at the start.
    if options.optimizer in ("adam", "adagrad") and options.eta_g > 0.3:
        raise not_allowed(
            f"algorithms.{name}.eta_g",
            options.eta_g,
            f"at most 0.3 with {options.optimizer}, whose first step moves every parameter by about that much",
            "set it to 0.01, or the optimizer to sgd",
        )


def method(rows: str = "", **record: Any) -> Algorithm[LocalContext]:
    """The record of a method of this kind. rows: memory with a row per client. record: what is the method's own."""
    common: dict[str, Any] = {"family": AVERAGING, "init": start, "check": check}
    return Algorithm(
        **common | record,
        step_sizes=weights.step_sizes,
        projections={
            "lambda": lambda value, hyper: projections.ball(value, hyper.weights.dual_radius),
            "x": lambda value, hyper: projections.simplex(value),
        },
        client_rows=frozenset(rows.split()),
        measures=measures.PRIMAL,
    )
