"""The result as a person reads it in the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pipeline.text import aligned, short_labels

_SHOWN = 20
"""Clients shown at most; of more, the heaviest and the lightest, half of that number each."""


def headline(metrics: Mapping[str, Any]) -> str:
    """Accuracy and, for learned weights, how well they separate good clients from bad."""
    parts = [f"test accuracy {100 * metrics['test_accuracy']:.2f} %", f"test loss {metrics['test_loss']:.4f}"]
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


def client_table(
    kinds: Sequence[str],
    labels: Sequence[Sequence[int]],
    samples: Sequence[int],
    weights: Sequence[float],
    oracle: Sequence[float] | None = None,
    interval: np.ndarray | None = None,
) -> str:
    """One aligned line per client. interval: lower and upper ends of the weights, [2, N]."""
    clients = range(len(kinds))
    shown: list[int | None] = list(clients)
    if len(kinds) > _SHOWN:
        ranked = sorted(clients, key=lambda i: -weights[i])
        shown = [*ranked[: _SHOWN // 2], None, *ranked[-_SHOWN // 2 :]]
    rows = [["client", "kind", "labels", "samples", "weight", "interval", "oracle"]]
    for i in shown:
        if i is None:
            rows.append(["...", f"{len(kinds) - _SHOWN} more", "", "", "", "", ""])
            continue
        level = "" if oracle is None else f"{oracle[i]:.4f}"
        ends = "" if interval is None else f"{interval[0, i]:.4f} to {interval[1, i]:.4f}"
        rows.append([str(i), kinds[i], short_labels(labels[i]), str(samples[i]), f"{weights[i]:.4f}", ends, level])
    absent = [name for name, found in (("interval", interval), ("oracle", oracle)) if found is None]
    kept = [j for j, name in enumerate(rows[0]) if name not in absent]
    return aligned([[row[j] for j in kept] for row in rows], left=(1, 2))


def suspects_line(suspects: Sequence[int], *, sure: bool) -> str:
    """Who holds too little to be trusted; empty if there is none. sure: by the intervals, not by the weights alone."""
    if not suspects:
        return ""
    named = ("client " if len(suspects) == 1 else "clients ") + ", ".join(map(str, suspects[:_SHOWN]))
    if len(suspects) > _SHOWN:
        named += f" and {len(suspects) - _SHOWN} more"
    if sure:
        return f"suspicious: {named} (weight surely below half of an equal share)"
    return f"below half of an equal share: {named}"
