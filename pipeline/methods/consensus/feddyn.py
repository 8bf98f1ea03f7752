"""FedDyn: active clients' models, corrected by the mean of all duals.

Source: Acar et al., "Federated Learning Based on Dynamic Regularization" (2021), whose h is minus the mean dual;
specification a_fedpd, section 3.7; symbols in `dual`.

    theta_i  <- LOCAL(theta, lambda_i, rho)                                  active i
    lambda_i <- lambda_i + rho (theta_i - theta)                             active i; the others keep theirs
    lam      <- lam + (rho / N) sum_{i active} (theta_i - theta)             the mean of all duals: N in the denominator
    theta    <- mean_{i active} theta_i + lam / rho                          the NEW lam (item A2)

Per active client: d down, d up, K gradients; the client keeps lambda_i, the server lam.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pipeline.methods.base import State, Step
from pipeline.methods.consensus.common import dual
from pipeline.methods.consensus.common.dual import DualOptions
from pipeline.methods.consensus.common.local_context import LocalContext


@dataclass(frozen=True)
class FedDyn(DualOptions):
    """Dynamic regularisation."""


def step(state: State, context: LocalContext, **rule: Any) -> Step:
    """One round. rule: what local steps have beside dual and proximal term."""
    active = context.cohort()
    trained, _ = dual.ascend(state, context, active, **rule)
    bar = context.mean(trained.models)
    theta = bar + state.memory["dual_mean"] / context.hyper.rho
    return dual.move(state, context, active, trained, theta, bar, server=2)


FEDDYN = dual.method(name="feddyn", summary="dynamic regularisation", options=FedDyn, step=step)
