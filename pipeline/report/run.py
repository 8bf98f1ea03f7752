"""Everything people look at after a run, written in one go."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from pipeline.data.partition import Partition
from pipeline.problems.general_weighting import GeneralWeighting
from pipeline.problems.toy import Toy
from pipeline.report import tables
from pipeline.report.clients import Clients
from pipeline.report.history import read_history
from pipeline.report.numbers import run_facts, served_line, write_numbers, write_toy_numbers
from pipeline.report.plots import write_plots, write_toy_plots
from pipeline.report.record import Record
from pipeline.report.writing import write_csv
from pipeline.training.evaluation import Outcome

CLASSES = ("class", "samples", "precision", "recall", "f1")


def write_report(outcome: Outcome, partition: Partition, record: Record, results: Path) -> str:
    """Write metrics.json, client_weights.csv, per_class.csv and plots/; return the summary for the terminal.

    results: holds history.csv and client_weights_history.npz already.
    """
    found, clients = write_numbers(outcome, partition, record, results)
    test = outcome.test
    scores = enumerate(zip(test.precision, test.recall, test.f1, strict=True))
    rows = ((c, int(test.confusion[c].sum()), *(f"{score:.6f}" for score in three)) for c, three in scores)
    write_csv(results / "per_class.csv", CLASSES, rows)
    write_plots(outcome, partition, clients, record, results)
    table = tables.client_table(clients)
    return "\n".join([f"{table}\n\n{tables.headline(found)}", *remarks(found, clients, results)])


def write_toy_report(toy: Toy | GeneralWeighting, variables: dict[str, Tensor], record: Record, results: Path) -> str:
    """The same for the toy problem: exact values instead of accuracies, no labels and no classes."""
    facts, clients = write_toy_numbers(toy, variables, record, results)
    write_csv(results / "per_class.csv", CLASSES, ())
    write_toy_plots(clients, results)
    measured = facts.keys() - run_facts(record).keys() - {"weights_settled"}
    numbers = ", ".join(f"{name.replace('_', ' ')} {facts[name]:.6g}" for name in facts if name in measured)
    table = tables.client_table(clients)
    return "\n".join([f"{table}\n\n{facts['algorithm']} on toy: {numbers}", *remarks(facts, clients, results)])


def remarks(facts: Mapping[str, Any], clients: Clients, results: Path) -> list[str]:
    """What a person should know besides the figures, line by line."""
    lines = [served_line(facts, read_history(results / "history.csv"))]
    if not facts.get("weights_settled", True):
        lines.append("the weights have not settled: train on (more rounds)")
    else:
        lines.append(tables.suspects_line(clients))
    return [line for line in lines if line]
