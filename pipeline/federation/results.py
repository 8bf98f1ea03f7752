"""What a federated run leaves behind: the files of a simulated run, under the sites' names, and the tracker's run."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.config.spec import dotted
from pipeline.federation.hub import Hub
from pipeline.federation.settings import Server
from pipeline.params import Params
from pipeline.text import aligned
from pipeline.tracking import figures
from pipeline.tracking.metrics import read_history
from pipeline.tracking.model import save_model
from pipeline.tracking.publish import publish
from pipeline.tracking.record import Record, write_json
from pipeline.tracking.session import describe, live_run
from pipeline.training.best import Served
from pipeline.training.evaluation import outcome, suspects
from pipeline.training.history import History
from pipeline.training.results import save_variables
from pipeline.training.resume import ResumeFolder
from pipeline.training.tasks import Task


def scalars(hub: Hub) -> dict[str, float]:
    """What the record gains in a round."""
    spent = [each["epsilon"] for each in hub.privacy.values() if each.get("epsilon") is not None]
    tally = hub.tally
    found = {"sites": float(len(hub.ready)), "answers_left_out": float(tally.left_out + tally.unanswered)}
    return found | ({"epsilon": max(spent)} if spent else {})


def record_of(params: Params, task: Task, settings: Server) -> Record:
    """The facts of the run, known when training starts."""
    record = describe(dotted(params), task.data_hash, task.partition_hash, str(task.device))
    shown = {name: value for name, value in record.params.items() if name.split(".")[0] not in ("data", "partition")}
    shown |= {"data.name": "sites", "sites": ", ".join(settings.sites), "federation.payload": settings.payload}
    name = f"{params.algorithm} on {len(settings.sites)} sites seed {params.seed}"
    return replace(record, name=name, params=shown, dataset={"name": "sites", "digest": task.data_hash})


@contextmanager
def live(params: Params, folder: Path, record: Record, kept: ResumeFolder) -> Iterator[Any]:
    """The tracker's run around the training."""
    with live_run(params.tracking, folder, record, kept.note("run.json")) as run:
        yield run


def write(
    folder: Path, record: Record, history: History, served: Served, task: Task, hub: Hub, samples: dict[str, int]
) -> str:
    """models/ and results/; returns the summary for the terminal, weights under the sites' names."""
    problem: Any = task.problem
    results, sites = folder / "results", list(hub.members)
    save_variables(folder / "models" / "model.pt", served.variables)
    history.export(results)
    record.save(folder / "models" / "training.json")
    found = outcome(problem, served.variables)
    example = problem.data.scaled(problem.data.test_images[:2]).float().numpy()
    save_model(problem.model.module_with(problem.network(served.variables)), folder / "models" / "mlflow", example)
    facts: dict[str, Any] = {
        "algorithm": record.params["algorithm"],
        "problem": record.params["problem"],
        "dataset": "sites",
        "seed": record.params["seed"],
        "rounds": record.rounds,
        "served_round": record.served_round,
        "test_accuracy": found.test.accuracy,
        "test_loss": found.test.loss,
        "selection_accuracy": found.selection.accuracy if found.selection else None,
        "validation_loss": found.validation_loss,
        "answers_left_out": hub.tally.left_out + hub.tally.unanswered,
        "exchanges": hub.tally.exchanges,
        "bytes_up": hub.tally.bytes_up,
        "bytes_down": hub.tally.bytes_down,
        "privacy": hub.privacy,
    }
    settled = read_history(results / "history.csv")[served.round].get("settled")
    if settled is not None:
        facts["weights_settled"] = bool(settled)
    write_json(results / "metrics.json", facts)
    with (results / "client_weights.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("client", "name", "kind", "labels", "samples", "weight", "weight_low", "weight_high"))
        for i, site in enumerate(sites):
            writer.writerow((i, site, "unknown", "", samples[site] or "0", f"{found.weights[i]:.9g}", "", ""))
    _pictures(results, found, sites)
    rows = [["site", "samples", "weight"]]
    rows += [[site, str(samples[site]), f"{weight:.4f}"] for site, weight in zip(sites, found.weights, strict=True)]
    lines = [aligned(rows, left=(0,)), "", f"{facts['algorithm']} on {len(sites)} sites:"]
    lines[-1] += f" test accuracy {100 * found.test.accuracy:.2f} %, test loss {found.test.loss:.4f}"
    low = [sites[i] for i in suspects(found.weights, None)] if found.weighted and found.weights.any() else []
    if not facts.get("weights_settled", True):
        lines.append("the weights have not settled: train on (more rounds)")
    elif low:
        lines.append(f"below half of an equal share: {', '.join(low)}")
    return "\n".join(lines)


def _pictures(results: Path, found: Any, sites: list[str]) -> None:
    """The curves of the weights, the last ones, accuracy and loss, the confusion matrix."""
    plots = results / "plots"
    with np.load(results / "client_weights_history.npz") as saved:
        rounds, weights = saved["round"], saved["weights"]
    colours = [figures.CLEAN[i % len(figures.CLEAN)] for i in range(len(sites))]
    with figures.canvas_style():
        if len(weights):
            figure = figures.new_figure(9, 5)
            axes = figure.subplots()
            for site, colour, column in zip(sites, colours, weights.T, strict=True):
                axes.plot(rounds, column, color=colour, label=f"{site}   {column[-1]:.3f}")
            axes.set(title="Learned weights of the sites over rounds", xlabel="round", ylabel="weight")
            axes.set_ylim(bottom=0)
            axes.legend(ncols=1 + len(sites) // 12)
            figures.save(figure, plots / "client_weights.png")
        figure = figures.new_figure(9, 5)
        axes = figure.subplots()
        bars = axes.bar(sites, found.weights, color=colours, width=0.72)
        axes.bar_label(bars, fmt="%.3f", padding=3)
        axes.set(title="Final weights of the sites", ylabel="weight")
        axes.grid(visible=False, axis="x")
        figures.save(figure, plots / "final_weights.png")
    evaluated = [row for row in read_history(results / "history.csv") if row["validation_loss"] is not None]
    names = ("round", "test_accuracy", "validation_loss")
    columns = (np.array([row[name] for row in evaluated], dtype=float) for name in names)
    figures.save(figures.accuracy_and_loss(*columns), plots / "accuracy_and_loss.png")
    figures.save(figures.confusion_matrix(found.test.confusion), plots / "confusion_matrix.png")


def send(params: Params, folder: Path) -> None:
    """Complete the run in the tracker."""
    publish(folder / "results", folder / "models", params.tracking, folder)
