"""Pictures of tables: who holds what, and what is taken for what."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from pipeline.report.clients import Clients
from pipeline.report.figures import INK, MANY, canvas, canvas_style, colours_of, plain


def partition_heatmap(label_counts: np.ndarray, clients: Clients) -> Figure:
    """Who holds what: samples of each label [N, C], clients downwards; of more than 100 labels those that some client
    holds, in the order of their first client."""
    counts = np.asarray(label_counts)
    ordered = counts.shape[1] > MANY
    if ordered:
        held = np.flatnonzero(counts.any(axis=0))
        counts = counts[:, held[np.argsort((counts[:, held] > 0).argmax(axis=0), kind="stable")]]
    (n, c), kinds = counts.shape, clients.kinds
    figure, axes = canvas(9, min(max(2.0 + 0.36 * n, 3.0), 11.0), "Training samples per client and label")
    with canvas_style():
        image = axes.imshow(np.ma.masked_equal(counts, 0), cmap="Blues", vmin=0, aspect="auto", interpolation="nearest")
        if n * c <= 400:
            for i, j in zip(*np.nonzero(counts), strict=True):
                dark = counts[i, j] > 0.55 * counts.max()
                axes.text(
                    j,
                    i,
                    f"{counts[i, j]:d}",
                    ha="center",
                    va="center",
                    fontsize=9,
                    color="white" if dark else INK,
                )
        else:
            figure.colorbar(image, ax=axes, label="samples", shrink=0.7, ticks=MaxNLocator(integer=True))
        axes.set_xlabel("labels, client after client" if ordered else "label")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=25 if c <= MANY else 12))
        if n <= 40:
            who = [f"{plain(name)}  ({kind})" for name, kind in zip(clients.names, kinds, strict=True)]
            axes.set_yticks(range(n), who)
            for tick, colour in zip(axes.get_yticklabels(), colours_of(kinds), strict=True):
                tick.set_color(colour if len(set(kinds)) > 1 else INK)
        else:
            axes.set_ylabel("client")
        _cells(axes, *counts.shape)
    return figure


def confusion_matrix(matrix: np.ndarray, what: str = "label") -> Figure:
    """matrix[true, predicted] in counts; colours are shares of each true class. what: is predicted."""
    counts = np.asarray(matrix)
    classes = len(counts)
    share = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    accuracy = np.trace(counts) / max(counts.sum(), 1)
    figure, axes = canvas(7.6, 6.6, f"Confusion matrix on the test set ({100 * accuracy:.2f} % right)")
    with canvas_style():
        image = axes.imshow(share, cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
        figure.colorbar(image, ax=axes, label="share of the true class", format=PercentFormatter(1.0, 0), shrink=0.8)
        if classes <= 20:
            for i in range(classes):
                for j in range(classes):
                    if counts[i, j]:
                        colour = "white" if share[i, j] > 0.55 else (INK if i == j else "#B3261E")
                        size = 10 if classes <= 12 else 7
                        axes.text(j, i, f"{counts[i, j]:d}", ha="center", va="center", color=colour, fontsize=size)
            axes.set_xticks(range(classes))
            axes.set_yticks(range(classes))
        axes.set(xlabel=f"predicted {what}", ylabel=f"true {what}")
        _cells(axes, classes, classes)
    return figure


def _cells(axes: Axes, rows: int, columns: int) -> None:
    """A matrix has no frame and no ticks, only thin lines between its cells, if they are large enough."""
    axes.grid(visible=False)
    axes.spines[["left", "bottom"]].set_visible(False)
    axes.tick_params(length=0)
    if rows <= 40 and columns <= 40:
        axes.hlines(np.arange(1, rows) - 0.5, -0.5, columns - 0.5, color="#D9DEE5", lw=0.8)
        axes.vlines(np.arange(1, columns) - 0.5, -0.5, rows - 0.5, color="#D9DEE5", lw=0.8)
