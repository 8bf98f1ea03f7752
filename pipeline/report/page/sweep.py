"""results/sweep/report.html: the runs of a sweep side by side."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from pipeline.report import figures
from pipeline.report.clients import read_clients
from pipeline.report.page import themed
from pipeline.report.page.making import reproduce
from pipeline.report.page.render import render
from pipeline.report.page.words import counted, percent, plain
from pipeline.report.record import Record
from pipeline.report.series import column, evaluations, read_history
from pipeline.report.sweep import SHOWN, Swept, by_values, metrics
from pipeline.report.tables import spread
from pipeline.report.writing import write_text
from pipeline.text import short_names
from pipeline.training.best import SELECTION

MOST = 12
"""Combinations with a curve of their own, and runs with a column in the table of weights."""
WIDEST = 40
"""Clients with a line in that table."""


def write_sweep_page(runs: Sequence[Swept], record: Record, settings: dict[str, Any], folder: Path) -> None:
    """record: of the sweep. settings: in use in its first run, dotted. folder: holds a folder per run."""
    found = {run.name: metrics(folder / run.name) for run in runs}
    groups = by_values(runs)
    names = {key: _label(same[0]) for key, same in groups.items()}
    varied = [name for name in runs[0].varied if name != "seed"]
    seeds = list(dict.fromkeys(run.varied["seed"] for run in runs))
    axes = {name: list(dict.fromkeys(run.varied[name] for run in runs)) for name in varied}
    kept = {name: value for name, value in settings.items() if name not in runs[0].varied}
    page = {
        "name": f"{counted(len(runs), 'run')}, {counted(len(seeds), 'seed')}",
        "title": record.name[0].upper() + record.name[1:],
        "question": _question(varied, seeds),
        "answer": {"tone": "", "lines": [*_answer(groups, names, found), *_unsettled(found)]},
        "tiles": _tiles(runs, found),
        "table": _table(runs, groups, found),
        "curves": _curves(groups, names, folder),
        "weights": _weights(runs, found, folder),
        "runs": [_run(run, found[run.name]) for run in runs],
        "reproduce": reproduce(record, kept, {"sweep": {"seeds": seeds, "values": axes}}, "make sweep"),
    }
    write_text(folder / "report.html", render("sweep.html.j2", page))


def _label(run: Swept) -> str:
    values = zip(short_names(list(run.values)), run.values.values(), strict=True)
    return ", ".join(f"{name} {plain(value)}" for name, value in values) or "all seeds"


def _question(varied: list[str], seeds: list[Any]) -> str:
    spread_out = f"How far do the results depend on chance, over {counted(len(seeds), 'seed')}?"
    if not varied:
        return spread_out
    return f"What do other values of {' and '.join(varied)} change" + (", and chance?" if len(seeds) > 1 else "?")


def _answer(groups: dict[str, list[Any]], names: dict[str, str], found: dict[str, dict[str, Any]]) -> list[str]:
    means = {}
    for key, same in groups.items():
        chosen = [m[SELECTION] for run in same if (m := found[run.name]).get(SELECTION) is not None]
        if chosen and len(chosen) == len(same):
            means[key] = statistics.fmean(chosen)
    if len(means) < 2:
        return [] if means else ["There is no selection set to choose by."]
    best = max(means.values())
    top = [key for key in means if means[key] == best]
    tested = [found[run.name]["test_accuracy"] for key in top for run in groups[key]]
    which = " and ".join(names[key] for key in top[:3]) + (f" and {len(top) - 3} more" if len(top) > 3 else "")
    return [
        f"Highest selection accuracy, by which to choose: {which}, {percent(best, 2)} on average.",
        f"Test accuracy there: {percent(statistics.fmean(tested), 2)} on average.",
    ]


def _unsettled(found: dict[str, dict[str, Any]]) -> list[str]:
    moving = sum(each.get("weights_settled") is False for each in found.values())
    return [f"In {counted(moving, 'run')} the weights have not settled: train on (more rounds)."] if moving else []


def _tiles(runs: Sequence[Swept], found: dict[str, dict[str, Any]]) -> list[dict[str, str]]:
    ended = [each for each in found.values() if each]
    tiles = [{"value": str(len(ended)), "label": f"of {counted(len(runs), 'run')} finished", "tone": ""}]
    if len(ended) < len(runs):
        tiles.append({"value": str(len(runs) - len(ended)), "label": "diverged", "tone": "bad"})
    accuracies = [each["test_accuracy"] for each in ended if "test_accuracy" in each]
    if accuracies:
        value = f"{percent(min(accuracies))} to {percent(max(accuracies))}"
        tiles.append({"value": value, "label": "test accuracy of single runs", "tone": ""})
    says = [each["weights_settled"] for each in ended if "weights_settled" in each]
    if says:
        tone = "good" if all(says) else "warn"
        tiles.append({"value": f"{sum(says)} of {len(says)}", "label": "runs with settled weights", "tone": tone})
    return tiles


def _table(
    runs: Sequence[Swept], groups: dict[str, list[Any]], found: dict[str, dict[str, Any]]
) -> dict[str, list[Any]]:
    shown = [name for name in SHOWN if any(each.get(name) is not None for each in found.values())]
    head = [*short_names(list(runs[0].values)), "seeds", "diverged", *(name.replace("_", " ") for name in shown)]
    rows = []
    for same in groups.values():
        ended = [found[run.name] for run in same if found[run.name]]
        cells = [spread([each[name] for each in ended if each.get(name) is not None]) for name in shown]
        values = [plain(value) for value in same[0].values.values()]
        rows.append([*values, str(len(same)), str(len(same) - len(ended)), *cells])
    return {"head": head, "rows": rows}


def _curves(groups: dict[str, list[Any]], names: dict[str, str], folder: Path) -> list[tuple[str, Markup]]:
    drawn = []
    for measure, title in figures.EVALUATED.items():
        lines = {}
        for key, same in itertools.islice(groups.items(), MOST):
            histories = [evaluations(read_history(folder / run.name / "history.csv")) for run in same]
            complete = [rows for rows in histories if rows and np.isfinite(column(rows, measure)).all()]
            if complete:
                shortest = min(map(len, complete))
                means = np.mean([column(rows, measure)[:shortest] for rows in complete], axis=0)
                lines[names[key]] = (column(complete[0], "round")[:shortest], means)
        if lines:
            more = " (mean over seeds)" if any(len(same) > 1 for same in groups.values()) else ""
            picture = figures.compared(lines, measure, title + more, themed.SMALL)
            drawn.append((f"{title} over rounds", Markup(themed.svg(picture, measure))))
    return drawn


def _weights(runs: Sequence[Swept], found: dict[str, dict[str, Any]], folder: Path) -> dict[str, Any] | None:
    """Clients downwards, runs across; None where the runs' clients are not the same ones, or too many."""
    ended = [run for run in runs if found[run.name]][:MOST]
    tables = [read_clients(folder / run.name) for run in ended]
    clients = [[row["name"] for row in rows] for rows in tables]
    if not tables or any(names != clients[0] for names in clients) or len(clients[0]) > WIDEST:
        return None
    top = max(max(row["weight"] for row in rows) for rows in tables) or 1.0
    return {
        "corner": "client",
        "columns": [f"{k + 1}" for k in range(len(ended))],
        "rows": [
            {
                "name": name,
                "cells": [_heavy(rows[i]["weight"], top) for rows in tables],
            }
            for i, name in enumerate(clients[0])
        ],
        "legend": [f"{k + 1}: {run.name}" for k, run in enumerate(ended)],
    }


def _heavy(weight: float, top: float) -> dict[str, Any]:
    return {"text": f"{weight:.2f}", "share": weight / top, "tone": ""}


def _run(run: Swept, found: dict[str, Any]) -> list[str]:
    settled = {None: "", True: "settled", False: "not settled"}[found.get("weights_settled")]
    return [run.name, "finished" if found else "diverged", percent(found.get("test_accuracy"), 2), settled]
