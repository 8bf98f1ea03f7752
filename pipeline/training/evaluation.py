"""How good a model and its client weights are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pipeline.data.federated import FederatedData
from pipeline.models import FlatModel
from pipeline.problems.base import ImageProblem, Variables

CHUNK = 1000
"""Images per forward pass: bounds memory."""


@dataclass(frozen=True)
class Outcome:
    """What a finished training is worth.

    test: figures on the test set. selection: on the selection set; None without one. weights: [N] the client weights
    (1/N for a method without any). validation_loss: f_0, which bilevel methods minimise. measures: the problem's own.
    """

    test: Classification
    selection: Classification | None
    validation_loss: float
    weights: np.ndarray
    measures: dict[str, float]


@dataclass(frozen=True)
class Classification:
    """accuracy in [0, 1], mean cross-entropy, per-class precision/recall/f1 [C], confusion [C, C] (true, predicted)."""

    accuracy: float
    loss: float
    precision: list[float]
    recall: list[float]
    f1: list[float]
    confusion: np.ndarray


def logits(model: FlatModel, data: FederatedData, w: Tensor, images: Tensor) -> Tensor:
    """[M, C] for images [M, ...] as stored, chunk by chunk."""
    with torch.no_grad():
        return torch.cat([model.apply(w, data.scaled(part)) for part in images.split(CHUNK)])


def accuracy(model: FlatModel, data: FederatedData, w: Tensor, images: Tensor, labels: Tensor) -> float:
    """Share of right answers."""
    return float((logits(model, data, w, images).argmax(1) == labels).double().mean())


def validation_loss(model: FlatModel, data: FederatedData, w: Tensor) -> float:
    """f_0 on the server's whole validation set: what bilevel methods minimise, so no measure of quality."""
    X, y = data.validation_batch()
    with torch.no_grad():
        return float(F.cross_entropy(model.apply(w, X), y))


def classify(model: FlatModel, data: FederatedData, w: Tensor, images: Tensor, labels: Tensor) -> Classification:
    """Every figure of a classifier, by torchmetrics."""
    from torchmetrics import MetricCollection
    from torchmetrics.classification import (
        MulticlassAccuracy,
        MulticlassConfusionMatrix,
        MulticlassF1Score,
        MulticlassPrecision,
        MulticlassRecall,
    )

    classes: Any = {"num_classes": data.classes, "average": "none"}
    metrics = MetricCollection(
        {
            "accuracy": MulticlassAccuracy(data.classes, average="micro"),
            "precision": MulticlassPrecision(**classes),
            "recall": MulticlassRecall(**classes),
            "f1": MulticlassF1Score(**classes),
            "confusion": MulticlassConfusionMatrix(data.classes),
        }
    ).to(w.device)
    scores = logits(model, data, w, images)
    found = metrics(scores, labels)
    return Classification(
        accuracy=float(found["accuracy"]),
        loss=float(F.cross_entropy(scores, labels)),
        precision=found["precision"].tolist(),
        recall=found["recall"].tolist(),
        f1=found["f1"].tolist(),
        confusion=found["confusion"].cpu().numpy(),
    )


def outcome(problem: ImageProblem, variables: Variables) -> Outcome:
    """Figures of the server's variables after the last round, which lie where the data are."""
    model, data, w = problem.model, problem.data, problem.network(variables)
    selected = len(data.selection_labels) > 0
    weights = problem.client_weights(variables)
    if weights is None:
        weights = torch.full((data.clients,), 1.0 / data.clients, dtype=torch.float64)
    return Outcome(
        test=classify(model, data, w, data.test_images, data.test_labels),
        selection=classify(model, data, w, data.selection_images, data.selection_labels) if selected else None,
        validation_loss=validation_loss(model, data, w),
        weights=weights.double().cpu().numpy(),
        measures=problem.measure(variables),
    )


def rounds_to(rows: Sequence[Mapping[str, float | None]], targets: Sequence[float]) -> dict[float, int | None]:
    """The first evaluated round whose test accuracy is at least each target; None for one never reached.

    rows: a history (`pipeline.tracking.metrics.read_history`), in the order of rounds; targets in [0, 1].
    """
    cells = ((row["round"], row.get("test_accuracy")) for row in rows)
    evaluated = [(int(at), accuracy) for at, accuracy in cells if at is not None and accuracy is not None]
    return {target: next((at for at, accuracy in evaluated if accuracy >= target), None) for target in targets}


def weight_quality(weights: np.ndarray, oracle: np.ndarray, clean: np.ndarray) -> dict[str, float]:
    """clean_weight (sum over clean clients), max_noise_weight (largest of the others), weight_error (L1 distance to
    the oracle weights). weights, oracle: [N]; clean: [N] bool."""
    return {
        "clean_weight": float(weights[clean].sum()),
        "max_noise_weight": float(weights[~clean].max(initial=0.0)),
        "weight_error": float(np.abs(weights - oracle).sum()),
    }


def detection(weights: np.ndarray, kinds: Sequence[str], quality: Sequence[float]) -> dict[str, float]:
    """How well weights tell good clients from bad ones; ties count half.

    detection_auc: the chance that a clean client holds more than a bad one; detection_auc_<kind>: than one of that kind
    (of several). quality_correlation: Spearman's rank correlation of weights and quality (share of right samples).
    Figures that the clients do not allow (nobody bad, all equal) are left out.
    """
    from torchmetrics.functional import spearman_corrcoef
    from torchmetrics.functional.classification import binary_auroc

    held, clean = torch.as_tensor(weights, dtype=torch.float64), torch.tensor([kind == "clean" for kind in kinds])
    bad = [kind for kind in dict.fromkeys(kinds) if kind != "clean"]
    if not bad or not clean.any():
        return {}
    found = {"detection_auc": float(binary_auroc(held, clean.long()))}
    if len(bad) > 1:
        for kind in bad:
            shown = clean | torch.tensor([k == kind for k in kinds])
            found[f"detection_auc_{kind}"] = float(binary_auroc(held[shown], clean[shown].long()))
    level = torch.tensor(quality, dtype=torch.float64)
    if held.max() > held.min() and level.max() > level.min():
        found["quality_correlation"] = float(spearman_corrcoef(held, level))
    return found
