"""Loss tuning on imbalanced data: a temperature and a shift for each class, so that rare classes are learned.

Section 4.4 of the SimFBO specification (the public FedNest code's imbalance experiment):

    min_x sum_i p_i f_i(y*(x)),   y*(x) = argmin_y sum_i p_i g_i(x, y)
    g_i(x, y) = CE(sigmoid(d) * logits + l, label)  +  l2/2 ||y||^2,    x = (d, l)
    f_i(y)    = class-weighted CE of the raw logits: sum_s v_label(s) CE_s / sum_s v_label(s) over a batch's samples

| symbol | here | shape |
|---|---|---|
| d, l | temperature logits and shifts, 0 at the start (which halves the logits) | [C] each; x [2C] |
| y | the network | [d] |
| v | `class_weights`, fixed; their scale does not matter | [C] |

f_i is a ratio, as in that code: in a batch of one class its weights cancel, and its mean over small batches is not f_i
of the whole part.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from pipeline.config.spec import Auto, Ratio, Section, param
from pipeline.data.federated import FederatedData
from pipeline.problems.base import Variables
from pipeline.problems.bilevel_images import ImageBilevel, Minibatch, client_means
from pipeline.problems.forms import Form, Formulation, Given


@dataclass(frozen=True)
class LossTuningSettings(Section):
    """A temperature and a shift per class in the training loss, so that rare classes are learned."""

    class_weights: Ratio | Auto = param(
        "auto",
        "of the upper level's cross-entropy: a number r = class c of C counts r^(-c/(C-1)), 0.01 in the public code;"
        " auto = one over the class's training samples",
    )
    l2: float = param(0.001, "adds l2/2 ||y||^2 to every client's training loss; 0 = the public code", ge=0)


@dataclass(frozen=True)
class LossTuning(ImageBilevel):
    """class_weights: v [C], see `inverse_counts` and `geometric`."""

    class_weights: Tensor = field(kw_only=True, repr=False)
    l2: float = 0.0

    @property
    def upper_dimension(self) -> int:
        return 2 * self.data.classes

    def initial_upper(self, seed: int) -> Tensor:
        return torch.zeros(self.upper_dimension, dtype=self.data.dtype, device=self.data.device)

    def lower_losses(self, X: Tensor, Y: Tensor, batch: Minibatch) -> Tensor:
        d, shift = X.chunk(2, dim=1)
        scores = torch.sigmoid(d)[:, None, :] * self.model.apply_each(Y, batch[0]) + shift[:, None, :]
        return self.losses_of(scores, batch[1]).mean(dim=1) + 0.5 * self.l2 * Y.square().sum(dim=1)

    def upper_losses(self, X: Tensor, Y: Tensor, batch: Minibatch) -> Tensor:
        v = self.class_weights[batch[1]]
        return (v * self.sample_losses(Y, batch)).sum(dim=1) / v.sum(dim=1)

    def client_losses(self, variables: Variables) -> Tensor:
        parts, losses = self.data.own_validation, []
        for scores, y, _ in self.scored(variables, parts):
            losses.append(self.class_weights[y] * self.data.loss.each(scores, y))
        weighted = client_means(torch.cat(losses), parts.owners, self.clients)
        return weighted / client_means(self.class_weights[parts.labels], parts.owners, self.clients)


def inverse_counts(data: FederatedData) -> Tensor:
    """1 / (training samples of the class, as the clients believe), [C]; a class without any counts as one sample."""
    return 1.0 / data.labels.bincount(minlength=data.classes).clamp_min(1).to(data.dtype)


def geometric(data: FederatedData, ratio: float) -> Tensor:
    """ratio^(-c / (C - 1)): the weights of classes whose counts fall geometrically to `ratio` of the first, [C]."""
    c = torch.arange(data.classes, dtype=data.dtype, device=data.device)
    return ratio ** (-c / (data.classes - 1))


def build(settings: LossTuningSettings, given: Given) -> LossTuning:
    """With the upper level's class weights."""
    ratio = settings.class_weights
    weights = inverse_counts(given.data) if isinstance(ratio, str) else geometric(given.data, ratio)
    return LossTuning(given.model, given.data, given.probabilities, settings.l2, class_weights=weights)


LOSS_TUNING = Formulation(
    name="loss_tuning",
    summary="a loss for imbalanced classes",
    settings=LossTuningSettings,
    offers=(Form.COMMON_LOWER,),
    build=build,
    upper_on_clients=lambda settings, clean_parts: True,
    numbers=False,
)
