"""What every method of the family reports of every round.

| measure | definition |
|---|---|
| primal_residual | mean over active i of ||theta^{t+1} - theta_i|| (specification, section 4.7) |
| dual_residual | rho ||theta^{t+1} - theta^t||; rho = 0.1 for methods without one, as there |
| dual_drift | mean over active i of ||grad f_i(theta^t; B) + lambda_i|| on the client's first minibatch |
| dual_mean | ||mean over all i of lambda_i||, for methods with duals |
| client_state_bytes, server_state_bytes | what each of them keeps between rounds (section 3.13) |

Dual drift. The paper describes it (a client that was away comes back with a dual that fits a theta of long ago) and
gives no number for it. A point that a primal-dual method does not leave has theta_i = theta, mean lambda = 0 and
lambda_i = -grad f_i(theta) for every client (specification, property 11). The first condition is the primal residual;
`dual_mean` and `dual_drift` are how far the other two are from holding, for the duals that clients come back with: grad
f_i(theta) + lambda_i is the gradient of the client's subproblem at the model it is given. It says that dual and model
do not fit, not which of them is to blame: a server that hands out a model far from the clients' (FedADMM's shift by the
active duals alone) makes it large with fresh duals too. Minibatch noise is in it, to the same amount for every method
of equal batch size. SAM's duals belong to gradients at perturbed points, so theirs do not fall to 0 and compare with
one another only. Of a method without duals it is the length of a gradient; SCAFFOLD has c - c_i in lambda_i's place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from pipeline.methods.consensus.common.local_context import LocalContext
from pipeline.methods.consensus.common.local_training import Trained

RHO = 0.1
"""In the dual residual of methods without a rho."""

PRIMAL = ("primal_residual", "dual_residual", "dual_drift", "client_state_bytes", "server_state_bytes")
DUAL = (*PRIMAL, "dual_mean")

Report = Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]]


def report(
    context: LocalContext,
    trained: Trained,
    before: Tensor,
    *,
    server: int,
    client: int,
    rho: float = RHO,
    dual_mean: Tensor | None = None,
) -> Report:
    """The measures, once the server's model has moved. before: theta^t. server, client: floats kept between rounds."""
    before = before.clone()  # the model moves in place
    mean_norm = None if dual_mean is None else torch.linalg.vector_norm(dual_mean)

    def found(variables: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        theta = variables["w"]
        distance = torch.linalg.vector_norm(theta - trained.models, dim=1)
        primal, drift = context.mean(torch.stack([distance, trained.pull], dim=1))
        result = {
            "primal_residual": primal,
            "dual_residual": rho * torch.linalg.vector_norm(theta - before),
            "dual_drift": drift,
            "client_state_bytes": theta.new_tensor(client * theta.element_size()),
            "server_state_bytes": theta.new_tensor(server * theta.element_size()),
        }
        return result if mean_norm is None else result | {"dual_mean": mean_norm}

    return found
