"""The result as a person reads it in the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.text import aligned, short_labels

_SHOWN = 20
"""Up to so many clients are all shown; of more, the heaviest and the lightest halves of that number."""


def headline(metrics: Mapping[str, Any]) -> str:
    """Accuracy and, for learned weights, how well they tell good clients from bad."""
    parts = [f"test accuracy {100 * metrics['test_accuracy']:.2f} %", f"test loss {metrics['test_loss']:.4f}"]
    if metrics.get("selection_accuracy") is not None:
        parts.append(f"selection accuracy {100 * metrics['selection_accuracy']:.2f} %")
    lines = [f"{metrics['algorithm']} on {metrics['dataset']}: " + ", ".join(parts)]
    if "detection_auc" in metrics:  # somebody is bad
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
) -> str:
    """One aligned line per client."""
    clients = range(len(kinds))
    shown: list[int | None] = list(clients)
    if len(kinds) > _SHOWN:
        ranked = sorted(clients, key=lambda i: -weights[i])
        shown = [*ranked[: _SHOWN // 2], None, *ranked[-_SHOWN // 2 :]]
    rows = [["client", "kind", "labels", "samples", "weight", "oracle"]]
    for i in shown:
        if i is None:
            rows.append(["...", f"{len(kinds) - _SHOWN} more", "", "", "", ""])
            continue
        level = "" if oracle is None else f"{oracle[i]:.4f}"
        rows.append([str(i), kinds[i], short_labels(labels[i]), str(samples[i]), f"{weights[i]:.4f}", level])
    if oracle is None:
        rows = [row[:-1] for row in rows]
    return aligned(rows, left=(1, 2))
