"""The pictures: every method against equal weights, and what the validation set decides; a dot for every federation."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from matplotlib.figure import Figure

from experiments.results import Row
from experiments.trust.plan import AVERAGE, LEAD
from experiments.trust.running import METHODS
from experiments.trust.validation import SETTINGS, setting
from pipeline.report.figures import canvas_style, new_figure

FRAME = 30.0
"""Dots further from 0 lie on the frame."""
DOT, LEAD_DOT = "#8F9BA6", "#0072B2"


def common(rows: Sequence[Row]) -> list[Row]:
    """Those of the federations, with their seeds, on which every method of these rows was run."""
    places: dict[str, set[tuple[str, int]]] = {}
    for row in rows:
        places.setdefault(row["method"], set()).add((row["federation"], row["seed"]))
    shared = set.intersection(*places.values()) if places else set()
    return [row for row in rows if (row["federation"], row["seed"]) in shared]


def draw(rows: Sequence[Row]) -> Figure:
    """A panel for each length at full participation, with the federations where each of its methods was run; rows of
    `page.compared`. Methods by their mean in the first one. x: points of accuracy above equal weights; bar: the mean.
    """
    rows = [row for row in rows if "against_average" in row and row["method"] != AVERAGE]
    most = max((row["participation"] for row in rows), default=1.0)
    lengths = sorted({row["rounds"] for row in rows if row["participation"] == most}) or [0]
    panels = [common([r for r in rows if (r["rounds"], r["participation"]) == (length, most)]) for length in lengths]
    present = [method for method in METHODS if any(row["method"] == method for panel in panels for row in panel)]
    order = sorted(present, key=lambda method: _first_mean(panels, method))
    with canvas_style():
        figure = new_figure(4.0 * len(lengths) + 2.0, 0.32 * len(order) + 1.6)
        grid = figure.subplots(1, len(lengths), squeeze=False, sharey=True)[0]
        for axes, length, panel in zip(grid, lengths, panels, strict=True):
            for place, method in enumerate(order):
                values = [row["against_average"] for row in panel if row["method"] == method]
                if values:
                    colour = LEAD_DOT if method == LEAD else DOT
                    dots = [_framed(value) for value in values]
                    axes.plot(dots, [place] * len(dots), "o", ms=4, alpha=0.45, color=colour, mew=0, clip_on=False)
                    axes.plot([_framed(fmean(values))], [place], "|", ms=15, mew=3, color=colour)
            axes.axvline(0, color="#222222", lw=1)
            places = len({(row["federation"], row["seed"]) for row in panel})
            axes.set_title(f"{length} rounds, {places} federations", fontsize=12)
            axes.set_xlim(-FRAME, FRAME)
            axes.set_xlabel("points above equal weights")
        grid[0].set_yticks(range(len(order)), order)
    return figure


def _framed(value: float) -> float:
    return max(-FRAME, min(FRAME, value))


def _first_mean(panels: Sequence[Sequence[Row]], method: str) -> float:
    """At the shortest length that the method was run at."""
    own = ([row["against_average"] for row in panel if row["method"] == method] for panel in panels)
    return next(fmean(values) for values in own if values)


def draw_validation(rows: Sequence[Row]) -> Figure:
    """Three panels over the settings: accuracy above equal weights, AUC, weight of the bad clients together. A dot is a
    federation from one seed, a line the mean; `validation_only` beside it in the first panel.

    rows: of `page.compared`, of the federations in `validation.BASES`.
    """
    panels = (
        ("against_average", "points above equal weights"),
        ("auc", "AUC, clean over bad"),
        ("bad_weight", "weight of bad clients"),
    )
    with canvas_style():
        figure = new_figure(13.5, 4.2)
        grid = figure.subplots(1, len(panels))
        for axes, (measure, label) in zip(grid, panels, strict=True):
            shown = {LEAD: LEAD_DOT} | ({"validation_only": DOT} if measure == "against_average" else {})
            for name, colour in shown.items():
                means = []
                for place, ending in enumerate(SETTINGS):
                    own = [r for r in rows if r["method"] == name and setting(r["federation"])[1] == ending]
                    values = [row[measure] for row in own if measure in row]
                    axes.plot([place] * len(values), values, "o", ms=4, alpha=0.4, mew=0, color=colour)
                    means.append(fmean(values) if values else float("nan"))
                axes.plot(range(len(means)), means, lw=2, color=colour, label=name)
            if measure == "against_average":
                axes.axhline(0, color="#222222", lw=1)
                axes.legend(frameon=False)
            axes.set_xticks(range(len(SETTINGS)), list(SETTINGS.values()))
            axes.set_xlabel("validation samples")
            axes.set_ylabel(label)
    return figure
