"""FedPD: the augmented Lagrangian minimised and maximised in turn, with all clients.

Source: Zhang et al., "FedPD" (2021), as the A-FedPD paper states it (eq. 5); specification a_fedpd, section 3.5;
symbols in `dual`.

    theta_i  <- LOCAL(theta, lambda_i, rho)              all i
    lambda_i <- lambda_i + rho (theta_i - theta)         all i
    theta    <- mean_i ( theta_i + lambda_i / rho )      the new lambda_i

It is FedADMM's round with all clients active, and defined for no other. Per client: d down, d up, K gradients; the
client keeps lambda_i.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pipeline.errors import not_allowed
from pipeline.methods.base import State, Step
from pipeline.methods.consensus import fedadmm
from pipeline.methods.consensus.common import dual
from pipeline.methods.consensus.common.dual import DualOptions
from pipeline.methods.consensus.common.local_context import LocalContext


@dataclass(frozen=True)
class FedPd(DualOptions):
    """Primal-dual, full participation."""


def init(context: LocalContext) -> State:
    """All duals 0; UserError if some clients may be absent."""
    _require_all("fedpd", context.federation.participation)
    return dual.start(context)


def check(name: str, options: FedPd, params: Any, problem: str) -> None:
    """As for all methods with duals, and full participation."""
    dual.check(name, options, params, problem)
    _require_all(name, params.federation.participation)


def _require_all(name: str, participation: float) -> None:
    if participation < 1.0:
        raise not_allowed(
            "federation.participation",
            participation,
            f"1.0 for {name}, whose rule is defined for full participation only",
            "set it to 1.0, or choose a_fedpd, feddyn or fedadmm",
        )


def step(state: State, context: LocalContext) -> Step:
    """One round."""
    return fedadmm.step(state, context)


FEDPD = dual.method(
    name="fedpd", summary="primal-dual, full participation", options=FedPd, init=init, step=step, check=check
)
