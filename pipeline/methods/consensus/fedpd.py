"""FedPD: the augmented Lagrangian minimised and maximised in turn, with everybody.

Source: Zhang et al., "FedPD" (2021), as the A-FedPD paper states it (eq. 5); specification a_fedpd, section 3.5;
symbols in `dual`.

    theta_i  <- LOCAL(theta, lambda_i, rho)              all i
    lambda_i <- lambda_i + rho (theta_i - theta)         all i
    theta    <- mean_i ( theta_i + lambda_i / rho )      the new lambda_i

It is FedADMM's round with all clients active, and defined for no other. Per client: d down, d up, K gradients; the
client keeps lambda_i.
"""

from __future__ import annotations

from pipeline.errors import not_allowed
from pipeline.methods.base import State, Step
from pipeline.methods.consensus import fedadmm
from pipeline.methods.consensus.common import dual
from pipeline.methods.consensus.common.local_context import LocalContext


def init(context: LocalContext) -> State:
    """All duals 0; UserError if some clients may be absent."""
    if context.federation.participation < 1.0:
        raise not_allowed(
            "federation.participation",
            context.federation.participation,
            "1.0 for fedpd, whose rule is defined for full participation only",
            "set it to 1.0, or choose a_fedpd, feddyn or fedadmm",
        )
    return dual.start(context)


def step(state: State, context: LocalContext) -> Step:
    """One round."""
    return fedadmm.step(state, context)


FEDPD = dual.method(init, step)
