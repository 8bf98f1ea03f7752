"""Everything people look at after a run, written in one go."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from pipeline.data.partition import Partition
from pipeline.problems.base import ImageProblem, Variables
from pipeline.problems.general_weighting import GeneralWeighting
from pipeline.problems.toy import Toy
from pipeline.report import tables
from pipeline.report.clients import Clients
from pipeline.report.evidence import gather
from pipeline.report.numbers import UNCHECKED, run_facts, served_line, write_numbers, write_toy_numbers
from pipeline.report.page.render import write_page
from pipeline.report.page.story import Holdings, Story
from pipeline.report.plots import what_is_classified, write_plots, write_toy_plots
from pipeline.report.record import Record
from pipeline.report.series import Rows, read_history, read_weights
from pipeline.report.writing import write_csv
from pipeline.training.evaluation import Classification, outcome

CLASSES = ("class", "samples", "precision", "recall", "f1")


def write_report(
    problem: ImageProblem, variables: Variables, partition: Partition, record: Record, results: Path
) -> str:
    """Write metrics.json, client_weights.csv, per_class.csv, plots/ and report.html; return the summary for the
    terminal.

    variables: the served ones, where the data are. results: holds history.csv and client_weights_history.npz already.
    """
    found = outcome(problem, variables)
    metrics, clients = write_numbers(found, partition, record, results)
    test = found.test if isinstance(found.test, Classification) else None
    write_csv(results / "per_class.csv", CLASSES, _per_class(test, partition) if test else ())
    write_plots(found, partition, clients, record, results)
    over_rounds = read_weights(results)
    pull = over_rounds["pull"] if metrics["served_round"] == metrics["rounds"] else np.zeros(0)
    evidence = gather(problem, variables, pull, test.recall if test else [])
    clients = replace(clients, disagrees=evidence.disagrees)
    story = replace(
        _story(metrics, clients, record, results),
        test=test,
        what=what_is_classified(record),
        holdings=Holdings.of(problem.data, partition),
        evidence=evidence,
    )
    write_page(story, results / "report.html")
    lines = [f"{tables.client_table(clients)}\n\n{tables.headline(metrics)}", *remarks(metrics, clients, results)]
    if partition.unchecked and story.learned:
        lines.append(UNCHECKED)
    return "\n".join(lines)


def _per_class(test: Classification, partition: Partition) -> Iterable[Sequence[Any]]:
    for c, scores in enumerate(zip(test.precision, test.recall, test.f1, strict=True)):
        name = partition.class_names[c] if partition.class_names else c
        yield name, int(test.confusion[c].sum()), *(f"{score:.6f}" for score in scores)


def write_toy_report(toy: Toy | GeneralWeighting, variables: dict[str, Tensor], record: Record, results: Path) -> str:
    """The same for the toy problem: exact values instead of accuracies, no labels and no classes."""
    metrics, clients = write_toy_numbers(toy, variables, record, results)
    write_csv(results / "per_class.csv", CLASSES, ())
    write_toy_plots(clients, results)
    write_page(_story(metrics, clients, record, results), results / "report.html")
    measured = metrics.keys() - run_facts(record).keys() - {"weights_settled"}
    numbers = ", ".join(f"{name.replace('_', ' ')} {metrics[name]:.6g}" for name in metrics if name in measured)
    table = tables.client_table(clients)
    return "\n".join([f"{table}\n\n{metrics['algorithm']} on toy: {numbers}", *remarks(metrics, clients, results)])


def _story(metrics: dict[str, Any], clients: Clients, record: Record, results: Path) -> Story:
    rows, weights = read_history(results / "history.csv"), read_weights(results)["weights"]
    return Story(record, metrics, clients, rows, weights, remarks=troubles(metrics, rows))


def troubles(facts: Mapping[str, Any], rows: Rows) -> list[str]:
    """What went wrong in the run, as sentences for the page."""
    lines = [line.removesuffix(".") for line in (served_line(facts, rows), _left_out(facts)) if line]
    return [f"{line[0].upper()}{line[1:]}." for line in lines]


def _left_out(facts: Mapping[str, Any]) -> str:
    """Whose answers did not count; empty if all did."""
    if "clients_left_out" not in facts:
        return ""
    said = "answers left out, which were malformed, not finite or out of all proportion, by client (rounds)"
    return f"{said}: {facts['clients_left_out']}"


def remarks(facts: Mapping[str, Any], clients: Clients, results: Path) -> list[str]:
    """What a person should know besides the figures, line by line."""
    lines = [served_line(facts, read_history(results / "history.csv")), _left_out(facts)]
    if not facts.get("weights_settled", True):
        lines.append("the weights have not settled: train on (more rounds)")
    else:
        lines += tables.suspects_lines(clients)
    return [line for line in lines if line]
