"""What the page says of the served model: by class, confusions, all metrics."""

from __future__ import annotations

from typing import Any

import numpy as np

from pipeline.report.page.clients import WIDEST
from pipeline.report.page.story import Story
from pipeline.report.page.words import percent

MOST = 30
"""Classes listed; of more, the ones that the model finds worst."""


def class_names(story: Story, count: int) -> list[str]:
    """Of the classes that the test distinguishes (few-shot tasks have classes of their own)."""
    names = story.holdings.classes if story.holdings else []
    return names if len(names) == count else [str(c) for c in range(count)]


def classes(story: Story) -> dict[str, Any] | None:
    """A line per class of the test set."""
    test = story.test
    if test is None:
        return None
    names, samples = class_names(story, len(test.recall)), test.confusion.sum(1)
    order = list(range(len(names)))
    if len(order) > MOST:
        order = sorted((c for c in order if samples[c]), key=lambda c: test.recall[c])[:MOST]
    rows = [
        {
            "name": names[c],
            "samples": f"{int(samples[c]):,}",
            "recall": _cell(test.recall[c] if samples[c] else None),
            "precision": percent(test.precision[c]) if test.confusion[:, c].sum() else "never named",
        }
        for c in order
    ]
    worst = f"The {MOST} of {len(names)} that it finds worst; all are in per_class.csv." if len(names) > MOST else ""
    return {"text": worst or "On the test set.", "rows": rows}


def _cell(share: float | None) -> dict[str, Any]:
    return {"text": "none to find" if share is None else percent(share), "share": share, "tone": ""}


def confusion(story: Story) -> dict[str, Any] | None:
    """Who is taken for whom; None of more classes than a table can hold."""
    test = story.test
    if test is None or len(test.confusion) > WIDEST:
        return None
    counts = np.asarray(test.confusion)
    names, shares = class_names(story, len(counts)), counts / np.maximum(counts.sum(1, keepdims=True), 1)
    return {
        "heading": "What it takes for what",
        "text": f"Test samples; rows are the true {story.what}, columns what the model says. Mistakes are red.",
        "corner": "true",
        "columns": names,
        "rows": [
            {
                "name": names[i],
                "cells": [
                    {
                        "text": f"{int(counts[i, j]):,}" if counts[i, j] else "",
                        "share": max(float(shares[i, j]), 0.08 if i == j else 0.25) if counts[i, j] else None,
                        "tone": "" if i == j else "wrong",
                    }
                    for j in range(len(counts))
                ],
            }
            for i in range(len(counts))
        ],
    }


def numbers(story: Story) -> list[tuple[str, str]]:
    """metrics.json as it is."""
    shown = []
    for name, value in story.metrics.items():
        text = f"{value:.6g}" if isinstance(value, float) else "" if value is None else str(value)
        shown.append((name, text))
    return shown
