"""metrics.json: what a run is worth, in numbers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from pipeline.data.partition import Partition
from pipeline.methods.registry import algorithm_named
from pipeline.problems.general_weighting import GeneralWeighting
from pipeline.problems.toy import Toy
from pipeline.report.clients import UNKNOWN, Clients
from pipeline.report.record import Record
from pipeline.report.series import Rows, evaluations, read_history, read_weights
from pipeline.report.writing import write_json
from pipeline.training.best import SELECTION, selection_of
from pipeline.training.evaluation import Classification, Outcome, detection, rounds_to, weight_interval, weight_quality

TARGETS = (0.5, 0.8, 0.9, 0.95)
"""Test accuracies whose first round is recorded."""


def write_numbers(
    outcome: Outcome, partition: Partition, record: Record, results: Path
) -> tuple[dict[str, Any], Clients]:
    """metrics.json and client_weights.csv, and what they hold.

    results: holds history.csv and client_weights_history.npz already.
    """
    rows = read_history(results / "history.csv")
    found = metrics(outcome, partition, record) | _first_reached(evaluations(rows)) | _settled(record, rows)
    clients = Clients.of(partition, outcome.weights, _interval(outcome.weights, results))
    write_json(results / "metrics.json", found)
    clients.write(results)
    return found, clients


def write_toy_numbers(
    toy: Toy | GeneralWeighting, variables: dict[str, Tensor], record: Record, results: Path
) -> tuple[dict[str, Any], Clients]:
    """The same for the toy problem: exact values instead of accuracies, no labels."""
    rows = read_history(results / "history.csv")
    facts = run_facts(record) | _settled(record, rows) | toy.measure(variables)
    held = toy.client_weights(variables)
    weights = (toy.oracle_weights if held is None else held).numpy()
    clients = Clients.alike(weights, _interval(weights, results))
    write_json(results / "metrics.json", facts)
    clients.write(results)
    return facts, clients


def metrics(outcome: Outcome, partition: Partition, record: Record) -> dict[str, Any]:
    """The content of metrics.json; where it is unknown who is clean, nothing is said of it."""
    facts = (
        run_facts(record)
        | {f"test_{name}": value for name, value in outcome.test.figures.items()}
        | _selected(outcome)
        | {"validation_loss": outcome.validation_loss}
        | outcome.measures
    )
    if not outcome.weighted or UNKNOWN in partition.kinds:
        return facts
    facts |= weight_quality(outcome.weights, partition.oracle_weights(), partition.clean)
    return facts | detection(outcome.weights, partition.kinds, partition.quality)


def _selected(outcome: Outcome) -> dict[str, float | None]:
    """The figure that decides and the loss, on the selection set; None without one."""
    name = "accuracy" if isinstance(outcome.test, Classification) else "r2"
    figures = outcome.selection.figures if outcome.selection else {}
    return {f"selection_{key}": figures.get(key) for key in (name, "loss")}


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
    } | _troubles(record)


def _troubles(record: Record) -> dict[str, Any]:
    """diverged_round, of a run that ended so. answers_left_out: in all rounds and of all clients together;
    clients_left_out: whose, and in how many rounds. Nothing where all counted."""
    found: dict[str, Any] = {} if record.diverged is None else {"diverged_round": record.diverged}
    if not record.left_out:
        return found
    shown = ", ".join(f"{name} ({rounds})" for name, rounds in record.left_out.items())
    return found | {"answers_left_out": sum(record.left_out.values()), "clients_left_out": shown}


UNCHECKED = (
    "the validation set was held out from the clients: the weights show who agrees with the others, and labels that are"
    " wrong at many clients stay unseen. A validation set of checked samples would show them (docs/own-data.md)"
)
"""Said where `Partition.unchecked` and the method learns weights."""


def served_line(facts: Mapping[str, Any], rows: Rows) -> str:
    """What is said of a run whose last model is not the one that is served, or is worse than the untrained one; empty
    otherwise. facts: of metrics.json; rows: the history."""
    if "diverged_round" in facts:
        return (
            f"the run diverged in round {facts['diverged_round']}: the model of round {facts['served_round']} is"
            f" served. Lower {algorithm_named(facts['algorithm']).options.main_step_size}."
        )
    if facts["served_round"] == facts["rounds"]:
        return _worse_than_untrained(facts, rows)
    there, last = (selection_of(rows[facts[name]]) for name in ("served_round", "rounds"))
    assert there is not None
    assert last is not None
    kind, first, second = "accuracy", f"{100 * there:.1f} %", f"{100 * last:.1f} %"
    if SELECTION not in rows[0]:
        kind, first, second = "R2", f"{there:.3f}", f"{last:.3f}"
    return (
        f"the model of round {facts['served_round']} is served: selection {kind} {first} there,"
        f" {second} after the last round {facts['rounds']}. Lower"
        f" {algorithm_named(facts['algorithm']).options.main_step_size}, or train for fewer rounds."
    )


def _worse_than_untrained(facts: Mapping[str, Any], rows: Rows) -> str:
    losses = [loss for row in rows if (loss := row.get("validation_loss")) is not None]
    if len(losses) < 2 or not losses[-1] > losses[0]:
        return ""
    return (
        f"the validation loss ended at {losses[-1]:.3g}, above the untrained model's {losses[0]:.3g}: the run diverged,"
        f" or the clients contradict the validation set. Lower"
        f" {algorithm_named(facts['algorithm']).options.main_step_size}, and look at the clients' data."
    )


def _settled(record: Record, rows: Rows) -> dict[str, bool]:
    """weights_settled: whether the served round's weights were, of a method that reports it."""
    found = rows[run_facts(record)["served_round"]].get("settled")
    return {} if found is None else {"weights_settled": bool(found)}


def _first_reached(evaluated: Rows) -> dict[str, int]:
    """rounds_to_90 and its like: the first evaluation with that test accuracy, in percent, or more; those reached."""
    found = rounds_to(evaluated, TARGETS)
    return {f"rounds_to_{target:.0%}".rstrip("%"): at for target, at in found.items() if at is not None}


def _interval(weights: np.ndarray, results: Path) -> np.ndarray | None:
    """Lower and upper ends of the weights' intervals, [2, N]; None without replicates."""
    replicates = read_weights(results)["replicates"]
    return weight_interval(weights, replicates) if len(replicates) else None
