"""What speaks for and against each client, besides its weight.

| measure | what | from |
|---|---|---|
| pull | how the validation loss answers to the client's weight: above 0, more weight raises it | training |
| agreement | share of the client's own training samples whose label the served model gives | the served model |
| mix | test accuracy on labels mixed as the client's are | the served model |

`pull` is the method's own reason for the weight: the client's part of the hypergradient, less the clients' mean, in
units of the clients' spread, averaged over about the last quarter of the rounds
(`pipeline.methods.client_weighting.common.steps`, m_t). Agreement is low where labels are wrong, and also where the
served model has not learned what the client knows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from pipeline.data.federated import FederatedData
from pipeline.models import FlatModel
from pipeline.problems.base import ImageProblem, NewTasks, PersonalNetworks, Variables
from pipeline.problems.served import logits

ASKED = 20_000
"""Samples in all that the served model is asked about, at most 500 and at least 5 of every client."""


@dataclass(frozen=True, eq=False)
class Evidence:
    """Each [N], or None where the method or the problem has no such thing."""

    pull: np.ndarray | None = None
    agreement: np.ndarray | None = None
    mix: np.ndarray | None = None

    @property
    def any(self) -> bool:
        return any(values is not None for values in (self.pull, self.agreement, self.mix))


def gather(problem: ImageProblem, variables: Variables, pull: np.ndarray, recall: list[float]) -> Evidence:
    """pull: [N], empty where the method keeps none. recall: of each class on the test set."""
    held = pull if len(pull) else None
    if isinstance(problem, NewTasks | PersonalNetworks):
        return Evidence(held)
    data = problem.data
    if not data.classes:
        return Evidence(held)
    counts = torch.zeros(data.clients, data.classes, dtype=torch.float64)
    owners = torch.repeat_interleave(torch.arange(data.clients), data.sizes.cpu())
    counts.index_put_((owners, data.labels.cpu()), torch.ones(len(owners), dtype=torch.float64), accumulate=True)
    shares = (counts / counts.sum(1, keepdim=True).clamp_min(1)).numpy()
    agreement = agreements(problem.model, data, problem.network(variables))
    return Evidence(held, agreement, shares @ np.nan_to_num(np.array(recall)))


def agreements(model: FlatModel, data: FederatedData, w: torch.Tensor) -> np.ndarray:
    """Share of each client's training samples whose label the network w gives, [N]; of large clients, evenly spread
    ones."""
    most = min(500, max(5, ASKED // data.clients))
    asked = [torch.linspace(0, size - 1, min(size, most)).long() for size in data.sizes.tolist()]
    owners = torch.repeat_interleave(torch.arange(data.clients), torch.tensor([len(each) for each in asked]))
    owners = owners.to(data.device)
    X, y = data.samples(data.starts[owners] + torch.cat(asked).to(data.device), data.training, owners)
    right = (logits(model, data, w, X, scaled=True).argmax(1) == y).double()
    sums = right.new_zeros(data.clients).index_add_(0, owners, right)
    return (sums / owners.bincount(minlength=data.clients)).cpu().numpy()
