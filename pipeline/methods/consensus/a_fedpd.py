"""A-FedPD: absent clients take a virtual dual step, so that no client's dual falls behind.

Source: Sun, Shen and Tao, "A-FedPD: Aligning Dual-Drift is All Federated Primal-Dual Learning Needs", Algorithm 1;
specification a_fedpd, sections 3.9 (reference) and 3.11 (low_memory); symbols in `dual`.

    theta_i   <- LOCAL(theta, lambda_i, rho)                                 active i
    theta-bar <- mean_{i active} theta_i
    lambda_i  <- lambda_i + rho (theta_i   - theta)                          active i
    lambda_i  <- lambda_i + rho (theta-bar - theta)                          absent i: the virtual step
    theta     <- theta-bar + mean_i lambda_i / rho                           all N clients

The server keeps all duals and sends them out; clients keep nothing. Per active client: 2d down (theta, lambda_i), d up,
K gradients. What Algorithm 1 returns, and what is tested and served here, is the "global average model" theta-bar.

Low memory traffic, the same iterates. Virtual and ordinary steps together move the mean dual by
rho (theta-bar' - theta), for any active clients. With theta = theta-bar + mean/rho that is

    mean' = rho (theta-bar' - theta-bar) ,     theta' = 2 theta-bar' - theta-bar         (properties 2 and 3)

Writing lambda_i = rho (e_i + s) with the common s = mean/rho = theta - theta-bar, absent clients keep their e_i and
active ones

    theta_i <- LOCAL(theta, rho (e_i + s), rho)
    e_i     <- e_i + theta_i - theta-bar'

so a round touches n rows instead of N, and sum_i e_i = 0 for ever (property 6).

One active client per round never converges. Then theta-bar' = theta_i, so e_i + theta_i - theta-bar' = e_i: every e_i
stays 0, all duals are rho s, and the client solves, since theta - s = theta-bar,

    f_i(x) + rho s^T x + rho/2 ||x - theta||^2  =  f_i(x) + rho/2 ||x - theta-bar||^2 + constant

which is FedProx's subproblem: theta-bar moves from one client's minimiser towards the next one's for ever. Two clients
with a/2 (x -+ 1)^2, solved exactly and in turn, leave it at +- a / (a + 2 rho); the optimum is 0. So one active client
of several under `sampling: fixed` is refused. With few active clients it converges slowly, for a round changes an
active client's e_i only by its distance from the mean of n models: on quadratics, 2 of 20 clients active, theta-bar is
1 to 2e-3 from the optimum after 400 rounds, where FedDyn's is 1e-4 from it (tests, two seeds).

| form | memory | shape |
|---|---|---|
| reference | `duals` = lambda_i; `dual_mean` | [N, d]; [d] |
| low_memory | `deviations` = e_i | [N, d] |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from pipeline.config.spec import param
from pipeline.errors import not_allowed
from pipeline.methods.base import State, Step
from pipeline.methods.consensus.common import dual, local_training
from pipeline.methods.consensus.common.dual import DualOptions
from pipeline.methods.consensus.common.local_context import LocalContext
from pipeline.methods.consensus.common.local_training import Rule
from pipeline.participation import fixed_count


@dataclass(frozen=True)
class AFedPd(DualOptions):
    """Aligned primal-dual."""

    served: ClassVar[str] = "w_bar"  # Algorithm 1 returns the mean of the models that came back

    form: Literal["low_memory", "reference"] = param(
        "low_memory",
        "the same iterates: reference = all duals move every round; low_memory = deviations, of which only active"
        " clients' rows are touched",
    )


def init(context: LocalContext, method: str = "a_fedpd") -> State:
    """theta = theta-bar = the model's initialisation; duals (or deviations) 0."""
    _require_two(context, method)
    state = dual.start(context)
    if context.hyper.form == "reference":
        return state
    return State(state.variables, {"deviations": state.memory["duals"]})


def _require_two(context: LocalContext, method: str) -> None:
    """UserError where every round has one active client of several, with which the method never converges."""
    N, federation = context.problem.clients, context.federation
    if federation.participation >= 1.0 or federation.sampling != "fixed" or N == 1:
        return
    if fixed_count(N, federation.participation) == 1:
        raise not_allowed(
            "federation.participation",
            federation.participation,
            f"at least {1.5 / N:g} for {method} with {N} clients under sampling: fixed, since with one active client"
            " all its duals stay equal and it never converges",
            f"set it to {2 / N:g}, or choose feddyn",
        )


def step(state: State, context: LocalContext, **rule: Any) -> Step:
    """One round. rule: what local steps have beside dual and proximal term."""
    form = _reference if context.hyper.form == "reference" else _low_memory
    return form(state, context, rule)


def _reference(state: State, context: LocalContext, rule: dict[str, Any]) -> Step:
    """Algorithm 1 as it is printed."""
    theta, duals, rho = state.variables["w"], state.memory["duals"], context.hyper.rho
    active = context.cohort()
    lam = duals[active]
    trained = local_training.train(context, theta, active, Rule(lin=lam, prox=rho, **rule))
    bar, N = context.mean(trained.models), context.problem.clients
    duals[context.share.rows] += rho * (bar - theta)
    duals[active] = lam + rho * (trained.models - theta)
    mean = context.total(duals.sum(0)) / N
    state.memory["dual_mean"].copy_(mean)
    return dual.move(state, context, active, trained, bar + mean / rho, bar, down=2, server=1 + N, client=0)


def _low_memory(state: State, context: LocalContext, rule: dict[str, Any]) -> Step:
    """The deviation form."""
    theta, old, rho = state.variables["w"], state.variables["w_bar"], context.hyper.rho
    deviations, active = state.memory["deviations"], context.cohort()
    e = deviations[active]
    trained = local_training.train(context, theta, active, Rule(lin=rho * (e + (theta - old)), prox=rho, **rule))
    bar = context.mean(trained.models)
    deviations[active] = e + trained.models - bar
    move, kept = bar - old, 2 + context.problem.clients
    theta, mean = bar + move, rho * move
    return dual.move(state, context, active, trained, theta, bar, down=2, server=kept, client=0, dual_mean=mean)


A_FEDPD = dual.method(
    name="a_fedpd",
    summary="primal-dual with virtual dual steps of absent clients",
    options=AFedPd,
    init=init,
    step=step,
)
