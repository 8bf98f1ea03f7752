"""A-FedPDSAM: A-FedPD with sharpness-aware local steps, and nothing else changed.

Source: Sun, Shen and Tao, Algorithm 2; specification a_fedpd, section 3.10. The paper prints the perturbation's radius
with the penalty's letter; here they are two (item A4).

| symbol | here |
|---|---|
| rho | `hyper.rho` |
| r, eps_sam | `hyper.radius`, `hyper.sam_eps` |

r = 0 is A-FedPD. Per active client: 2d down, d up, 2 K gradients.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from pipeline.methods.base import State, Step
from pipeline.methods.consensus import a_fedpd
from pipeline.methods.consensus.a_fedpd import AFedPd
from pipeline.methods.consensus.common import dual
from pipeline.methods.consensus.common.local_context import LocalContext
from pipeline.methods.consensus.common.local_training import sam_epsilon, sam_radius


@dataclass(frozen=True)
class AFedPdSam(AFedPd):
    """The same with sharpness-aware local steps."""

    radius: float = sam_radius(0.1)
    sam_eps: float = sam_epsilon()


def step(state: State, context: LocalContext) -> Step:
    """One round."""
    return a_fedpd.step(state, context, radius=context.hyper.radius, sam_eps=context.hyper.sam_eps)


A_FEDPD_SAM = dual.method(
    name="a_fedpd_sam",
    summary="the same with sharpness-aware local steps",
    options=AFedPdSam,
    init=partial(a_fedpd.init, method="a_fedpd_sam"),
    step=step,
)
