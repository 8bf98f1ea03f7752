"""The paper's figures, from the cells."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from experiments.cells import Cell, read
from experiments.primal_dual_weighting.tables import rows_of
from experiments.primal_dual_weighting.toy import METHODS, SETTINGS, Label
from experiments.report import save_picture
from pipeline.report.figures import canvas_style, new_figure

BASELINES = ("afl", "average", "validation_only", "oracle_weights")
COLOURS = {
    "primal_dual": "#0072B2",
    "primal_dual, as printed": "#56B4E9",
    "rfho": "#009E73",
    "fednest": "#E69F00",
    "sustain": "#D55E00",
    "afl": "#8C6D1F",
    "average": "#999999",
    "validation_only": "#CC79A7",
    "oracle_weights": "#222222",
    "exact_gradient": "#222222",
}
VARIANTS = (":", "-.", (0, (9, 3)), (0, (1, 4)))
"""Line styles of the rows that vary a method, one after another; their colour is the method's."""


def accuracy(cells: Sequence[Cell], results: Path, title: str) -> Figure | None:
    """Figures 3 and 4: test accuracy over rounds, a panel per participation, mean over the seeds that were run. None
    without any."""
    participations = sorted({cell.participation for cell in cells if read(cell, results)}, reverse=True)
    if not participations:
        return None
    with canvas_style():
        figure = new_figure(4.6 * len(participations) + 1.6, 4.4)
        panels = figure.subplots(1, len(participations), sharey=True, squeeze=False)[0]
        figure.suptitle(title, x=0.02, ha="left", fontsize=14, fontweight="bold")
        tops = []
        for panel, participation in zip(panels, participations, strict=True):
            for row in rows_of(cells):
                own = [c for c in cells if (c.row, c.participation) == (row, participation)]
                curves = [found["curve"] for c in own if (found := read(c, results)) and "curve" in found]
                if not curves:
                    continue
                mean = 100 * np.mean([curve["test_accuracy"] for curve in curves], axis=0)
                lead = row == "primal_dual"
                panel.plot(
                    curves[0]["round"],
                    mean,
                    color=COLOURS.get(row) or COLOURS[row.split(",")[0]],
                    ls=_line(row, rows_of(cells)),
                    lw=2.6 if lead else 1.5,
                    label=row,
                    zorder=5 if lead else 3,
                )
                tops.append(float(mean.max()))
            panel.set(xlabel="round", title=f"participation {participation:g}")
        if not tops:
            return None
        best = max(tops)
        panels[0].set(ylabel="test accuracy %", ylim=(max(0.0, best - 14), best + 0.7))
        shown = {label: handle for p in panels for handle, label in zip(*p.get_legend_handles_labels(), strict=True)}
        order_of = [row for row in rows_of(cells) if row in shown]
        figure.legend([shown[row] for row in order_of], order_of, loc="outside right center", fontsize=9)
    return figure


def _line(row: str, rows: Sequence[str]) -> Any:
    """Baselines are dashed, other methods solid; variants of one method differ."""
    if row in COLOURS:
        return "--" if row in BASELINES else "-"
    method = row.split(",")[0]
    others = [other for other in rows if other not in COLOURS and other.split(",")[0] == method]
    return VARIANTS[others.index(row) % len(VARIANTS)]


def toy(cells: Sequence[Cell], results: Path) -> Figure | None:
    """Figures 1 and 2: value above, stationarity below, a column per setting and K that was run, the smallest eta_x.
    Bands: 0.1 standard error of the value, 0.5 of the stationarity, as in the paper. None without any run."""
    labels_of = {Label.of(cell): cell for cell in cells}
    inner, eta_x = sorted({label.K for label in labels_of}), min(label.eta_x for label in labels_of)
    run = {(label.setting, label.K) for label, cell in labels_of.items() if read(cell, results)}
    columns = [(setting, K) for setting in SETTINGS for K in inner if (setting, K) in run]
    if not columns:
        return None
    with canvas_style():
        figure = new_figure(3.1 * len(columns) + 1.4, 6.4)
        axes = figure.subplots(2, len(columns), squeeze=False, sharex=True)
        for j, (setting, K) in enumerate(columns):
            for method in METHODS:
                cell = labels_of.get(Label(setting, method, K, eta_x))
                found = read(cell, results) if cell else None
                if found is None:
                    continue
                for panel, name, share in zip(axes[:, j], ("upper_value", "stationarity"), (0.1, 0.5), strict=True):
                    values = np.array(found[name], dtype=float)
                    mean, error = values.mean(0), values.std(0) / np.sqrt(len(values)) * share
                    panel.plot(found["round"], mean, color=COLOURS[method], lw=1.7, label=method)
                    panel.fill_between(
                        found["round"], mean - error, mean + error, color=COLOURS[method], alpha=0.2, lw=0
                    )
            axes[0, j].set_title(f"{setting}, K = {K}", fontsize=11)
            axes[1, j].set(xlabel="round", yscale="log")
        axes[0, 0].set_ylabel("f_0(w*(x))")
        axes[1, 0].set_ylabel("stationarity")
        handles, labels = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside right center", fontsize=9)
    return figure


def save_if_any(figure: Figure | None, path: Path) -> bool:
    """As PNG; False if there is nothing to draw."""
    if figure is not None:
        save_picture(figure, path)
    return figure is not None
