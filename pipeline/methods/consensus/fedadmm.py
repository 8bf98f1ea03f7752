"""FedADMM as the A-FedPD paper states it (its eq. 6): the server averages active clients only.

Source: specification a_fedpd, section 3.6; symbols in `dual`.

    theta_i  <- LOCAL(theta, lambda_i, rho)                                  active i
    lambda_i <- lambda_i + rho (theta_i - theta)                             active i; the others keep theirs
    theta    <- mean_{i active} ( theta_i + lambda_i / rho )                 the new lambda_i

which is argmin_theta g(theta) + rho/2 ||theta - z||^2 without a regulariser g (item A5). Published methods of this name
also average all clients' last uploads; this one does not (item A7): the mean of lambda_i over a random subset is not
0 where the mean over all is, so under partial participation it leaves the optimum (property 12), which is the paper's
motivation. Per active client: d down, d up (theta_i + lambda_i / rho), K gradients; the client keeps lambda_i.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pipeline.methods.base import State, Step
from pipeline.methods.consensus.common import dual
from pipeline.methods.consensus.common.dual import DualOptions
from pipeline.methods.consensus.common.local_context import LocalContext


@dataclass(frozen=True)
class FedAdmm(DualOptions):
    """Primal-dual, averaging active clients only."""


def step(state: State, context: LocalContext, **rule: Any) -> Step:
    """One round. rule: what local steps have beside dual and proximal term."""
    active = context.cohort()
    trained, lam = dual.ascend(state, context, active, **rule)
    theta = context.mean(trained.models + lam / context.hyper.rho)
    return dual.move(state, context, active, trained, theta, context.mean(trained.models))


FEDADMM = dual.method(name="fedadmm", summary="primal-dual, averaging active clients only", options=FedAdmm, step=step)
