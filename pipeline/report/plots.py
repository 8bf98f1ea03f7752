"""results/plots: the pictures of a run as PNG, and the same series for DVC's plots."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from pipeline.data.partition import Partition
from pipeline.report import figures, matrices
from pipeline.report.clients import Clients
from pipeline.report.record import Record
from pipeline.report.series import column, evaluations, read_history, read_weights, thin
from pipeline.report.writing import write_csv
from pipeline.training.evaluation import Classification, Outcome

PLOTS = (
    "client_weights.png",
    "final_weights.png",
    "accuracy_and_loss.png",
    "value_and_stationarity.png",
    "partition.png",
    "confusion_matrix.png",
)
"""Names in results/plots, in reading order."""


def write_plots(outcome: Outcome, partition: Partition, clients: Clients, record: Record, results: Path) -> None:
    """results: holds history.csv and client_weights_history.npz."""
    folder, evaluated = results / "plots", evaluations(read_history(results / "history.csv"))
    at, accuracy, r2, loss = (
        column(evaluated, name) for name in ("round", "test_accuracy", "test_r2", "validation_loss")
    )
    _weights(folder, results, clients, record)
    figures.save(figures.final_weights(clients), folder / "final_weights.png")
    test = outcome.test if isinstance(outcome.test, Classification) else None
    tested = figures.accuracy_and_loss(at, accuracy, loss) if test else figures.r2_and_loss(at, r2, loss)
    figures.save(tested, folder / "accuracy_and_loss.png")
    if test:
        figures.save(matrices.partition_heatmap(partition.label_counts(), clients), folder / "partition.png")
        what = what_is_classified(record)
        figures.save(matrices.confusion_matrix(test.confusion, what), folder / "confusion_matrix.png")
    # DVC draws the same series whatever is predicted: of numbers there is no accuracy.
    series = zip(at.astype(int), accuracy if test else [""] * len(at), loss, strict=True)
    write_csv(folder / "evaluations.csv", ("round", "test_accuracy", "validation_loss"), series)
    write_csv(folder / "confusion.csv", ("actual", "predicted"), _pairs(test.confusion) if test else ())


def what_is_classified(record: Record) -> str:
    """In words."""
    return "place in the task" if record.params["problem"] == "few_shot" else "label"


def write_toy_plots(clients: Clients, results: Path) -> None:
    """The same of the toy problem: exact values instead of accuracies."""
    folder, evaluated = results / "plots", evaluations(read_history(results / "history.csv"))
    names = ("validation_loss", "upper_value", "stationarity")
    rounds = column(evaluated, "round").astype(int)
    loss, value, stationarity = (column(evaluated, name) for name in names)
    if len(found := read_weights(results)["weights"]):
        curves = figures.weights_over_rounds(np.arange(len(found)), found, clients)
        figures.save(curves, folder / "client_weights.png")
    figures.save(figures.final_weights(clients), folder / "final_weights.png")
    figures.save(figures.value_and_stationarity(rounds, value, stationarity), folder / "value_and_stationarity.png")
    # DVC draws the same series whatever the data set: there is no accuracy here.
    series = zip(rounds, [""] * len(rounds), loss, value, stationarity, strict=True)
    write_csv(folder / "evaluations.csv", ("round", "test_accuracy", *names), series)
    write_csv(folder / "confusion.csv", ("actual", "predicted"), ())


def _weights(folder: Path, results: Path, clients: Clients, record: Record) -> None:
    found = read_weights(results)
    rounds, weights = found["round"], found["weights"]
    # DVC draws the series whatever the method: of one without weights there is nothing to see.
    header = ("round", "clean_clients", "largest_bad_client", "distance_to_oracle")
    if not len(weights):
        write_csv(folder / "weights.csv", header, ())
        return
    figures.save(figures.weights_over_rounds(rounds, weights, clients), folder / "client_weights.png")
    if clients.oracle is None:
        write_csv(folder / "weights.csv", header, ())
        return
    stride, clean = thin(record.rounds), clients.clean
    bad = weights[:, ~clean]
    series = (
        weights[:, clean].sum(1),
        bad.max(1) if bad.size else np.zeros(len(weights)),
        np.abs(weights - clients.oracle).sum(1),
    )
    write_csv(folder / "weights.csv", header, zip(*(s[::stride] for s in (rounds, *series)), strict=True))


def _pairs(confusion: np.ndarray) -> Iterable[tuple[int, int]]:
    """One line per test image, as DVC's confusion template wants it."""
    return (
        (true, predicted) for (true, predicted), count in np.ndenumerate(confusion.astype(int)) for _ in range(count)
    )
