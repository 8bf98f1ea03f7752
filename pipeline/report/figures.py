"""The pictures of a run. Each function turns data into a Figure; `save` writes it.

Clean clients, and clients of which nothing is known, have strong colours that colour-blind readers can distinguish
(Okabe and Ito), the others muted ones. No pyplot: figures are plain objects, nothing global is touched.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator, PercentFormatter

from pipeline.report.clients import UNKNOWN, Clients
from pipeline.text import clipped, short_labels

CLEAN = ("#0072B2", "#D68A00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#6A51A3", "#8C6D1F")
BAD = {
    "noisy": "#858585",
    "flipped": "#B5737A",
    "shuffled": "#A98B73",
    "duplicate": "#8795A8",
    "small": "#B9B49A",
}
EVALUATED = {
    "test_accuracy": "Test accuracy",
    "test_r2": "Test R2",
    "validation_loss": "Validation loss",
    "upper_value": "Upper value f_0(w*(x))",
    "stationarity": "Stationarity",
}
"""Columns of the history with a picture each."""
MANY = 100
LINES = ("-", "--", ":")
_TRUSTED = ("clean", UNKNOWN)
_COMPACT: dict[str, Any] = {"fontsize": 10, "columnspacing": 1.0, "handlelength": 1.2}
INK, FAINT = "#222222", "#E4E4E4"

_STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 11,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.titlesize": 14,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 12,
    "axes.edgecolor": "#888888",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "xtick.color": "#555555",
    "ytick.color": "#555555",
    "legend.frameon": False,
    "lines.linewidth": 2.0,
    "lines.solid_capstyle": "round",
}


def canvas_style() -> AbstractContextManager[None]:
    """The look of all pictures, for drawing inside a `with`."""
    return mpl.rc_context(_STYLE)


def save(figure: Figure, path: Path) -> None:
    """As PNG, whole or not at all; equal figures give equal files."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    with canvas_style(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # of a script that the font lacks: a box instead
        figure.savefig(partial, format="png", dpi=150, facecolor="white", metadata={"Software": None})
    os.replace(partial, path)


def weights_over_rounds(
    rounds: np.ndarray, weights: np.ndarray, clients: Clients, size: tuple[float, float] = (9, 5)
) -> Figure:
    """rounds [R], weights [R, N]; oracle weights as dashed levels. Of more than 100 clients: the spread. size: in
    inches."""
    rounds, weights = np.asarray(rounds), np.asarray(weights)
    small, dashed = size[0] < 7, clients.oracle is not None and bool(clients.clean.any()) and len(clients) <= MANY
    title = "Over rounds" + " (dashed: oracle weights)" * dashed if small else "Learned client weights over rounds"
    figure, axes = canvas(*size, title)
    with canvas_style():
        draw = _bands if len(clients) > MANY else _curves
        labels = draw(axes, rounds, weights, clients)
        top = float(np.nanmax(weights, initial=1e-3))
        if clients.oracle is not None and dashed:
            clean, colours = np.flatnonzero(clients.clean).tolist(), colours_of(clients.kinds)
            for i in clean:
                level = float(clients.oracle[i])
                axes.axhline(level, color=colours[i], ls=(0, (5, 4)), lw=1.2, alpha=0.8, zorder=1)
                top = max(top, level)
            if not small:
                sample = Line2D([], [], color="#555555", ls=(0, (5, 4)), lw=1.2, label="oracle weight")
                axes.legend(handles=[sample], loc="lower right", bbox_to_anchor=(1, 1))
        axes.set(xlabel="round", ylabel="weight", ylim=(-0.02 * top, 1.06 * top))
        axes.set_xlim(rounds[0], max(rounds[-1], rounds[0] + 1))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6 if small else "auto"))
        _label_ends(axes, labels)
    return figure


def final_weights(clients: Clients) -> Figure:
    """One bar per client with the oracle's mark and the interval; of more than 100 clients, sorted and without
    names."""
    weights, oracle, interval, count = np.asarray(clients.weights), clients.oracle, clients.interval, len(clients)
    tips = weights if interval is None else np.maximum(weights, interval[1])
    figure, axes = canvas(9, 5, "Final client weights")
    with canvas_style():
        order = np.arange(count) if count <= MANY else np.argsort(-weights, kind="stable")
        colours = [colours_of(clients.kinds)[i] for i in order]
        x = np.arange(count)
        axes.bar(x, weights[order], color=colours, width=0.72 if count <= MANY else 1.0)
        top = float(max(tips.max(), 0 if oracle is None else np.max(oracle), 1e-3))
        handles: list[Patch | Line2D] = _kind_patches(clients.kinds)
        if oracle is not None:
            axes.hlines(np.asarray(oracle)[order], x - 0.44, x + 0.44, color=INK, lw=2.2, zorder=3)
            handles.append(Line2D([], [], color=INK, lw=2.2, label="oracle weight"))
        if interval is not None:
            reach = np.clip(np.stack([weights - interval[0], interval[1] - weights]), 0, None)[:, order]
            axes.errorbar(x, weights[order], yerr=reach, fmt="none", ecolor="#555555", elinewidth=1.4, capsize=3)
            handles.append(Line2D([], [], color="#555555", lw=1.4, label="90 % interval"))
        if count <= 20:
            for i in range(count):
                above = max(tips[i], oracle[i] if oracle is not None and oracle[i] - weights[i] < 0.06 * top else 0)
                place: dict[str, Any] = {"textcoords": "offset points", "ha": "center", "fontsize": 10}
                axes.annotate(f"{weights[i]:.3f}", (i, above), (0, 4), **place)
            _name_bars(axes, clients)
        else:
            axes.set_xlabel("client" if count <= MANY else "clients, by weight")
        axes.set(ylabel="weight", ylim=(0, 1.12 * top), xlim=(-0.6, count - 0.4))
        axes.grid(visible=False, axis="x")
        if handles:
            spot: dict[str, Any] = {"loc": "lower right", "bbox_to_anchor": (1, 1), "ncols": min(4, len(handles))}
            axes.legend(handles=handles, **spot, **_COMPACT)
    return figure


def accuracy_and_loss(rounds: np.ndarray, test_accuracy: np.ndarray, validation_loss: np.ndarray) -> Figure:
    """Two panels over the same rounds; nan (no evaluation in that round) is skipped."""
    return _side_by_side(rounds, {"test_accuracy": test_accuracy, "validation_loss": validation_loss})


def r2_and_loss(rounds: np.ndarray, r2: np.ndarray, validation_loss: np.ndarray) -> Figure:
    """Likewise where targets are numbers."""
    return _side_by_side(rounds, {"test_r2": r2, "validation_loss": validation_loss})


def value_and_stationarity(rounds: np.ndarray, value: np.ndarray, stationarity: np.ndarray) -> Figure:
    """Likewise of the toy problem."""
    return _side_by_side(rounds, {"upper_value": value, "stationarity": stationarity})


def over_rounds(rounds: np.ndarray, values: np.ndarray, name: str, size: tuple[float, float]) -> Figure:
    """One of these panels alone. name: of `EVALUATED`; size: in inches."""
    with canvas_style():
        figure = new_figure(*size)
        _panel(figure.subplots(), rounds, values, name)
    return figure


def compared(
    lines: Mapping[str, tuple[np.ndarray, np.ndarray]], name: str, title: str, size: tuple[float, float]
) -> Figure:
    """A line per label, (rounds, values), with a legend below. name: of `EVALUATED`; size: in inches."""
    with canvas_style():
        figure = new_figure(*size)
        axes = figure.subplots()
        for k, (label, (rounds, values)) in enumerate(lines.items()):
            look: dict[str, Any] = {"color": CLEAN[k % len(CLEAN)], "ls": LINES[k // len(CLEAN) % len(LINES)]}
            axes.plot(rounds, values, label=plain(label, 40), **look)
        axes.set(xlabel="round", title=title)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
        if name == "test_accuracy":
            axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        elif all((values > 0).all() for _, values in lines.values()):
            axes.set_yscale("log")
        if len(lines) > 1:
            figure.legend(loc="outside lower left", ncols=2, **_COMPACT)
    return figure


def _side_by_side(rounds: np.ndarray, columns: Mapping[str, np.ndarray]) -> Figure:
    with canvas_style():
        figure = new_figure(9, 4.2)
        for axes, (name, values) in zip(figure.subplots(1, len(columns)), columns.items(), strict=True):
            _panel(axes, rounds, values, name)
    return figure


def _panel(axes: Axes, rounds: np.ndarray, values: np.ndarray, name: str) -> None:
    rounds, values = np.asarray(rounds, dtype=float), np.asarray(values, dtype=float)
    there = np.isfinite(values)
    rounds, values = rounds[there], values[there]
    share, colour = name == "test_accuracy", CLEAN[0] if name in ("test_accuracy", "upper_value") else CLEAN[5]
    axes.set(xlabel="round", title=EVALUATED[name])
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    axes.plot(rounds, values, color=colour, marker="o" if len(rounds) <= 50 else "", ms=3.5)
    if share:
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    if len(values):
        text = f"{100 * values[-1]:.2f} %" if share else f"{values[-1]:.4g}"
        style: dict[str, Any] = {"ha": "right", "color": colour, "weight": "bold", "textcoords": "offset points"}
        axes.annotate(text, (rounds[-1], values[-1]), (-4, -16 if share else 9), **style)
        spread = values.max() > 30 * values.min()
        if not share and values.min() > 0 and (spread or name == "stationarity"):
            axes.set_yscale("log")


# --------------------------------------------------------------------------------------------- parts


def new_figure(width: float, height: float) -> Figure:
    """Inches; with some air around."""
    figure = Figure(figsize=(width, height), layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.12))
    FigureCanvasAgg(figure)
    return figure


def plain(name: str, length: int = 24) -> str:
    """A name as it is, for a label: a pair of dollar signs would mean a formula."""
    return clipped(name, length).replace("$", r"\$")


def _name_bars(axes: Axes, clients: Clients) -> None:
    room = 90 // len(clients)
    shown = [plain(name, 18) if clients.named else str(i) for i, name in enumerate(clients.names)]
    tilted = max(map(len, shown)) > room
    words = clients.held if clients.classes else short_labels
    held = [plain(words(labels), room) for labels in clients.labels]
    ticks = shown if tilted else [f"{name}\n{labels}" for name, labels in zip(shown, held, strict=True)]
    turned: dict[str, Any] = {"rotation": 30, "ha": "right", "rotation_mode": "anchor"} if tilted else {}
    axes.set_xticks(range(len(clients)), ticks, **turned)
    axes.set_xlabel("client, and the labels it holds" if any(clients.labels) and not tilted else "client")


def canvas(width: float, height: float, title: str) -> tuple[Figure, Axes]:
    with canvas_style():
        figure = new_figure(width, height)
        axes = figure.subplots()
        axes.set_title(title)
    return figure, axes


def _own(kinds: Sequence[str]) -> dict[int, int]:
    """Client -> rank, of the clean and unknown clients that have a look each, for they are few."""
    trusted = [i for i, kind in enumerate(kinds) if kind in _TRUSTED]
    most = len(CLEAN) if "clean" in kinds else len(CLEAN) * 2
    return {i: rank for rank, i in enumerate(trusted)} if len(trusted) <= most else {}


def colours_of(kinds: Sequence[str]) -> list[str]:
    """One per client: its own for each of few clean ones, one for all of many, the kind's for the others."""
    own = _own(kinds)
    usual = {**dict.fromkeys(_TRUSTED, CLEAN[0]), **BAD}
    return [CLEAN[own[i] % len(CLEAN)] if i in own else usual.get(k, BAD["noisy"]) for i, k in enumerate(kinds)]


def _kind_patches(kinds: Sequence[str]) -> list[Patch | Line2D]:
    """Legend of kinds; clients that have a colour each need no entry."""
    colours = dict(zip(reversed(kinds), reversed(colours_of(kinds)), strict=True))
    few = bool(_own(kinds))
    names = [kind for kind in dict.fromkeys(kinds) if not (few and kind in _TRUSTED)]
    patches: list[Patch | Line2D] = [Patch(color=colours[k], label=f"{k} ({list(kinds).count(k)})") for k in names]
    if few and "clean" in kinds:
        patches.insert(0, Patch(color=CLEAN[0], label="clean (in colour)"))
    return patches


Label = tuple[float, str, str]
"""Height, text, colour."""


def _curves(axes: Axes, rounds: np.ndarray, weights: np.ndarray, clients: Clients) -> list[Label]:
    kinds, colours, own = clients.kinds, colours_of(clients.kinds), _own(clients.kinds)
    trusted = [i for i, kind in enumerate(kinds) if kind in _TRUSTED]
    for i in sorted(range(len(kinds)), key=lambda i: i in trusted):  # these on top
        axes.plot(
            rounds,
            weights[:, i],
            color=colours[i],
            ls=LINES[own[i] // len(CLEAN)] if i in own else "-",
            lw=2.4 if i in own else 1.2,
            alpha=1.0 if i in own else 0.75,
            zorder=3 if i in trusted else 2,
        )
    last = weights[-1]
    labels = [(float(last[i]), f"{plain(clients.names[i], 18)}   {last[i]:.3f}", colours[i]) for i in own]
    for kind in dict.fromkeys(kinds):
        held = last[[i for i, k in enumerate(kinds) if k == kind]]
        if kind not in _TRUSTED:
            labels.append((float(held.mean()), f"{len(held)} {kind}   ≤ {held.max():.3f}", BAD.get(kind, BAD["noisy"])))
        elif not own:
            labels.append((float(held.mean()), f"{len(held)} {kind} clients".replace(" unknown", ""), CLEAN[0]))
    return labels


def _bands(axes: Axes, rounds: np.ndarray, weights: np.ndarray, clients: Clients) -> list[Label]:
    """Median and quantiles of the clean clients and of the others."""
    clean = clients.clean if clients.known else np.ones(len(clients), dtype=bool)
    labels = []
    for mask, name, colour in ((~clean, "other ", "#8A8A8A"), (clean, "clean " if clients.known else "", CLEAN[0])):
        if not mask.any():
            continue
        low, q1, middle, q3, high = np.quantile(weights[:, mask], [0.05, 0.25, 0.5, 0.75, 0.95], axis=1)
        axes.fill_between(rounds, low, high, color=colour, alpha=0.15, lw=0)
        axes.fill_between(rounds, q1, q3, color=colour, alpha=0.3, lw=0)
        axes.plot(rounds, middle, color=colour)
        labels.append((float(middle[-1]), f"{mask.sum()} {name}clients", colour))
    note = "line: median; bands: middle 50 % and 90 %"
    axes.text(0.99, 0.97, note, transform=axes.transAxes, ha="right", va="top", fontsize=9)
    return labels


def _label_ends(axes: Axes, labels: Sequence[Label]) -> None:
    """Names at the right end of the curves, pushed apart where they would overlap."""
    low, high = axes.get_ylim()
    gap = 0.055 * (high - low)
    place = -np.inf
    for height, text, colour in sorted(labels):
        place = max(height, place + gap)
        axes.annotate(
            text,
            (1.0, place),
            (8, 0),
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            va="center",
            color=colour,
            weight="bold",
            fontsize=10,
            annotation_clip=False,
        )
