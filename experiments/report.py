"""The page of a study: a table per panel, a figure per part, and where and when the numbers were made."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from experiments.cells import Cell, Result, read
from experiments.params import Part, Settings
from experiments.provenance import CHANGED
from experiments.study import AXES, Slot, Study, cost
from pipeline.report import tables
from pipeline.report.figures import canvas_style, new_figure, save
from pipeline.report.writing import write_rows

COLOURS = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#222222", "#8C6D1F", "#6A51A3", "#999999"),
    *("#B5737A", "#3B7D23"),
)
MARKERS = "osD^v<>Pph"
COLOURS_KEPT = 128
"""Of a picture, which makes its file a third as large."""
FRAME = 30.0
"""Figures of accuracies show the ends of all lines that end less than this many per cent below the best."""
Row = dict[str, Any]


def write_page(study: Study) -> Path:
    """pages/<profile>/README.md with its figures, and its numbers where git does not keep the results."""
    out = study.page
    out.mkdir(parents=True, exist_ok=True)
    parts = [
        f"# {study.title}, {study.profile}",
        f"Made by `make experiments STUDY={study.name} PROFILE={study.profile}`"
        f" ([what it consists of](../../params.yaml)). Accuracies are on the test set at the end of a run, mean and"
        " standard deviation over the seeds; clients' weights are means over the last 100 rounds, or the last fifth of"
        " a shorter run, and what is measured in every round (drift, residuals) over the evaluations"
        " in the last fifth. Seconds are wall-clock, on a machine that also runs other cells: read them as orders of"
        " magnitude. What lies below a figure's frame is only in the tables.",
    ]
    for name, part in study.parts.items():
        parts += _part(study, name, part, out)
    if study.extras:  # what is no set of runs on data
        parts += study.extras.sections(study)
    write_numbers(study, "table", table(study))
    write_numbers(study, "curves", all_curves(study))
    path = out / "README.md"
    path.write_text("\n\n".join(part for part in parts if part) + "\n")
    return path


def _part(study: Study, name: str, part: Part, out: Path) -> list[str]:
    slots = list(study.table(name))
    if not any(read(slot.cell, study.results) for slot in slots):
        panels = ", ".join(part.panels)
        text = [f"## {part.title or name}", part.note.strip(), f"*Not run yet: {', '.join(part.rows)} on {panels}.*"]
        return text + (_search(study, name, part) if part.grids else [])
    text = [f"## {part.title or name}", part.note.strip()]
    for measure in part.figures:
        drawn = figure(slots, study.results, part, measure, _colours(study))
        if drawn is not None:
            save_picture(drawn, out / f"{name}_{measure}.png")
            text.append(f"![{part.title or name}: {measure.replace('_', ' ')}]({name}_{measure}.png)")
    for panel in part.panels:
        rows = summarise(slots, panel, part, study.results)
        text += [f"**{panel}**" if len(part.panels) > 1 else "", markdown(rows)]
    text.append(provenance([slot.cell for slot in slots], study.results))
    if part.grids:
        text += _search(study, name, part)
    return text


def _search(study: Study, name: str, part: Part) -> list[str]:
    trials = [slot.cell for slot, _ in study.trials(name)]
    settings = ", ".join(f"{key} {value}" for key, value in part.search.settings.items())
    lines = []
    for row, grid in part.grids.items():
        chosen, best = study.winner(name, row), ""
        for tried, found in study.scores(name, row):
            if found and tried == chosen and "outcome" in found:
                best = f"{100 * found['outcome']['selection_accuracy']:.2f} %"
        values = "; ".join(f"{key} {' '.join(f'{v:g}' for v in each)}" for key, each in grid.items())
        missing = "not run" if any(found is None for _, found in study.scores(name, row)) else "all diverged"
        lines.append([row, values, _values(chosen) or missing, best])
    where = f" ({part.search.panel}, seed {part.search.seed}{', ' if settings else ''}{settings})"
    about = f"Step sizes, by accuracy on the selection set, which no method sees{where}:"
    head = ["method", "tried", "chosen", "its accuracy on the selection set"]
    return [about, tables.markdown(head, lines), provenance(trials, study.results)]


def _values(settings: Settings) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in settings.items())


# ------------------------------------------------------------------------------------------------------------ numbers


def summarise(slots: Sequence[Slot], panel: str, part: Part, results: Path) -> list[Row]:
    """A row per method: means over the seeds that were run, None where there is nothing."""
    rows = []
    for name in part.rows:
        own = [slot.cell for slot in slots if (slot.panel, slot.row) == (panel, name)]
        if own:
            found = [result for cell in own if (result := read(cell, results)) is not None]
            rows.append(
                {"panel": panel, "method": name} | _row(own, found, part, part.panels[panel].published.get(name))
            )
    return rows


def _row(own: Sequence[Cell], found: Sequence[Result], part: Part, published: list[float] | None) -> Row:
    ended = [result for result in found if "outcome" in result]
    row: Row = {"runs": f"{len(ended)} of {len(own)}", "diverged": len(found) - len(ended)}
    accuracies = [100 * result["outcome"]["test_accuracy"] for result in ended]
    row["accuracy %"] = float(np.mean(accuracies)) if ended else None
    row["standard deviation"] = float(np.std(accuracies, ddof=1)) if len(ended) > 1 else None
    if any(panel.published for panel in part.panels.values()):
        row["published %"] = published[0] if published else None
        row["difference"] = row["accuracy %"] - published[0] if published and ended else None
    for name in part.measures:
        values = [value for result in ended if (value := _measure(result, name)) is not None]
        row[name] = float(np.mean(values)) if values else None
    for target in part.reach:
        for axis in ("communication_rounds", "floats"):
            reached = [first_reaching(result["curve"], target / 100, axis) for result in ended]
            row[f"{AXES[axis]} to {target:g} %"] = float(np.median(reached)) if reached else None
    for name in ("communication_rounds", "floats", "gradients", "hvps", "seconds"):
        row[AXES[name]] = float(np.mean([cost(result["costs"], name) for result in ended])) if ended else None
    return row


def _measure(result: Result, name: str) -> float | None:
    """From the outcome, or of a curve the mean over the evaluations in the run's last fifth, for a single round says
    little where few clients take part; nothing of the weights of a method that uses none."""
    outcome, curve = result["outcome"], result["curve"]
    if not any(outcome.get("weights", [1.0])):
        return None
    if name in outcome:
        return float(outcome[name])
    if name not in curve:
        return None
    rounds = curve["round"]
    return float(np.mean([value for r, value in zip(rounds, curve[name], strict=True) if r > 0.8 * rounds[-1]]))


def table(study: Study) -> list[Row]:
    """The rows of every part that has any run."""
    rows = []
    for name, part in study.parts.items():
        slots = list(study.table(name))
        if any(read(slot.cell, study.results) for slot in slots):
            found = [row for panel in part.panels for row in summarise(slots, panel, part, study.results)]
            rows += [{"part": name} | row for row in found]
    return rows


def first_reaching(curve: dict[str, list[float]], target: float, axis: str) -> float:
    """The cost at the first evaluation whose test accuracy is the target or more; infinite if none is."""
    return next(
        (c for c, value in zip(curve[axis], curve["test_accuracy"], strict=True) if value >= target), float("inf")
    )


def markdown(rows: Sequence[Row]) -> str:
    """A table; columns that are empty in every row are left out."""
    hidden = ("panel", "diverged", "standard deviation")
    columns = [name for name in rows[0] if name not in hidden and any(row[name] is not None for row in rows)]
    if "accuracy %" not in columns:
        columns.append("accuracy %")
    titles = [name.replace("_", " ") + " %" * name.endswith("accuracy") for name in columns]
    return tables.markdown(titles, [[_shown(row, name) for name in columns] for row in rows])


def _shown(row: Row, name: str) -> str:
    value = row[name]
    if name == "accuracy %":
        return tables.accuracy(value, row["standard deviation"], row["diverged"])
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if name.endswith("accuracy"):
        return f"{100 * value:.2f}"
    if name == "difference":
        return f"{value:+.2f}"
    if name == "published %":
        return f"{value:.2f}"
    if value == float("inf"):
        return "never"
    return f"{value:.3g}" if abs(value) < 1e3 else f"{value:,.0f}" if value < 1e6 else f"{value:.2e}"


def curves(slots: Sequence[Slot], results: Path, part: Part) -> list[Row]:
    """Long form, for your own plots: a line per panel, method and evaluation; means over the seeds that were run."""
    rows: list[Row] = []
    for panel, name in dict.fromkeys((slot.panel, slot.row) for slot in slots):
        points = _mean_curve(slots, results, panel, name, (*part.figures, *AXES))
        rows += [{"panel": panel, "method": name} | point for point in points]
    return rows


def all_curves(study: Study) -> list[Row]:
    """`curves` of every part."""
    found = {name: curves(list(study.table(name)), study.results, part) for name, part in study.parts.items()}
    return [{"part": name} | row for name, rows in found.items() for row in rows]


def write_numbers(study: Study, name: str, rows: Sequence[Row]) -> None:
    """<name>.csv beside the quick page, unrounded; of the full profile git keeps the results file itself."""
    if study.profile == "quick":
        write_rows(study.page / f"{name}.csv", rows)


def _mean_curve(slots: Sequence[Slot], results: Path, panel: str, row: str, columns: Sequence[str]) -> list[Row]:
    found = [read(slot.cell, results) for slot in slots if (slot.panel, slot.row) == (panel, row)]
    runs = [result["curve"] for result in found if result and "curve" in result]
    if not runs:
        return []
    length = min(len(run["round"]) for run in runs)
    means = {c: np.mean([run[c][:length] for run in runs], axis=0) for c in columns if all(c in run for run in runs)}
    return [{name: float(values[k]) for name, values in means.items()} for k in range(length)]


# ------------------------------------------------------------------------------------------------------------- figures


def _colours(study: Study) -> dict[str, tuple[str, str]]:
    """(colour, line style) of every row of the study, the same in all its figures."""
    rows = list(dict.fromkeys(row for part in study.parts.values() for row in part.rows))
    return {row: (COLOURS[k % len(COLOURS)], "-" if k < len(COLOURS) else "--") for k, row in enumerate(rows)}


def figure(
    slots: Sequence[Slot], results: Path, part: Part, measure: str, styles: dict[str, tuple[str, str]]
) -> Figure | None:
    """A column per panel, a line of panels per axis; means over the seeds. None without any run. styles: of the rows.

    Accuracies in per cent; whatever else is positive on a logarithmic scale. Markers, at places of their own, tell
    lines apart that lie on each other.
    """
    axes = part.figures[measure]
    panels = [p for p in part.panels if any(s.panel == p and read(s.cell, results) for s in slots)]
    if not panels:
        return None
    per_cent = measure.endswith("accuracy")
    with canvas_style():
        drawn = new_figure(4.4 * len(panels) + 2.4, 3.4 * len(axes) + 0.6)
        grid = drawn.subplots(len(axes), len(panels), squeeze=False, sharey="col")
        labels: dict[str, Any] = {}
        lines: dict[str, list[Any]] = {panel: [] for panel in panels}
        for i, axis in enumerate(axes):
            for j, panel in enumerate(panels):
                for k, row in enumerate(part.rows):
                    points = _mean_curve(slots, results, panel, row, (measure, axis))
                    if points and {axis, measure} <= points[0].keys():
                        x, y = (np.array([point[name] for point in points]) for name in (axis, measure))
                        y = 100 * y if per_cent else y
                        colour, line = styles[row]
                        apart = {"marker": MARKERS[k % len(MARKERS)], "ms": 4.5, "markevery": _places(k, len(x))}
                        (labels[row],) = grid[i, j].plot(x, y, color=colour, ls=line, lw=1.6, **apart)
                        lines[panel].append(y)
                grid[i, j].set_xlabel(AXES[axis])
                if not per_cent:
                    grid[i, j].set_yscale("log")
                if i == 0:
                    grid[i, j].set_title(panel, fontsize=11)
            grid[i, 0].set_ylabel(measure.replace("_", " ") + (" %" if per_cent else ""))
        if per_cent:
            for j, panel in enumerate(panels):
                grid[0, j].set_ylim(*_frame(lines[panel]))
        drawn.legend(labels.values(), labels.keys(), loc="outside right center", fontsize=9)
    return drawn


def save_picture(figure: Figure, path: Path) -> None:
    """As PNG of few colours."""
    save(figure, path)
    with Image.open(path) as drawn:
        few = drawn.convert("RGB").quantize(COLOURS_KEPT, dither=Image.Dither.NONE)
        few.save(path, optimize=True, dpi=drawn.info["dpi"])


def _frame(lines: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Bottom and top: all ends but those far below the best, with room for how the lines get there."""
    best = max((line[-1] for line in lines), default=100.0)
    low = min((line[-1] for line in lines if line[-1] > best - FRAME), default=0.0)
    room = max(3.0, 0.6 * (best - low))
    highest = max((max(line) for line in lines), default=100.0)
    return max(0.0, low - room), min(100.0, float(highest) + 0.15 * room)


def _places(k: int, points: int) -> tuple[int, int]:
    """Every few points, later by one for the next line."""
    every = max(1, points // 5)
    return k % every, every


# ----------------------------------------------------------------------------------------------------- for every page


def provenance(cells: Sequence[Cell], results: Path) -> str:
    """Which machines, when, with which code, and how long."""
    machines = [found["machine"] for cell in cells if (found := read(cell, results))]
    if not machines:
        return "*No cell of this part has been run yet.*"
    commits = ", ".join(sorted({m.get("commit", "unknown") for m in machines}))
    names = ", ".join(sorted({m["device"] for m in machines}))
    dates = sorted({m["date"] for m in machines})
    minutes = sum(m["seconds"] for m in machines) / 60
    when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    changed = sum(m.get("commit", "").endswith(CHANGED) for m in machines)
    return (
        f"*{len(machines)} of {len(cells)} cells, {names}, one thread per cell, {when},"
        f" {minutes:.0f} minutes of computing in all; code {commits}."
        + f" {changed} of them ran before their code was committed ({CHANGED})." * bool(changed)
        + "*"
    )
