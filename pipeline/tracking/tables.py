"""The result as a person reads it in the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_SHOWN = 20
"""Up to so many clients are all shown; of more, the heaviest and the lightest halves of that number."""


def headline(metrics: Mapping[str, Any]) -> str:
    """Accuracy and, for learned weights, how well they tell good clients from bad."""
    parts = [f"test accuracy {100 * metrics['test_accuracy']:.2f} %", f"test loss {metrics['test_loss']:.4f}"]
    if metrics.get("selection_accuracy") is not None:
        parts.append(f"selection accuracy {100 * metrics['selection_accuracy']:.2f} %")
    lines = [f"{metrics['algorithm']} on {metrics['dataset']}: " + ", ".join(parts)]
    if metrics.get("clean_weight") is not None:
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


def aligned(rows: Sequence[Sequence[str]], left: Sequence[int] = ()) -> str:
    """Columns of text; numbers to the right, the columns in `left` to the left. A rule under the head."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            cell.ljust(width) if j in left else cell.rjust(width)
            for j, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])


def short_labels(labels: Sequence[int]) -> str:
    """0 1 2 3 7 -> "0-3 7"."""
    runs: list[list[int]] = []
    for label in sorted(labels):
        if runs and label == runs[-1][1] + 1:
            runs[-1][1] = label
        else:
            runs.append([label, label])
    return " ".join(str(a) if a == b else f"{a} {b}" if b == a + 1 else f"{a}-{b}" for a, b in runs)
