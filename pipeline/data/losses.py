"""The loss of one sample."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch.nn.functional as F
from torch import Tensor

from pipeline.errors import not_allowed


@dataclass(frozen=True, eq=False)
class Loss:
    """name: cross_entropy of logits [M, C] and classes [M]; squared or huber, of outputs [M, 1] and numbers [M].
    weights: of the classes, [C]. delta: of huber."""

    name: str = "cross_entropy"
    weights: Tensor | None = field(default=None, repr=False)
    delta: float = 1.0

    def each(self, scores: Tensor, targets: Tensor) -> Tensor:
        """Of every sample, [M]."""
        if self.name == "cross_entropy":
            return F.cross_entropy(scores, targets, self.weights, reduction="none")
        if self.name == "huber":
            # Not F.huber_loss, whose derivative torch cannot differentiate forward (Hessian-vector products).
            error = (scores[:, 0] - targets).abs()
            within = error.clamp_max(self.delta)
            return within * (error - 0.5 * within)
        return F.mse_loss(scores[:, 0], targets, reduction="none")

    def mean(self, scores: Tensor, targets: Tensor) -> Tensor:
        """Over the samples; class weights do not normalise it."""
        if self.name == "cross_entropy" and self.weights is None:
            return F.cross_entropy(scores, targets)
        return self.each(scores, targets).mean()


def require_fit(name: str, class_weights: str, classes: int, few_shot: bool = False) -> None:
    """UserError for a loss that does not go with the targets. name, class_weights: of the section `loss`, without
    `auto`. classes: 0 where targets are numbers. few_shot: classes are those of a task."""
    if (name == "cross_entropy") != bool(classes):
        fitting = "auto or cross_entropy" if classes else "auto, squared or huber"
        targets = "classes" if classes else "numbers"
        raise not_allowed("loss.name", name, f"{fitting}, as the targets are {targets}", "set it to auto")
    if class_weights == "balanced" and (not classes or few_shot):
        raise not_allowed(
            "loss.class_weights", "balanced", "none, for there are no fixed classes here", "set it to none"
        )


def balanced(counts: Tensor) -> Tensor:
    """Weights of the classes, [C], for which every class counts the same and the mean weight of a sample is 1. counts:
    samples of each class, [C]; a class without any has weight 0."""
    held = counts > 0
    weights = counts.sum() / (held.sum() * counts.clamp_min(1))
    return weights * held
