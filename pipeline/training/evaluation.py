"""How good a model and its client weights are."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pipeline.data.losses import Loss
from pipeline.problems.base import ClientHeldUpper, ImageProblem, NewTasks, PersonalNetworks, Variables
from pipeline.problems.images import CHUNK, logits
from pipeline.training.best import selection_measure


@dataclass(frozen=True)
class Outcome:
    """What a finished training is worth.

    test: figures on the test set. selection: on the selection set; None without one. weights: [N] the client weights
    (1/N where there are none). weighted: whether there are. validation_loss: the upper loss, which bilevel methods
    minimise. measures: the problem's own.
    """

    test: Classification | Regression
    selection: Classification | Regression | None
    validation_loss: float
    weights: np.ndarray
    weighted: bool
    measures: dict[str, float]


@dataclass(frozen=True)
class Classification:
    """accuracy in [0, 1], mean loss, per-class precision/recall/f1 [C], confusion [C, C] (true, predicted).

    further: figures of the pooled answers: balanced_accuracy, auroc (mean over classes, each against the rest),
    log_loss and calibration_error (expected, 15 bins)."""

    accuracy: float
    loss: float
    precision: list[float]
    recall: list[float]
    f1: list[float]
    confusion: np.ndarray
    further: dict[str, float] = field(default_factory=dict)

    @property
    def figures(self) -> dict[str, float]:
        """By the names they have in metrics.json, after `test_` or `selection_`."""
        return {"accuracy": self.accuracy, "loss": self.loss, **self.further}


@dataclass(frozen=True)
class Regression:
    """Root of the mean squared error and mean absolute error, in units of the targets; R2; mean loss."""

    rmse: float
    mae: float
    r2: float
    loss: float

    @property
    def figures(self) -> dict[str, float]:
        """By the names they have in metrics.json, after `test_` or `selection_`."""
        return {"rmse": self.rmse, "r2": self.r2, "mae": self.mae, "loss": self.loss}


@dataclass(frozen=True)
class Answers:
    """What the tested networks make of images: logits [m, C] and labels [m]. Where every clean client has its own
    network, each answers the images of its labels, one client after another; testers: whose answers they are, [m]."""

    scores: Tensor
    labels: Tensor
    testers: Tensor | None = None
    of: Loss = Loss()

    @property
    def accuracy(self) -> float:
        """Share of right answers; the mean over clients of each one's share."""
        return self._mean((self.scores.argmax(1) == self.labels).double())

    @property
    def loss(self) -> float:
        """Mean loss, likewise."""
        if self.testers is None:
            return float(self.of.mean(self.scores, self.labels))
        return self._mean(self.of.each(self.scores, self.labels))

    @property
    def squared_error(self) -> float:
        """Mean of it, likewise, where targets are numbers; in their unit of training."""
        return self._mean((self.scores[:, 0] - self.labels).double().square())

    def _mean(self, values: Tensor) -> float:
        """A client that none of the images concerns does not count."""
        if self.testers is None:
            return float(values.mean())
        counts = self.testers.bincount()
        sums = values.new_zeros(len(counts)).index_add_(0, self.testers, values)
        return float((sums / counts)[counts > 0].mean())


def answers(problem: ImageProblem, variables: Variables, images: Tensor, labels: Tensor) -> Answers:
    """images [M, ...] as stored, chunk by chunk."""
    if isinstance(problem, PersonalNetworks):
        return _personal_answers(problem, variables, images, labels)
    if isinstance(problem, NewTasks):
        return Answers(*problem.answers_on_new_tasks(variables, images, labels))
    scores = logits(problem.model, problem.data, problem.network(variables), images)
    return Answers(scores, labels, of=problem.data.loss)


def _personal_answers(problem: PersonalNetworks, variables: Variables, images: Tensor, labels: Tensor) -> Answers:
    everything = torch.ones(len(problem.tested_labels), 1, dtype=torch.bool, device=labels.device)
    holds = torch.zeros(len(problem.tested_labels), problem.data.classes, dtype=torch.bool, device=labels.device)
    for row, held in enumerate(problem.tested_labels):
        holds[row, held] = True
    chunks = []
    for X, y in zip(images.split(CHUNK), labels.split(CHUNK), strict=True):
        with torch.no_grad():
            scores = problem.tested_scores(variables, problem.data.scaled(X))
        client, image = (holds[:, y] if problem.data.classes else everything.expand(-1, len(y))).nonzero(as_tuple=True)
        chunks.append((scores[client, image], y[image], client))
    scores, y, testers = (torch.cat(column) for column in zip(*chunks, strict=True))
    return Answers(scores, y, testers, problem.data.loss)


def accuracy(problem: ImageProblem, variables: Variables, images: Tensor, labels: Tensor) -> float:
    """Share of right answers."""
    return answers(problem, variables, images, labels).accuracy


def test_measures(classes: int) -> tuple[str, ...]:
    """What evaluations find on the test set; classes: 0 where targets are numbers."""
    return ("test_accuracy",) if classes else ("test_rmse", "test_r2")


def tested(problem: ImageProblem, variables: Variables) -> dict[str, float]:
    """A number for each of `test_measures`."""
    data = problem.data
    if data.classes:
        return {"test_accuracy": accuracy(problem, variables, data.test_images, data.test_labels)}
    given = answers(problem, variables, data.test_images, data.test_labels)
    return {"test_rmse": data.unit.spread * given.squared_error**0.5, "test_r2": r2(given)}


def selected(problem: ImageProblem, variables: Variables) -> float | None:
    """Share of right answers on the server's selection set, or R2 where targets are numbers; None without one."""
    data = problem.data
    if not len(data.selection_labels):
        return None
    given = answers(problem, variables, data.selection_images, data.selection_labels)
    return given.accuracy if data.classes else r2(given)


def r2(given: Answers) -> float:
    """1 - (mean squared error) / (variance of the targets); 0 where these are all the same."""
    variance = float(given.labels.double().var(correction=0))
    return 1.0 - given.squared_error / variance if variance else 0.0


def measures(problem: ImageProblem) -> tuple[str, ...]:
    """Names of what an evaluation during training measures."""
    data = problem.data
    selection = (selection_measure(data.classes),) if len(data.selection_labels) else ()
    return ("validation_loss", *test_measures(data.classes), *selection, *problem.measures)


def measured(problem: ImageProblem, variables: Variables) -> dict[str, float]:
    """A number for each of `measures`."""
    found = {"validation_loss": validation_loss(problem, variables), **tested(problem, variables)}
    chosen_by = selected(problem, variables)
    found |= {} if chosen_by is None else {selection_measure(problem.data.classes): chosen_by}
    return found | problem.measure(variables)


def validation_loss(problem: ImageProblem, variables: Variables) -> float:
    """What bilevel methods minimise, so no measure of quality: the problem's upper loss on all its data, which is the
    mean loss on the server's validation set unless the problem says otherwise."""
    if isinstance(problem, ClientHeldUpper):
        return problem.upper_value(variables)
    X, y = problem.data.validation_batch()
    scores = logits(problem.model, problem.data, problem.network(variables), X, scaled=True)
    return float(problem.data.loss.mean(scores, y))


def judge(problem: ImageProblem, variables: Variables, images: Tensor, labels: Tensor) -> Classification | Regression:
    """Every figure, of classes or of numbers."""
    if problem.data.classes:
        return classify(problem, variables, images, labels)
    from torchmetrics.functional import mean_absolute_error

    given, spread = answers(problem, variables, images, labels), problem.data.unit.spread
    mae = spread * float(mean_absolute_error(given.scores[:, 0], given.labels))
    return Regression(spread * given.squared_error**0.5, mae, r2(given), given.loss)


def classify(problem: ImageProblem, variables: Variables, images: Tensor, labels: Tensor) -> Classification:
    """Every figure of a classifier, by torchmetrics; per class and in the confusion matrix, answers of several clients'
    networks are pooled."""
    from torchmetrics import MetricCollection
    from torchmetrics.classification import (
        MulticlassAccuracy,
        MulticlassConfusionMatrix,
        MulticlassF1Score,
        MulticlassPrecision,
        MulticlassRecall,
    )

    given = answers(problem, variables, images, labels)
    count = given.scores.shape[1]
    classes: Any = {"num_classes": count, "average": "none"}
    metrics = MetricCollection(
        {
            "accuracy": MulticlassAccuracy(count, average="micro"),
            "precision": MulticlassPrecision(**classes),
            "recall": MulticlassRecall(**classes),
            "f1": MulticlassF1Score(**classes),
            "confusion": MulticlassConfusionMatrix(count),
        }
    ).to(problem.data.device)
    found = metrics(given.scores, given.labels)
    return Classification(
        accuracy=float(found["accuracy"]) if given.testers is None else given.accuracy,
        loss=given.loss,
        precision=found["precision"].tolist(),
        recall=found["recall"].tolist(),
        f1=found["f1"].tolist(),
        confusion=found["confusion"].cpu().numpy(),
        further=_further(given, found["recall"]),
    )


def _further(given: Answers, recall: Tensor) -> dict[str, float]:
    """Figures of the pooled answers; classes that the samples lack do not count."""
    from torchmetrics.functional.classification import multiclass_auroc, multiclass_calibration_error

    count = given.scores.shape[1]
    held = given.labels.bincount(minlength=count) > 0
    scores, labels = given.scores.double(), given.labels
    figures = {
        "balanced_accuracy": float(recall[held].double().mean()),
        "log_loss": float(F.cross_entropy(scores, labels)),
        "calibration_error": float(multiclass_calibration_error(scores.softmax(1), labels, count, n_bins=15)),
    }
    if int(held.sum()) > 1:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of classes that the samples lack
            each = multiclass_auroc(scores.softmax(1), labels, count, average="none")
        figures["auroc"] = float(each[held].double().mean())
    return figures


def outcome(problem: ImageProblem, variables: Variables) -> Outcome:
    """Figures of the server's variables, which lie where the data are."""
    data = problem.data
    selected = len(data.selection_labels) > 0
    weights = problem.client_weights(variables)
    weighted = weights is not None
    if weights is None:
        weights = torch.full((data.clients,), 1.0 / data.clients, dtype=torch.float64)
    return Outcome(
        test=judge(problem, variables, data.test_images, data.test_labels),
        selection=judge(problem, variables, data.selection_images, data.selection_labels) if selected else None,
        validation_loss=validation_loss(problem, variables),
        weights=weights.double().cpu().numpy(),
        weighted=weighted,
        measures=problem.measure(variables),
    )


def rounds_to(rows: Sequence[Mapping[str, float | None]], targets: Sequence[float]) -> dict[float, int | None]:
    """The first evaluated round whose test accuracy is at least each target; None for one never reached.

    rows: a history (`pipeline.report.series.read_history`), in the order of rounds; targets in [0, 1].
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


def weight_interval(weights: np.ndarray, replicates: np.ndarray) -> np.ndarray:
    """Lower and upper ends of each client's 90 % interval, [2, N]. weights: the run's, [N]; replicates: of R >= 2
    further runs (`pipeline.training.replicates`), [R, N].

    weight_i +- max( t(R - 1; .95) sd_i , 0.01 / N ), cut to [0, 1], with sd_i over the replicates. It is meant to
    cover client i's mean weight over redraws of validation set, initial model and minibatches, with the clients'
    samples and all settings as they are. It does so in 90 % of runs if the weights of run and replicates are
    independent draws of one normal distribution. Normal they are not near 0 and 1, where the cut helps; and one
    distribution only as far as resampling V validation samples stands for drawing new ones. Measured:
    `experiments/trust/page.md`.
    """
    from scipy.special import stdtrit

    count, clients = replicates.shape
    half = np.maximum(stdtrit(count - 1, 0.95) * replicates.std(axis=0, ddof=1), 0.01 / clients)
    return np.clip(np.stack([weights - half, weights + half]), 0.0, 1.0)


def below_half(weights: np.ndarray, interval: np.ndarray | None) -> list[int]:
    """Clients below half of an equal share 1/N, by the upper end of their interval where there is one. weights: [N];
    interval: [2, N]."""
    upper = weights if interval is None else interval[1]
    return np.flatnonzero(upper < 0.5 / len(weights)).tolist()


def detection(weights: np.ndarray, kinds: Sequence[str], quality: Sequence[float]) -> dict[str, float]:
    """How well weights separate good clients from bad ones; ties count half.

    detection_auc: the chance that a clean client holds more than a bad one; detection_auc_<kind>: than one of that kind
    (of several). quality_correlation: Spearman's rank correlation of weights and quality (share of right samples).
    Figures that the clients do not allow (none bad, all equal) are left out.
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
