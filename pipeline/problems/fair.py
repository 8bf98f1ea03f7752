"""Fair learning: the clients' weights below follow what happens to the worst of them above.

Section 4.3 of the FedBiO specification:

    min_x sum_m p_m f_m(y*(x)),   y*(x) = argmin_y sum_m p_m g_m(x, y)
    g_m(x, y) = M pi_m(x) l_m^train(y) + l2/2 ||y||^2,    pi(x) = softmax(x)
    f_m(y)    = l_m^val(y)^(q + 1) / (q + 1)

| symbol | here | shape |
|---|---|---|
| x | scores of the clients, 0 at the start | [M] |
| pi (p there) | `client_weights`, what is learned; client m's g needs its own entry alone | [M] |
| y | the network | [d] |
| l_m | mean cross-entropy of client m | scalar |
| q | 0: the mean loss; the larger, the more the worst client counts | >= 0 |

The power of a minibatch's mean is not unbiased for q > 0 (it is a little too large). The hypergradient sums to 0 over
x.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from pipeline.config.spec import Section, param
from pipeline.problems.base import Variables
from pipeline.problems.bilevel_images import ImageBilevel, Minibatch
from pipeline.problems.forms import Form, Formulation, Given
from pipeline.problems.images import logits

WORST = 0.1
"""Share of the clients whose mean accuracy is reported as that of the worst."""


@dataclass(frozen=True)
class FairSettings(Section):
    """Client weights that help the worst clients."""

    q: float = param(
        1.0, "upper loss = (validation loss)^(q+1)/(q+1); 0 = the mean; larger = the worst counts more", ge=0
    )
    l2: float = param(0.001, "adds l2/2 ||y||^2 to every client's training loss", ge=0, symbol="rho")


@dataclass(frozen=True)
class Fair(ImageBilevel):
    l2: float = 0.0
    q: float = 1.0

    @property
    def upper_dimension(self) -> int:
        return self.clients

    def client_weights(self, variables: Variables) -> Tensor | None:
        return torch.softmax(variables["x"], dim=0)

    def initial_upper(self, seed: int) -> Tensor:
        return torch.zeros(self.clients, dtype=self.data.dtype, device=self.data.device)

    def draw_lower(self, stream: int, clients: Tensor, size: int) -> Minibatch:
        """Images, labels, and whose they are [n]."""
        _, (X, y) = self.draw(self.data.training, stream, clients, size)
        return X, y, clients.to(self.data.device)

    def lower_losses(self, X: Tensor, Y: Tensor, batch: Minibatch) -> Tensor:
        weights = self.clients * torch.softmax(X, dim=1).gather(1, batch[2][:, None])[:, 0]
        return weights * self.sample_losses(Y, batch).mean(dim=1) + 0.5 * self.l2 * Y.square().sum(dim=1)

    def upper_losses(self, X: Tensor, Y: Tensor, batch: Minibatch) -> Tensor:
        return self._powered(super().upper_losses(X, Y, batch))

    def client_losses(self, variables: Variables) -> Tensor:
        return self._powered(super().client_losses(variables))

    def _powered(self, losses: Tensor) -> Tensor:
        return losses ** (self.q + 1) / (self.q + 1)

    @property
    def measures(self) -> tuple[str, ...]:
        kind = "accuracy" if self.data.classes else "loss"
        return (f"client_{kind}", f"worst_client_{kind}", f"client_{kind}_variance")

    def measure(self, variables: Variables) -> dict[str, float]:
        """Over the clients: mean, mean of the worst tenth, and variance of the accuracy each can expect, which is the
        test accuracy per class, weighted by the client's own shares of the classes. Where targets are numbers, of
        the loss on the client's own validation part."""
        if self.data.classes:
            return self.spread(self.expected_accuracies(variables))
        return self.spread(super().client_losses(variables).double())

    def spread(self, values: Tensor) -> dict[str, float]:
        """`measures`, of the clients' accuracies, or losses, [n]."""
        worst = values.sort(descending=not self.data.classes).values[: max(1, math.ceil(WORST * len(values) - 1e-9))]
        figures = (values.mean(), worst.mean(), values.var(correction=0))
        return {name: float(figure) for name, figure in zip(self.measures, figures, strict=True)}

    def class_accuracies(self, variables: Variables) -> Tensor:
        """Share of the test samples of each class that are right, [C]."""
        data = self.data
        scores = logits(self.model, data, self.network(variables), data.test_images)
        hit = (scores.argmax(1) == data.test_labels).double()
        per_class = hit.new_zeros(data.classes).index_add_(0, data.test_labels, hit)
        return per_class / data.test_labels.bincount(minlength=data.classes).clamp_min(1)

    def expected_accuracies(self, variables: Variables) -> Tensor:
        """sum_c (share of class c in client i's training part) x (share of the test samples of c that are right),
        [N]."""
        return self.shares_of(self.class_accuracies(variables))

    def shares_of(self, per_class: Tensor) -> Tensor:
        """sum_c (share of class c in client i's training part) x per_class[c], [N]."""
        data = self.data
        flat = data.training.owners * data.classes + data.labels
        counts = flat.bincount(minlength=self.clients * data.classes).view(self.clients, data.classes).double()
        return counts @ per_class / counts.sum(dim=1)


def build(settings: FairSettings, given: Given) -> Fair:
    """The upper loss with the power q."""
    return Fair(given.model, given.data, given.probabilities, settings.l2, settings.q)


FAIR = Formulation(
    name="fair",
    summary="client weights that help the worst clients",
    settings=FairSettings,
    offers=(Form.COMMON_LOWER,),
    build=build,
    upper_on_clients=lambda settings, clean_parts: True,
)
