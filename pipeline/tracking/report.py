"""The files people look at after a run: metrics, tables, pictures, and the same series for DVC's plots."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from pipeline.data.partition import Partition
from pipeline.methods.registry import algorithm_named
from pipeline.problems.general_weighting import GeneralWeighting
from pipeline.problems.toy import Toy
from pipeline.tracking import figures, tables
from pipeline.tracking.metrics import read_history, thin
from pipeline.tracking.record import Record, write_json
from pipeline.training.best import SELECTION
from pipeline.training.evaluation import Outcome, detection, rounds_to, suspects, weight_interval, weight_quality

TARGETS = (0.5, 0.8, 0.9, 0.95)
"""Test accuracies whose first round is recorded."""


def write_report(outcome: Outcome, partition: Partition, record: Record, results: Path) -> str:
    """Write metrics.json, client_weights.csv, per_class.csv and plots/; return the summary for the terminal.

    results: holds history.csv and client_weights_history.npz already.
    """
    found = write_numbers(outcome, partition, record, results)
    oracle, sizes, test = partition.oracle_weights(), partition.sizes.tolist(), outcome.test
    interval = _interval(outcome.weights, results)
    _write_csv(
        results / "per_class.csv",
        ("class", "samples", "precision", "recall", "f1"),
        (
            (c, int(test.confusion[c].sum()), *(f"{score:.6f}" for score in scores))
            for c, scores in enumerate(zip(test.precision, test.recall, test.f1, strict=True))
        ),
    )
    _plots(outcome, partition, oracle, interval, record, results)
    table = tables.client_table(
        partition.kinds,
        partition.client_labels,
        sizes,
        outcome.weights.tolist(),
        oracle.tolist(),
        interval,
    )
    remarks = _remarks(found, outcome.weights, interval, results)
    return "\n".join([f"{table}\n\n{tables.headline(found)}", *remarks])


def write_numbers(outcome: Outcome, partition: Partition, record: Record, results: Path) -> dict[str, Any]:
    """metrics.json, whose content is returned, and client_weights.csv. results: as for `write_report`."""
    found = metrics(outcome, partition, record) | _first_reached(_evaluations(results)) | _settled(record, results)
    write_json(results / "metrics.json", found)
    _write_clients(results, partition.kinds, partition.client_labels, partition.sizes.tolist(), outcome.weights)
    return found


def write_toy_numbers(
    toy: Toy | GeneralWeighting, variables: dict[str, Tensor], record: Record, results: Path
) -> dict[str, Any]:
    """The same for the toy problem: exact values instead of accuracies, no labels."""
    facts = run_facts(record) | _settled(record, results) | toy.measure(variables)
    write_json(results / "metrics.json", facts)
    no_labels: list[list[int]] = [[]] * toy.clients
    _write_clients(results, ["clean"] * toy.clients, no_labels, [1] * toy.clients, _toy_weights(toy, variables))
    return facts


def _toy_weights(toy: Toy | GeneralWeighting, variables: dict[str, Tensor]) -> np.ndarray:
    found = toy.client_weights(variables)
    return (toy.oracle_weights if found is None else found).numpy()


def write_toy_report(toy: Toy | GeneralWeighting, variables: dict[str, Tensor], record: Record, results: Path) -> str:
    """The same for the toy problem: exact values instead of accuracies, no labels and no classes."""
    facts = write_toy_numbers(toy, variables, record, results)
    weights, kinds, samples = _toy_weights(toy, variables), ["clean"] * toy.clients, [1] * toy.clients
    labels: list[list[int]] = [[]] * toy.clients
    _write_csv(results / "per_class.csv", ("class", "samples", "precision", "recall", "f1"), ())
    folder, evaluated = results / "plots", _evaluations(results)
    names = ("validation_loss", "upper_value", "stationarity")
    columns = [np.array([row[name] if row[name] is not None else np.nan for row in evaluated]) for name in names]
    rounds = np.array([row["round"] for row in evaluated], dtype=int)
    _weights_over_rounds(folder, results, kinds, None)
    figures.save(figures.final_weights(weights, kinds, labels), folder / "final_weights.png")
    figures.save(figures.value_and_stationarity(rounds, *columns[1:]), folder / "value_and_stationarity.png")
    # DVC draws the same series whatever the data set: there is no accuracy here.
    rows = zip(rounds, [""] * len(rounds), *columns, strict=True)
    _write_csv(folder / "evaluations.csv", ("round", "test_accuracy", *names), rows)
    _write_csv(folder / "confusion.csv", ("actual", "predicted"), ())
    measured = facts.keys() - run_facts(record).keys() - {"weights_settled"}
    numbers = ", ".join(f"{name.replace('_', ' ')} {facts[name]:.6g}" for name in facts if name in measured)
    table = tables.client_table(kinds, labels, samples, weights.tolist())
    remarks = _remarks(facts, weights, None, results)
    return "\n".join([f"{table}\n\n{facts['algorithm']} on toy: {numbers}", *remarks])


def _remarks(facts: Mapping[str, Any], weights: np.ndarray, interval: np.ndarray | None, results: Path) -> list[str]:
    """What a person should know besides the figures, line by line."""
    lines = [served_line(facts, results)]
    if "clients_left_out" in facts:
        lines.append(
            "answers left out, which were not finite or out of all proportion, by client (rounds):"
            f" {facts['clients_left_out']}"
        )
    if not facts.get("weights_settled", True):
        lines.append("the weights have not settled: train on (more rounds)")
    elif weights.any():  # a method without the clients gives all of them 0
        lines.append(tables.suspects_line(suspects(weights, interval), sure=interval is not None))
    return [line for line in lines if line]


def run_facts(record: Record) -> dict[str, Any]:
    """What metrics.json says of every run."""
    params = record.params
    return {
        "algorithm": params["algorithm"],
        "problem": params["problem"],
        "dataset": params["data.name"],
        "seed": params["seed"],
        "rounds": params["train.rounds"],
        "served_round": record.rounds if record.served_round is None else record.served_round,
    } | _left_out(record)


def _left_out(record: Record) -> dict[str, Any]:
    """diverged_round, of a run that ended so. answers_left_out: in all rounds and of all clients together; clients_left_out: whose, and in how many rounds.
    Nothing where all counted."""
    diverged = {} if record.diverged is None else {"diverged_round": record.diverged}
    if not record.left_out:
        return diverged
    shown = ", ".join(f"{name} ({rounds})" for name, rounds in record.left_out.items())
    return diverged | {"answers_left_out": sum(record.left_out.values()), "clients_left_out": shown}


def _settled(record: Record, results: Path) -> dict[str, bool]:
    """weights_settled: whether the served round's weights were, of a method that reports it."""
    found = read_history(results / "history.csv")[run_facts(record)["served_round"]].get("settled")
    return {} if found is None else {"weights_settled": bool(found)}


def served_line(facts: Mapping[str, Any], results: Path) -> str:
    """What is said of a run whose last model is not the one that is served; empty otherwise. facts: of metrics.json."""
    if "diverged_round" in facts:
        return (
            f"the run diverged in round {facts['diverged_round']}: the model of round {facts['served_round']} is served."
            f" Lower {algorithm_named(facts['algorithm']).options.main_step_size}."
        )
    if facts["served_round"] == facts["rounds"]:
        return ""
    rows = read_history(results / "history.csv")
    there, last = (rows[facts[name]][SELECTION] for name in ("served_round", "rounds"))
    assert there is not None
    assert last is not None
    return (
        f"the model of round {facts['served_round']} is served: selection accuracy {100 * there:.1f} % there,"
        f" {100 * last:.1f} % after the last round {facts['rounds']}. Lower"
        f" {algorithm_named(facts['algorithm']).options.main_step_size}, or train for fewer rounds."
    )


def metrics(outcome: Outcome, partition: Partition, record: Record) -> dict[str, Any]:
    """The content of metrics.json."""
    facts = (
        run_facts(record)
        | {
            "test_accuracy": outcome.test.accuracy,
            "test_loss": outcome.test.loss,
            SELECTION: outcome.selection.accuracy if outcome.selection else None,
            "selection_loss": outcome.selection.loss if outcome.selection else None,
            "validation_loss": outcome.validation_loss,
        }
        | outcome.measures
    )
    if not outcome.weighted:
        return facts
    facts |= weight_quality(outcome.weights, partition.oracle_weights(), partition.clean)
    return facts | detection(outcome.weights, partition.kinds, partition.quality)


def _plots(
    outcome: Outcome,
    partition: Partition,
    oracle: np.ndarray,
    interval: np.ndarray | None,
    record: Record,
    results: Path,
) -> None:
    folder = results / "plots"
    evaluated = _evaluations(results)
    at, accuracy, loss = (
        np.array([row[name] for row in evaluated], dtype=float)
        for name in ("round", "test_accuracy", "validation_loss")
    )
    found = _weights_over_rounds(folder, results, partition.kinds, oracle)
    if found:
        rounds, weights = found
        stride = thin(record.rounds)
        bad = weights[:, ~partition.clean]
        series = (
            weights[:, partition.clean].sum(1),
            bad.max(1) if bad.size else np.zeros(len(weights)),
            np.abs(weights - oracle).sum(1),
        )
        lines = zip(*(s[::stride] for s in (rounds, *series)), strict=True)
    # DVC draws it whatever the method: of one without weights there is nothing to see.
    header = ("round", "clean_clients", "largest_bad_client", "distance_to_oracle")
    _write_csv(folder / "weights.csv", header, lines if found else ())
    bars = figures.final_weights(outcome.weights, partition.kinds, partition.client_labels, oracle, interval)
    figures.save(bars, folder / "final_weights.png")
    figures.save(figures.accuracy_and_loss(at, accuracy, loss), folder / "accuracy_and_loss.png")
    figures.save(figures.partition_heatmap(partition.label_counts(), partition.kinds), folder / "partition.png")
    what = "place in the task" if record.params["problem"] == "few_shot" else "label"
    figures.save(figures.confusion_matrix(outcome.test.confusion, what), folder / "confusion_matrix.png")
    _write_csv(
        folder / "evaluations.csv",
        ("round", "test_accuracy", "validation_loss"),
        zip(at.astype(int), accuracy, loss, strict=True),
    )
    _write_csv(folder / "confusion.csv", ("actual", "predicted"), _pairs(outcome.test.confusion))


def _first_reached(evaluated: list[dict[str, float | None]]) -> dict[str, int]:
    """rounds_to_90 and its like: the first evaluation with that test accuracy, in percent, or more; those reached."""
    found = rounds_to(evaluated, TARGETS)
    return {f"rounds_to_{target:.0%}".rstrip("%"): at for target, at in found.items() if at is not None}


def _evaluations(results: Path) -> list[dict[str, float | None]]:
    """The rows of the history that hold an evaluation."""
    return [row for row in read_history(results / "history.csv") if row["validation_loss"] is not None]


def _weights_over_rounds(
    folder: Path, results: Path, kinds: Sequence[str], oracle: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray] | None:
    """Draws client_weights.png of a method that has weights; rounds [R] and weights [R, N]."""
    with np.load(results / "client_weights_history.npz") as saved:
        rounds, weights = saved["round"], saved["weights"]
    if not len(weights):
        return None
    figures.save(figures.weights_over_rounds(rounds, weights, kinds, oracle), folder / "client_weights.png")
    return rounds, weights


def _interval(weights: np.ndarray, results: Path) -> np.ndarray | None:
    """Lower and upper ends of the weights' intervals, [2, N]; None without replicates."""
    with np.load(results / "client_weights_history.npz") as saved:
        replicates = saved["replicates"]
    return weight_interval(weights, replicates) if len(replicates) else None


def _write_clients(
    results: Path,
    kinds: Sequence[str],
    labels: Sequence[Sequence[int]],
    samples: Sequence[int],
    weights: np.ndarray,
) -> None:
    interval = _interval(weights, results)
    ends = [("", "")] * len(kinds) if interval is None else [(f"{a:.9g}", f"{b:.9g}") for a, b in interval.T]
    rows = enumerate(zip(kinds, labels, samples, weights, ends, strict=True))
    _write_csv(
        results / "client_weights.csv",
        ("client", "name", "kind", "labels", "samples", "weight", "weight_low", "weight_high"),
        (
            (i, f"client {i}", kind, " ".join(map(str, held)), size, f"{weight:.9g}", *low_and_high)
            for i, (kind, held, size, weight, low_and_high) in rows
        ),
    )


def _pairs(confusion: np.ndarray) -> Iterable[tuple[int, int]]:
    """One line per test image, as DVC's confusion template wants it."""
    return (
        (true, predicted) for (true, predicted), count in np.ndenumerate(confusion.astype(int)) for _ in range(count)
    )


def _write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    with partial.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)
    os.replace(partial, path)
