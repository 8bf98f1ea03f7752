"""What speaks for and against each client, besides its weight.

| measure | what | from |
|---|---|---|
| pull | how the validation loss answers to the client's weight: above 0, more weight raises it | training |
| agreement | share of the client's own training samples whose label the served model gives | the served model |
| mix | test accuracy on labels mixed as the client's are | the served model |

Where targets are numbers, the model agrees with a sample if its error is within the test samples' errors but for the
largest tenth of them; mix is then .9.

**Which clients the model disagrees with.** Of n_i samples asked about, a share a_i agrees where m_i (the mix) is
expected. The model disagrees with a client if m_i - a_i > max( .1, 3 sqrt(m_i (1 - m_i) / n_i) ): ten points, and more
than chance. A client of low weight has hardly been trained on, so a_i is what the model makes of its samples, not what
it has learned by heart. On 31 small federations (`experiments/trust`, seeds 11 and 12, 400 rounds of primal_dual) this
and a weight below half of an equal share named 150 of 158 bad clients and no clean one; the weight alone named 17 clean
ones too. It cannot see a client whose labels are right (one that sends the same sample all over), or one that the model
has learned by heart.

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
from pipeline.problems.base import ImageProblem, NewTasks, PersonalNetworks, Variables
from pipeline.problems.images import logits

ASKED = 20_000
"""Samples in all that the served model is asked about, at most 500 and at least 5 of every client."""
ORDINARY = 0.9
"""Of the test samples' errors, those that count as agreement, where targets are numbers."""


@dataclass(frozen=True, eq=False)
class Evidence:
    """Each [N], or None where the method or the problem has no such thing."""

    pull: np.ndarray | None = None
    agreement: np.ndarray | None = None
    mix: np.ndarray | None = None
    asked: np.ndarray | None = None  # samples behind the agreement

    @property
    def any(self) -> bool:
        return any(values is not None for values in (self.pull, self.agreement, self.mix))

    @property
    def disagrees(self) -> np.ndarray | None:
        """[N] bool: the model disagrees with the client's labels, as above."""
        if self.agreement is None or self.mix is None or self.asked is None:
            return None
        return disagreements(self.agreement, self.mix, self.asked)


def disagreements(agreement: np.ndarray, mix: np.ndarray, asked: np.ndarray) -> np.ndarray:
    """[N] bool: where the agreement is lower than expected, by ten points and by three standard errors. Each [N]."""
    chance = 3 * np.sqrt(mix * (1 - mix) / asked)
    return mix - agreement > np.maximum(0.1, chance)


def gather(problem: ImageProblem, variables: Variables, pull: np.ndarray, recall: list[float]) -> Evidence:
    """pull: [N], empty where the method keeps none. recall: of each class on the test set; empty where targets are
    numbers."""
    held = pull if len(pull) else None
    if isinstance(problem, NewTasks | PersonalNetworks):
        return Evidence(held)
    data, w = problem.data, problem.network(variables)
    X, y, owners = _asked(data)
    found = logits(problem.model, data, w, X, scaled=True)
    if data.classes:
        agrees, mix = found.argmax(1) == y, _shares(data) @ np.nan_to_num(np.array(recall))
    else:
        errors = (logits(problem.model, data, w, data.test_images)[:, 0] - data.test_labels).abs()
        agrees = (found[:, 0] - y).abs() <= torch.quantile(errors[:ASKED].double(), ORDINARY).to(found)
        mix = np.full(data.clients, ORDINARY)
    counts = owners.bincount(minlength=data.clients)
    sums = torch.zeros(data.clients, dtype=torch.float64, device=owners.device).index_add_(0, owners, agrees.double())
    return Evidence(held, (sums / counts).cpu().numpy(), mix, counts.cpu().numpy())


def _asked(data: FederatedData) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Samples, their labels and whose they are; of large clients, evenly spread ones."""
    most = min(500, max(5, ASKED // data.clients))
    asked = [torch.linspace(0, size - 1, min(size, most)).long() for size in data.sizes.tolist()]
    owners = torch.repeat_interleave(torch.arange(data.clients), torch.tensor([len(each) for each in asked]))
    owners = owners.to(data.device)
    return *data.samples(data.starts[owners] + torch.cat(asked).to(data.device), data.training, owners), owners


def _shares(data: FederatedData) -> np.ndarray:
    """Of each class among a client's samples, [N, C]."""
    counts = torch.zeros(data.clients, data.classes, dtype=torch.float64)
    owners = torch.repeat_interleave(torch.arange(data.clients), data.sizes.cpu())
    counts.index_put_((owners, data.labels.cpu()), torch.ones(len(owners), dtype=torch.float64), accumulate=True)
    return (counts / counts.sum(1, keepdim=True).clamp_min(1)).numpy()
