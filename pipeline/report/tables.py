"""Results in rows and columns: for the terminal, and for pages on the web."""

from __future__ import annotations

import statistics
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

from pipeline.report.clients import UNKNOWN, Clients
from pipeline.text import aligned, clipped, short_labels

_SHOWN = 20
"""Clients shown at most; of more, the heaviest and the lightest, half of that number each."""


def headline(metrics: Mapping[str, Any]) -> str:
    """Accuracy and, for learned weights, how well they separate good clients from bad."""
    if "test_rmse" in metrics:
        parts = [f"test RMSE {metrics['test_rmse']:.6g}", f"R2 {metrics['test_r2']:.4f}"]
    else:
        parts = [f"test accuracy {100 * metrics['test_accuracy']:.2f} %", f"test loss {metrics['test_loss']:.4f}"]
    if metrics.get("selection_r2") is not None:
        parts.append(f"selection R2 {metrics['selection_r2']:.4f}")
    if metrics.get("selection_accuracy") is not None:
        parts.append(f"selection accuracy {100 * metrics['selection_accuracy']:.2f} %")
    lines = [f"{metrics['algorithm']} on {metrics['dataset']}: " + ", ".join(parts)]
    if "detection_auc" in metrics:  # some client is bad
        lines.append(
            f"clean clients hold {metrics['clean_weight']:.4f} of the weight, no bad client more"
            f" than {metrics['max_noise_weight']:.4f}; distance to the oracle weights"
            f" {metrics['weight_error']:.4f}"
        )
    return "\n".join(lines)


def client_table(clients: Clients) -> str:
    """One aligned line per client."""
    weights = clients.weights
    shown: list[int | None] = list(range(len(clients)))
    if len(clients) > _SHOWN:
        ranked = sorted(range(len(clients)), key=lambda i: -weights[i])
        shown = [*ranked[: _SHOWN // 2], None, *ranked[-_SHOWN // 2 :]]
    rows = [["client", "kind", "labels", "samples", "weight", "interval", "oracle"]]
    for i in shown:
        if i is None:
            rows.append(["...", f"{len(clients) - _SHOWN} more", "", "", "", "", ""])
            continue
        name = clipped(clients.names[i], 40) if clients.named else str(i)
        level = "" if clients.oracle is None else f"{clients.oracle[i]:.4f}"
        ends = "" if clients.interval is None else f"{clients.interval[0, i]:.4f} to {clients.interval[1, i]:.4f}"
        held = short_labels(clients.labels[i])
        if clients.classes:
            held = words if len(words := clients.held(clients.labels[i])) <= 40 else f"{len(clients.labels[i])} classes"
        size = str(clients.samples[i])
        rows.append([name, clients.kinds[i], held, size, f"{weights[i]:.4f}", ends, level])
    says = {"interval": clients.interval is not None, "oracle": clients.oracle is not None}
    says |= {"kind": set(clients.kinds) != {UNKNOWN}, "labels": any(clients.labels)}
    kept = [j for j, name in enumerate(rows[0]) if says.get(name, True)]
    texts = {"kind", "labels"} | ({"client"} if clients.named else set())
    left = [place for place, j in enumerate(kept) if rows[0][j] in texts]
    return aligned([[row[j] for j in kept] for row in rows], left)


def suspects_lines(clients: Clients) -> list[str]:
    """Who holds too little, those first with whose labels the model disagrees; empty if there is none."""
    suspects, sure = clients.suspects, "surely " if clients.interval is not None else ""
    others = [i for i in clients.light if i not in suspects]
    lines = []
    if suspects:
        labels = "its labels" if len(suspects) == 1 else "their labels"
        why = f"weight {sure}below half of an equal share, and the model disagrees with {labels}"
        lines.append(f"suspicious: {_named(clients, suspects)} ({why})")
    if others:
        why = "" if clients.disagrees is None else " (the model agrees with the labels: no evidence of bad data)"
        lines.append(f"{sure}below half of an equal share: {_named(clients, others)}{why}")
    return lines


def _named(clients: Clients, which: Sequence[int]) -> str:
    listed = ", ".join((clients.names[i] if clients.named else str(i)) for i in which[:_SHOWN])
    named = listed if clients.named else ("client " if len(which) == 1 else "clients ") + listed
    return f"{named} and {len(which) - _SHOWN} more" if len(which) > _SHOWN else named


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]], right: Container[str] = ()) -> str:
    """A table for a page on the web. right: columns that are set to the right."""
    rule = "".join("--:|" if name in right else "--|" for name in head)
    lines = [f"| {' | '.join(head)} |", f"|{rule}", *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join(lines)


def spread(values: Sequence[float]) -> str:
    """Mean ± standard deviation; "-" without any."""
    if not values:
        return "-"
    mean = f"{statistics.fmean(values):.4g}"
    return f"{mean} ± {statistics.stdev(values):.2g}" if len(values) > 1 else mean


def accuracy(percent: float | None, deviation: float | None, diverged: int) -> str:
    """A mean accuracy with its standard deviation, and how many runs diverged. percent: None without a finished run."""
    if percent is None:
        return "diverged" if diverged else "not run"
    text = f"{percent:.2f}" + ("" if deviation is None else f" ± {deviation:.2f}")
    return text + (f" ({diverged} diverged)" if diverged else "")
