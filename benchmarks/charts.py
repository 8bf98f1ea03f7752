"""The recorded figures as pictures in docs/benchmarks: of each benchmark the newest record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

Record = dict[str, Any]

BLUE, ORANGE, GREEN, GREY, FAINT = "#0072B2", "#D68A00", "#009E73", "#858585", "#E4E4E4"


def draw_all(records: Path, folder: Path) -> None:
    """One picture per benchmark that has a chart and a record."""
    newest = {record["benchmark"]: record for record in map(json.loads, records.read_text().splitlines())}
    folder.mkdir(parents=True, exist_ok=True)
    for name, draw in CHARTS.items():
        if name in newest:
            path = folder / f"{name}.png"
            figure = draw(newest[name])
            FigureCanvasAgg(figure).print_png(str(path), metadata={"Software": None})
            print(path)


def round_chart(record: Record) -> Figure:
    """A round: its arithmetic, the bare loop, the train stage, the per-client loop."""
    f = record["figures"]
    bars = {
        "per-client loop": (f["per_client_loop_ms"], GREY),
        "train stage, everything on": (f["stage_ms"], BLUE),
        "bare fused loop": (f["bare_fused_loop_ms"], GREY),
        "its arithmetic alone, at the rate of a large product": (f["floor_ms"], GREY),
    }
    return _bars(
        record, bars, "milliseconds per round", "Cost of a round (primal_dual, LeNet-5, digits, 10 clients x 32)"
    )


def rivals_chart(record: Record) -> Figure:
    """LR-MNIST: seconds of training."""
    f = record["figures"]
    names = {"ours": "ours", "pfl": "pfl 0.6.0", "flwr": "Flower 1.41.0"}
    bars = {
        label: (f[f"{name}_s"], BLUE if name == "ours" else GREY)
        for name, label in reversed(names.items())
        if f"{name}_s" in f
    }
    return _bars(record, bars, "seconds of training", "LR-MNIST, federated averaging, 100 rounds")


def scaling_chart(record: Record) -> Figure:
    """A panel per curve: cost against what varies, relative to the first point; dashed = in proportion."""
    panels = {
        "clients": "all clients N, 10 active",
        "active": "active clients n, of 100",
        "dimension": "parameters d of the model",
        "inner": "inner steps K (primal_dual)",
        "local": "local steps K (fedavg)",
    }
    figure, axes = _figure(record, "Cost of a round against the size of things", (11.5, 3.1), len(panels))
    for ax, (curve, label) in zip(axes, panels.items(), strict=True):
        found = _curve(record, curve, "ratio")
        xs = sorted(found)
        ax.plot(xs, [x / xs[0] for x in xs], "--", color=GREY, linewidth=1)
        ax.plot(xs, [found[x] for x in xs], "o-", color=BLUE, markersize=4)
        ax.set_xscale("log")
        ax.set_yscale("log", base=2)
        ax.set_ylim(0.5, max(2.0, 1.5 * max(found.values())))
        ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        _label(ax, xs, label)
        first = _curve(record, curve, "ms")[xs[0]]
        ax.text(0.96, 0.04, f"1 = {first:.3g} ms", transform=ax.transAxes, fontsize=8, color="#555555", ha="right")
    axes[0].set_ylabel("time per round, relative\nto the first point")
    return figure


def memory_chart(record: Record) -> Figure:
    """Two panels: against all clients and against active ones."""
    figure, (left, right) = _figure(record, "Most memory of a run beyond libraries and data", (8.0, 3.2), 2)
    curves = {"remembered": ("estimator: memory (2 N d numbers kept)", ORANGE), "clients": ("normalised", BLUE)}
    for curve, (label, colour) in curves.items():
        found = _curve(record, curve, "mib")
        left.plot(sorted(found), [found[x] for x in sorted(found)], "o-", color=colour, markersize=4, label=label)
    active = _curve(record, "active", "mib")
    right.plot(sorted(active), [active[x] for x in sorted(active)], "o-", color=BLUE, markersize=4)
    for ax, xs, label in (
        (left, sorted(_curve(record, "clients", "mib")), "all clients N, 10 active"),
        (right, sorted(active), "active clients n, of 100"),
    ):
        ax.set_xscale("log")
        ax.set_ylim(bottom=0)
        _label(ax, xs, label)
    left.set_ylim(top=1.25 * left.get_ylim()[1])  # room for the legend
    left.set_ylabel("MiB")
    left.legend(frameon=False, fontsize=8, loc="upper left")
    return figure


CHARTS = {"round": round_chart, "scaling": scaling_chart, "memory": memory_chart, "rivals": rivals_chart}


def _curve(record: Record, curve: str, kind: str) -> dict[int, float]:
    """Value on the horizontal axis -> figure."""
    names = {name: name.split("_") for name in record["figures"] if name.startswith(f"{curve}_")}
    return {int(parts[1]): record["figures"][name] for name, parts in names.items() if parts[2] == kind}


def _figure(record: Record, title: str, size: tuple[float, float], panels: int) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=size, dpi=150, layout="constrained")
    axes = list(figure.subplots(1, panels, squeeze=False)[0])
    device = record.get("device", "cpu")
    threads = "one thread" if record["threads"] == 1 else f"{record['threads']} threads"
    where = f"{threads} of {record['processor']}" if device == "cpu" else device
    figure.suptitle(f"{title}\n{where}, {record['date']}, commit {record['commit']}", fontsize=10, x=0.01, ha="left")
    for ax in axes:
        ax.grid(color=FAINT)
        ax.set_axisbelow(True)
        ax.spines[["top", "right"]].set_visible(False)
        ax.tick_params(labelsize=8)
    return figure, axes


def _label(ax: Axes, xs: list[int], label: str) -> None:
    ax.set_xlabel(label, fontsize=9)
    ax.xaxis.set_major_locator(FixedLocator(xs))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))


def _short(value: float) -> str:
    return f"{value / 1000:.3g}k" if value >= 1000 else f"{value:.0f}"


def _bars(record: Record, bars: dict[str, tuple[float, str]], unit: str, title: str) -> Figure:
    figure, (ax,) = _figure(record, title, (8.0, 0.6 + 0.55 * len(bars)), 1)
    values = [value for value, _ in bars.values()]
    ax.barh(list(bars), values, color=[colour for _, colour in bars.values()], height=0.6)
    for place, value in enumerate(values):
        ax.text(value + 0.01 * max(values), place, f"{value:.3g}", va="center", fontsize=9)
    ax.set_xlim(0, 1.1 * max(values))
    ax.set_xlabel(unit, fontsize=9)
    ax.grid(axis="y", visible=False)
    return figure
