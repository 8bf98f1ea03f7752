"""What the page says of clients: weights, evidence, data."""

from __future__ import annotations

from typing import Any

import numpy as np

from pipeline.report.page.story import Story
from pipeline.report.page.words import counted, percent
from pipeline.text import short_labels

MOST = 40
"""Clients shown one by one; of more, the heaviest and the lightest, half of that number each."""
WIDEST = 20
"""Classes of a table with a column for each."""
WITHOUT = "test result without it"
"""Heading of a column."""


def weights(story: Story) -> dict[str, Any] | None:
    """The clients with their weights as bars; None of a method without weights."""
    clients = story.clients
    if not len(story.weights) or not clients.weights.any():
        return None
    n, interval, oracle = len(clients), clients.interval, clients.oracle
    order = np.argsort(-clients.weights, kind="stable").tolist() if story.ranked or n > MOST else list(range(n))
    shown = order if n <= MOST else [*order[: MOST // 2], *order[-MOST // 2 :]]
    top = max(clients.weights.max(), 1 / n, *([] if interval is None else [interval[1].max()]))
    top = float(max(top, 0 if oracle is None or not story.learned else oracle.max())) * 1.04
    rows = []
    for i in shown:
        ends = None if interval is None else (float(interval[0, i]), float(interval[1, i]))
        rows.append(
            {
                "name": clients.names[i],
                "kind": clients.kinds[i] if clients.known and len(set(clients.kinds)) > 1 else "",
                "meta": _meta(story, i),
                "suspect": i in story.suspects,
                "width": _place(clients.weights[i], top),
                "weight": f"{clients.weights[i]:.4f}",
                "interval": "" if ends is None else f"{ends[0]:.4f} to {ends[1]:.4f}",
                "range": None if ends is None else (_place(ends[0], top), _place(ends[1] - ends[0], top)),
                "oracle": None if oracle is None or not story.learned else _place(oracle[i], top),
            }
        )
    left_out = f"{n - len(shown):,} clients between these are in client_weights.csv." if len(shown) < n else ""
    return {
        "heading": "Whom the server trusts" if story.learned else f"Weights of the {story.who}s",
        "text": _weights_text(story),
        "rows": rows,
        "equal": _place(1 / n, top),
        "oracle": oracle is not None and story.learned,
        "interval": interval is not None,
        "left_out": left_out,
    }


def _weights_text(story: Story) -> str:
    if not story.learned:
        return "The method does not learn these weights: they are the same in every round."
    text = "Learned on the server's validation set. "
    if story.settled is False:
        text += (
            f"Not settled: train on. The {story.who}s stand in their own order, since a ranking would mean nothing yet."
        )
    else:
        text += f"The heaviest {story.who} comes first."
        text += f" A {story.who} in red is suspicious." if story.suspects else ""
    if story.clients.interval is None and story.repeatable:
        text += " Intervals need further runs: train.replicates."
    if story.clients.oracle is not None and story.clients.clean.any():
        text += " The oracle weight is what one would give each client knowing which ones are clean."
    return text


def _meta(story: Story, i: int) -> str:
    clients = story.clients
    if story.metrics["problem"] == "toy":
        return ""
    held, text = clients.labels[i], counted(clients.samples[i], "sample")
    if not held:
        return text
    classes = story.holdings.classes if story.holdings else []
    numbered = classes == [str(c) for c in range(len(classes))]
    if numbered or len(held) > 6:
        return (
            f"{text}, {story.what}{'s' if len(held) > 1 else ''} {short_labels(held)}"
            if numbered
            else f"{text} of {len(held)} classes"
        )
    return f"{text} of {', '.join(classes[label] for label in held)}"


def _place(value: float, top: float) -> str:
    return f"{100 * min(max(value / top, 0.0), 1.0):.2f}"


def evidence(story: Story) -> dict[str, Any] | None:
    """A line per client; of many clients the suspicious ones, and the others' medians."""
    found, clients, suspects = story.evidence, story.clients, story.suspects
    measured = {
        "effect on the validation loss": found.pull if story.learned else None,
        "model agrees with its labels": found.agreement,
        f"test accuracy, {story.what} mix as here": found.mix,
        WITHOUT: story.without,
    }
    columns = {name: values for name, values in measured.items() if values is not None}
    if not columns:
        return None
    n = len(clients)
    others = [i for i in range(n) if i not in suspects]
    shown = [*suspects, *others] if n <= MOST else suspects[:MOST] or others[:MOST]
    rows = [
        {
            "name": clients.names[i],
            "suspect": i in suspects,
            "cells": [_cell(story, name, float(values[i]), values) for name, values in columns.items()],
        }
        for i in shown
    ]
    rest = [i for i in others if i not in shown]
    if rest:
        medians = [_cell(story, name, _median(values[rest]), values) for name, values in columns.items()]
        rows.append({"name": f"median of the {len(rest):,} others", "suspect": False, "cells": medians})
    return {
        "heading": "Suspicious clients, and why" if suspects else "What speaks for and against each client",
        "text": _evidence_text(story),
        "columns": list(columns),
        "rows": rows,
        "notes": _explained(list(columns)),
    }


def _evidence_text(story: Story) -> str:
    if story.suspects:
        return "The suspicious clients come first."
    if story.settled is False and story.learned:
        return "The weights have not settled, so this is no verdict."
    return "Facts about each client, besides its weight."


def _explained(columns: list[str]) -> list[str]:
    notes = {
        "effect": "Effect on the validation loss: whether more weight on the client would raise or lower the loss on"
        " the server's validation set, against the mean of all clients and in units of their spread, averaged over the"
        " last quarter of training. Where it raises the loss, the client's gradients disagree with the validation set.",
        "model": "Model agrees with its labels: for how many of the client's own training samples (of at most 500) the"
        " model gives the label that the client gives. Low where labels are wrong, or where the model has not learned"
        " them.",
        "test accuracy": "Test accuracy, mix as here: the model's accuracy by class, in the mix that the client holds.",
        WITHOUT: "Test result without it: accuracy, or R2 of numbers, of the same run on all other clients' samples,"
        " and the difference to the run with everyone. Small differences may be chance: test samples are few.",
    }
    return [note for start, note in notes.items() if any(column.startswith(start) for column in columns)]


def _median(values: np.ndarray) -> float:
    known = values[~np.isnan(values)]
    return float(np.median(known)) if len(known) else float("nan")


def _cell(story: Story, name: str, value: float, values: np.ndarray) -> dict[str, Any]:
    if np.isnan(value):
        return {"text": "not tried", "share": None, "tone": ""}
    if name == WITHOUT:
        accuracy = story.metrics.get("test_accuracy")
        if accuracy is None:
            return {"text": f"R2 {value:.3f} ({value - story.metrics['test_r2']:+.3f})", "share": None, "tone": ""}
        return {"text": f"{percent(value)} ({100 * (value - accuracy):+.1f})", "share": value, "tone": ""}
    if not name.startswith("effect"):
        return {"text": percent(value), "share": value, "tone": ""}
    most = float(np.abs(values).max()) or 1.0
    word = "raises" if value > 0.05 else "lowers" if value < -0.05 else ""
    text = f"{word or 'none'} {abs(value):.2f}" if word else f"{value:+.2f}"
    return {"text": text, "share": abs(value) / most, "tone": word}


def data(story: Story) -> dict[str, Any] | None:
    """Sizes of all sets, what else is known of each client, and who holds which labels."""
    holdings, clients = story.holdings, story.clients
    if holdings is None:
        return None
    total, n = sum(clients.samples), len(clients)
    shown = list(range(min(n, MOST)))
    other = list(holdings.columns)
    rows = [[clients.names[i], f"{clients.samples[i]:,}", *(holdings.columns[c][i] for c in other)] for i in shown]
    if n > MOST:
        rows.append([f"{n - MOST:,} more clients", f"{sum(clients.samples[MOST:]):,}", *([""] * len(other))])
    rows += [[f"server: {name}", f"{size:,}", *([""] * len(other))] for name, size in holdings.sets.items() if size]
    text = f"{counted(n, story.who)} with {total:,} training samples in all"
    text += f", of {counted(len(holdings.classes), 'class', 'classes')}." if holdings.classes else "."
    uses = ", ".join(f"{name} {use}" for name, use in holdings.uses.items() if holdings.sets.get(name))
    text += f" Of the server's sets, {uses}."
    return {"text": text, "columns": ["samples", *other], "rows": rows, "heat": _heat(story, shown)}


def _heat(story: Story, shown: list[int]) -> dict[str, Any] | None:
    holdings = story.holdings
    if holdings is None or holdings.counts is None or len(holdings.classes) > WIDEST:
        return None
    most = holdings.counts.max() or 1
    return {
        "heading": f"Training samples by client and {story.what}",
        "text": "Labels as the clients have them, right or wrong.",
        "corner": "client",
        "columns": holdings.classes,
        "rows": [
            {
                "name": story.clients.names[i],
                "cells": [
                    {"text": f"{count:,}" if count else "", "share": count / most if count else None, "tone": ""}
                    for count in holdings.counts[i].tolist()
                ],
            }
            for i in shown
        ],
    }
