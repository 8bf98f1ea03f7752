"""What methods with a dual variable per client share.

Augmented Lagrangian of the consensus problem (specification a_fedpd, section 1), its dual with a plus sign:

    L = (1/N) sum_i [ f_i(theta_i) + lambda_i^T (theta_i - theta) + rho/2 ||theta_i - theta||^2 ]

| symbol | here | shape |
|---|---|---|
| theta | `w` | [d] |
| theta-bar, mean of the theta_i received last | `w_bar` | [d] |
| lambda_i | `memory["duals"]`, unless the method keeps them in another form | [N, d] |
| mean of all lambda_i | `memory["dual_mean"]` | [d] |
| rho | `hyper.rho` | scalar |

Active clients descend their own term, theta_i <- LOCAL(theta, lin = lambda_i, prox = rho), and their duals ascend,
lambda_i <- lambda_i + rho (theta_i - theta). Minimising L over theta gives theta = mean_i (theta_i + lambda_i / rho):
the server's rule is a minimiser, no gradient step, and the duals' bookkeeping rests on it. So its step is plain and of
length 1, and means are unweighted: other optimizers and `aggregation: samples` are refused (`check`).
One rho serves as penalty, dual step and divisor (item A1).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from pipeline.config.spec import param
from pipeline.errors import not_allowed
from pipeline.methods.base import Algorithm, State, Step
from pipeline.methods.consensus.common import local_training, measures
from pipeline.methods.consensus.common.local_context import CONSENSUS, LocalContext, LocalOptions
from pipeline.methods.consensus.common.local_training import Rule, Trained


@dataclass(frozen=True)
class DualOptions(LocalOptions):
    """Methods with a dual variable per client; the server's rule is theirs, so its step is a plain one of 1."""

    momentum: ClassVar[float] = 0.0

    rho: float = param(0.1, "penalty on a client's distance from the server's model", gt=0, symbol="rho")


def start(context: LocalContext) -> State:
    """theta = theta-bar = the model's initialisation; all duals 0."""
    w = context.problem.initial(context.seed)
    memory = {"duals": w.new_zeros(context.problem.clients, len(w)), "dual_mean": torch.zeros_like(w)}
    return State({"w": w, "w_bar": w.clone()}, memory)


def ascend(state: State, context: LocalContext, active: Tensor, **rule: Any) -> tuple[Trained, Tensor]:
    """Local training of the active clients, then the ordinary dual step, theirs alone. rule: what
    `local_training.Rule` holds besides lin and prox. Returns the new lambda_i [n, d]; the mean of all duals moves
    along."""
    theta, rho, duals = state.variables["w"], context.hyper.rho, state.memory["duals"]
    lam = duals[active]
    trained = local_training.train(context, theta, active, Rule(lin=lam, prox=rho, **rule))
    step = rho * (trained.models - theta)
    lam += step
    duals[active] = lam
    state.memory["dual_mean"] += context.total(step.sum(0)) / context.problem.clients
    return trained, lam


def move(
    state: State,
    context: LocalContext,
    active: Tensor,
    trained: Trained,
    theta: Tensor,
    bar: Tensor,
    *,
    down: int = 1,
    server: int = 1,
    client: int = 1,
    dual_mean: Tensor | None = None,
) -> Step:
    """The server's assignments as directions. theta, bar: the new theta and theta-bar. down: d-vectors sent to each
    active client; server, client: d-vectors kept. dual_mean: where memory does not hold it."""
    before, last = state.variables["w"], state.variables["w_bar"]
    directions = {"w": before - theta, "w_bar": last - bar}
    d, mean = context.problem.dimension, state.memory["dual_mean"] if dual_mean is None else dual_mean
    kept = {"server": server * d, "client": client * d}
    report = measures.report(context, trained, before, rho=context.hyper.rho, dual_mean=mean, **kept)
    return Step(directions, context.cost(active, trained.gradients, down=down, up=1), report)


def check(name: str, options: DualOptions, params: Any, problem: str) -> None:
    """UserError for steps that diverge and for a server's rule that the duals do not belong to."""
    local_training.require_contraction(name, options, options.rho)
    if options.optimizer != "sgd":
        raise not_allowed(
            f"algorithms.{name}.optimizer",
            options.optimizer,
            f"sgd: the server of {name} takes the minimiser that its duals belong to, not a step along a gradient",
            "set it to sgd, or choose fedavg, fedprox, fedcm, scaffold or fedsam",
        )
    if params.federation.aggregation != "uniform":
        raise not_allowed(
            "federation.aggregation",
            params.federation.aggregation,
            f"uniform for {name}, whose duals belong to the plain mean of the clients' losses",
            "set it to uniform, or choose fedavg",
        )


def method(**record: Any) -> Algorithm[LocalContext]:
    """The record of a method of this kind. record: what is the method's own."""
    common: dict[str, Any] = {"family": CONSENSUS, "init": start, "check": check}
    return Algorithm(
        **common | record,
        step_sizes=lambda hyper: {"w": 1.0, "w_bar": 1.0},
        client_rows=frozenset({"duals", "deviations"}),
        measures=measures.DUAL,
    )
