"""The table of the paper: published numbers, ours, and the difference."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from experiments.cells import Cell, Result, read
from experiments.params import Settings
from experiments.primal_dual_weighting.toy import Label
from experiments.study import Study
from pipeline.report.tables import accuracy
from pipeline.report.tables import markdown as markdown_table

PUBLISHED = Path(__file__).parent / "published.csv"
Row = dict[str, Any]


def rows_of(cells: Sequence[Cell]) -> list[str]:
    """Their rows, in the table's order."""
    return list(dict.fromkeys(cell.row for cell in cells))


def summarise(cells: Sequence[Cell], results: Path, published: bool) -> list[Row]:
    """One row per participation and method: means over the seeds that were run. published: put the paper's beside."""
    paper = _published() if published else {}
    rows = []
    for participation in sorted({cell.participation for cell in cells}, reverse=True):
        for name in rows_of(cells):
            own = [cell for cell in cells if (cell.row, cell.participation) == (name, participation)]
            if own:
                found = [result for cell in own if (result := read(cell, results)) is not None]
                rows.append(_row(name, participation, len(own), found, paper.get((name, participation), {})))
    return rows


def _row(name: str, participation: float, planned: int, found: list[Result], paper: dict[str, str]) -> Row:
    """A row of the table; a figure without runs is None. Accuracies in per cent."""
    ended = [result["outcome"] for result in found if "outcome" in result]
    row: Row = {
        "participation": participation,
        "row": name,
        "runs": f"{len(ended)} of {planned}",
        "diverged": len(found) - len(ended),
        "accuracy": None,
        "standard_deviation": None,
        "published": float(paper["accuracy"]) if paper else None,
        "published_sd": float(paper["accuracy_sd"]) if paper else None,
        "difference": None,
        "weights": None,
        "noise": None,
        "largest_noise": None,
    }
    if not ended:
        return row
    accuracies = 100 * np.array([outcome["test_accuracy"] for outcome in ended])
    row["accuracy"] = float(accuracies.mean())
    row["standard_deviation"] = float(accuracies.std(ddof=1)) if len(ended) > 1 else None
    if paper:
        row["difference"] = row["accuracy"] - row["published"]
    weights = [np.array(outcome["weights"]) for outcome in ended if "weights" in outcome]
    if weights and name != "validation_only":
        clean = np.array([kind == "clean" for kind in next(r["kinds"] for r in found if "outcome" in r)])
        row["weights"] = [float(value) for value in np.mean(weights, axis=0)[clean]]
        if (~clean).any():
            row["noise"] = float(np.mean(weights, axis=0)[~clean].mean())
            row["largest_noise"] = float(max(w[~clean].max() for w in weights))
    return row


def _published() -> dict[tuple[str, float], dict[str, str]]:
    with PUBLISHED.open(newline="") as file:
        return {(row["row"], float(row["participation"])): row for row in csv.DictReader(file)}


def markdown(rows: Iterable[Row], published: bool) -> str:
    """The table for the page; rows without any run and without a published figure in a line below it."""
    rows = list(rows)
    shown = [row for row in rows if row["accuracy"] is not None or row["diverged"] or (published and row["published"])]
    head = ["participation", "method", "runs", "accuracy %"]
    head += ["published %", "difference"] if published else []
    head += ["weights of the clean clients", "noise client, mean", "largest"]
    lines = []
    for row in shown:
        cells = [
            f"{row['participation']:g}",
            row["row"],
            row["runs"],
            _accuracy(row),
        ]
        if published:
            paper = row["published"]
            cells.append("" if paper is None else f"{paper:.2f} ± {row['published_sd']:.2f}")
            cells.append("" if row["difference"] is None else f"{row['difference']:+.2f}")
        weights = row["weights"]
        cells.append("" if weights is None else " ".join(f"{value:.3f}" for value in weights))
        cells += ["" if row[name] is None else f"{row[name]:.1e}" for name in ("noise", "largest_noise")]
        lines.append(cells)
    return _table(head, lines, [row for row in rows if row not in shown])


def _table(head: Sequence[str], lines: Sequence[Sequence[str]], missing: Sequence[Row]) -> str:
    """The table, if it has any line, and which rows are not run."""
    absent: dict[str, list[str]] = {}
    for row in missing:
        absent.setdefault(f"{row['participation']:g}", []).append(row["row"])
    listed = " ".join(f"Not run at participation {p}: {'; '.join(names)}." for p, names in absent.items())
    return "\n\n".join(part for part in (markdown_table(head, lines) if lines else "", listed) if part)


def _accuracy(row: Row) -> str:
    return accuracy(row["accuracy"], row["standard_deviation"], row["diverged"])


DETECTION = ("detection_auc", "quality_correlation")


def detections(cells: Sequence[Cell], results: Path) -> list[Row]:
    """One row per participation and method: accuracy, and how well the weights separate bad clients from clean ones;
    means over seeds."""
    rows = []
    for participation, name in dict.fromkeys((cell.participation, cell.row) for cell in cells):
        own = [cell for cell in cells if (cell.row, cell.participation) == (name, participation)]
        ended = [r["outcome"] for cell in own if (r := read(cell, results)) and "outcome" in r]
        kinds = dict.fromkeys(key for outcome in ended for key in outcome if key.startswith("detection_auc_"))
        row: Row = {"participation": participation, "row": name, "runs": f"{len(ended)} of {len(own)}"}
        for key in ("test_accuracy", "clean_weight", *DETECTION, *kinds):
            values = [outcome[key] for outcome in ended if key in outcome]
            row[key] = float(np.mean(values)) if values and name != "validation_only" else None
        row["diverged"] = sum(1 for cell in own if (r := read(cell, results)) and "failed" in r)
        if ended:
            row["test_accuracy"] = float(np.mean([outcome["test_accuracy"] for outcome in ended]))
        rows.append(row)
    return rows


def detection_markdown(rows: Sequence[Row]) -> str:
    """Kinds of bad clients as columns."""
    kinds = list(dict.fromkeys(key for row in rows for key in row if key.startswith("detection_auc_")))
    head = ["participation", "method", "runs", "accuracy %", "weight of clean clients", "AUC"]
    head += [f"AUC, {key.removeprefix('detection_auc_')}" for key in kinds] + ["rank correlation"]
    lines = []
    shown = [row for row in rows if row["test_accuracy"] is not None or row["diverged"]]
    for row in shown:
        accuracy = "diverged" if row["test_accuracy"] is None else f"{100 * row['test_accuracy']:.2f}"
        keys = ("clean_weight", "detection_auc", *kinds, "quality_correlation")
        cells = ["" if row.get(key) is None else f"{row[key]:.2f}" for key in keys]
        lines.append([f"{row['participation']:g}", row["row"], row["runs"], accuracy, *cells])
    return _table(head, lines, [row for row in rows if row not in shown])


def first_below(curve: Sequence[float], rounds: Sequence[int], share: float = 0.1) -> float:
    """The first round at which a curve is at most that share of its start; infinite if never."""
    return next((float(r) for r, v in zip(rounds, curve, strict=True) if v <= share * curve[0]), float("inf"))


def toy_claim(cells: Sequence[Cell], results: Path) -> list[Row]:
    """Deterministic setting: rounds until the stationarity is a tenth of its start (median; infinite if never), and the
    share of repetitions that get there within twice the rounds of exact_gradient with the smallest eta_x. None where
    exact_gradient never does."""
    found = {Label.of(cell): result for cell in cells if (result := read(cell, results))}
    first = min((label.eta_x for label in found), default=0.0)
    rows = []
    for label, result in found.items():
        if label.setting != "deterministic":
            continue
        exact = found.get(replace(label, method="exact_gradient", eta_x=first))
        times, reference = _tenths(result), _tenths(exact) if exact else np.array([])
        arrived = np.isfinite(reference)
        within = float(np.mean((times <= 2 * reference)[arrived])) if arrived.any() else None
        row = {"K": label.K, "method": label.method, "eta_x": label.eta_x}
        rows.append(row | {"median_rounds": float(np.median(times)), "within_twice": within})
    return sorted(rows, key=lambda row: (row["K"], row["eta_x"], row["median_rounds"]))


def toy_noise(cells: Sequence[Cell], results: Path) -> list[Row]:
    """Noisy settings: mean stationarity at the end, and the share of repetitions whose f_0(w*(x)) is above its start
    somewhere in the last two thirds of the rounds."""
    rows = []
    for cell in cells:
        label, result = Label.of(cell), read(cell, results)
        if label.setting == "deterministic" or result is None:
            continue
        late = [i for i, r in enumerate(result["round"]) if r > result["round"][-1] / 3]
        gone = [any(not curve[i] <= curve[0] for i in late) for curve in result["upper_value"]]
        end = float(np.mean([curve[-1] for curve in result["stationarity"]]))
        row = {"setting": label.setting, "K": label.K, "method": label.method}
        rows.append(row | {"stationarity": end, "gone": float(np.mean(gone))})
    return sorted(rows, key=lambda row: (row["setting"], row["K"], row["stationarity"]))


def _tenths(result: Result) -> np.ndarray:
    """Per repetition: the first round at a tenth of the start."""
    return np.array([first_below(curve, result["round"]) for curve in result["stationarity"]])


def curves(cells: Sequence[Cell], results: Path, participation: float) -> list[Row]:
    """Test accuracy at every evaluation, in per cent, mean over the seeds that ended; a column per row of the
    table."""
    columns: dict[str, np.ndarray] = {}
    rounds: list[float] = []
    for name in rows_of(cells):
        own = [cell for cell in cells if (cell.row, cell.participation) == (name, participation)]
        ended = [result["curve"] for cell in own if (result := read(cell, results)) and "curve" in result]
        if ended:
            rounds = ended[0]["round"]
            columns[name] = 100 * np.mean([curve["test_accuracy"] for curve in ended], axis=0)
    return [
        {"round": int(r), **{name: columns[name][i] if name in columns else "" for name in rows_of(cells)}}
        for i, r in enumerate(rounds)
    ]


def trials(study: Study, part: str) -> list[Row]:
    """A row per trial: method, steps, state, and accuracy and loss on the selection set (None if it diverged or was not
    run)."""
    rows = []
    for method in study.parts[part].grids:
        for steps, found in study.scores(part, method):
            state = "not run" if found is None else "diverged" if "failed" in found else "done"
            outcome = (found or {}).get("outcome", {})
            score = {name: outcome.get(name) for name in ("selection_accuracy", "selection_loss")}
            rows.append({"method": method, "steps": steps, "state": state, **score})
    return rows


def trials_markdown(trials: Sequence[Row], winners: dict[str, Settings]) -> str:
    """The grids, the winners marked."""
    lines = []
    for trial in trials:
        steps = ", ".join(f"{name} {value:g}" for name, value in trial["steps"].items())
        score, loss = trial["selection_accuracy"], trial["selection_loss"]
        shown = [trial["state"], ""] if score is None else [f"{100 * score:.1f}", f"{loss:.4f}"]
        won = "**chosen**" if trial["steps"] == winners.get(trial["method"]) else ""
        lines.append([trial["method"], steps, *shown, won])
    return markdown_table(["method", "steps", "accuracy on the selection set %", "loss on it", ""], lines)
