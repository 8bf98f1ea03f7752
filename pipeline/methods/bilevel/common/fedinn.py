"""Local steps with a correction against client drift: FedNest's FedInn and the local half of its FedOut.

Source: Tarzanagh, Li, Thrampoulidis and Oymak, "FedNest" (2022); SimFBO specification, section 2.2. Also the steps of
FBO-AggITD and, uncorrected, of LFedNest.

| paper | here | shape |
|---|---|---|
| S, 1/|S| (for p_i = 1/N) | `clients`, `p` = (N/n) p_i, of a `context.cohort()` | [n] |
| q = avg_S grad_y g_i(x, y) | `anchor` | [d_y] |
| h | `h` | [d_x] |
| z_(i,nu) | rows of `Z` | [n, d] |
| beta_i, alpha_i; tau_i | `size`; `tau` | [n] |

    lower:   z <- z - beta_i ( grad_y g_i(x, z; B) - grad_y g_i(x, y; B) + q )      tau_i times from z = y
    upper:   z <- z - alpha_i ( grad_x f_i(z, y; B) - grad_x f_i(x, y; B) + h )     tau_i times from z = x
    server:  the clients' average

The same minibatch B at both points. At the first step z is still the anchor, the difference is exactly 0 and is not
computed: tau_i steps cost 2 (tau_i - 1) gradients, and one for q. Without correction it is plain local descent, and
the anchor's exchange falls away. With tau_i = 1 the lower step is y - beta q. q is the only place where clients
differ at a fixed point, so that fixed point is y*(x) whatever the tau_i: no client drift.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from pipeline.config.spec import param
from pipeline.methods.base import Cost
from pipeline.methods.bilevel.common import step_counts
from pipeline.methods.bilevel.common.bilevel_context import BilevelContext, Cohort, UpperLevel, rows
from pipeline.methods.bilevel.common.step_counts import HeterogeneousSteps, StepCount


@dataclass(frozen=True)
class NestedSteps(HeterogeneousSteps):
    """Methods that first move y for some rounds, then x (FedNest's relatives)."""

    local_steps: StepCount = param(
        5,
        "a client's local steps on y: a number, a list with one each, or random = uniform on 1..local_steps_max",
        symbol="tau_i",
    )
    eta_x: float = param(0.05, "clients' step size of the upper variable", gt=0, symbol="alpha")
    eta_y: float = param(0.1, "clients' step size of the lower variable", gt=0, symbol="beta")
    eta_h: float = param(0.1, "step of the Neumann series, below 1 / (largest curvature)", gt=0, symbol="lambda")
    upper_local_steps: StepCount = param(
        1, "a client's local steps on the upper variable, in the forms of local_steps", symbol="tau_i of FedOut"
    )
    local_step_size: Literal["common", "divided"] = param(
        "common", "common = eta for all; divided = eta / tau_i, as in FedNest's theory for unequal local steps"
    )


def lower_steps(context: BilevelContext, x: Tensor, y: Tensor, cohort: Cohort, *exchange: int) -> tuple[Tensor, Cost]:
    """FedInn: (y after the clients' local steps and their average, what it cost)."""
    clients, p = cohort.clients, cohort.p.to(y)
    oracle, n, corrected = context.oracle, len(clients), context.hyper.correction == "svrg"
    tau = step_counts.steps(context)[clients]
    size = step_sizes(context, context.hyper.eta_y, tau).to(y)
    X, Y, Z = rows(x, n), rows(y, n), rows(y, n)
    anchor = torch.zeros_like(y)
    if corrected:
        anchor = context.total(p @ oracle.lower_gradients(X, Y, context.lower_batch("anchor", clients, *exchange)))
    for k in range(step_counts.most(tau)):
        moving = step_counts.moving(tau, k)
        at = moving.to(y.device)
        if corrected and k == 0:
            d = anchor.expand(len(at), -1)
        else:
            B = context.lower_batch("local y", clients[moving], *exchange, k)
            d = oracle.lower_gradients(X[at], Z[at], B)
            if corrected:
                d = d - oracle.lower_gradients(X[at], Y[at], B) + anchor
        Z[at] -= size[at, None] * d

    d_x, d_y, total = context.upper_floats, len(y), int(tau.sum())
    if corrected:
        cost = Cost(2, floats_up=2 * d_y * n, floats_down=(d_x + 2 * d_y) * n, gradients=n + 2 * (total - n))
    else:
        cost = Cost(1, floats_up=d_y * n, floats_down=(d_x + d_y) * n, gradients=total)
    return y - context.total(p @ (Y - Z)), cost


def upper_steps(
    context: BilevelContext, x: Tensor, y: Tensor, h: Tensor, cohort: Cohort, upper: UpperLevel
) -> tuple[Tensor, Cost]:
    """The local half of FedOut, at fixed y and with the indirect part of h frozen: (x after average, cost)."""
    clients, p, n = cohort.clients, cohort.p.to(x), len(cohort.clients)
    tau = step_counts.steps(context, "upper_local_steps")[clients]
    size = step_sizes(context, context.hyper.eta_x, tau).to(x)
    X, Y, Z = rows(x, n), rows(y, n), rows(x, n)
    for k in range(step_counts.most(tau)):
        moving = step_counts.moving(tau, k)
        at = moving.to(x.device)
        d = h.expand(len(at), -1)
        if k > 0:
            B = context.upper_batch("local x", clients[moving], k)
            d = upper.gradient_x(Z[at], Y[at], B) - upper.gradient_x(X[at], Y[at], B) + h
        Z[at] -= size[at, None] * d
    repeated = 0 if context.server_upper else 2 * int((tau - 1).sum())
    floats = context.upper_floats * n
    return x - context.total(p @ (X - Z)), Cost(1, floats_up=floats, floats_down=floats, gradients=repeated)


def step_sizes(context: BilevelContext, eta: float, tau: Tensor) -> Tensor:
    """One local step size per client, [n] float64: eta for all, or eta / tau_i."""
    size = torch.full((len(tau),), context.schedule * eta, dtype=torch.float64)
    return size / tau if context.hyper.local_step_size == "divided" else size
