"""Figures and names in columns, for people who read a terminal."""

from __future__ import annotations

from collections.abc import Sequence


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
    """0 1 2 3 7 -> "0-3 7"; of many that do not follow one another their number."""
    runs: list[list[int]] = []
    for label in sorted(labels):
        if runs and label == runs[-1][1] + 1:
            runs[-1][1] = label
        else:
            runs.append([label, label])
    if len(runs) > 10:
        return f"{len(labels)} labels"
    return " ".join(str(a) if a == b else f"{a} {b}" if b == a + 1 else f"{a}-{b}" for a, b in runs)


def short_names(names: list[str]) -> list[str]:
    """The last parts of dotted names, as few as distinguish them."""

    def last(name: str, parts: int) -> str:
        return ".".join(name.split(".")[-parts:])

    result = []
    for name in names:
        counts = range(1, name.count(".") + 2)
        result.append(next((s for n in counts if [last(o, n) for o in names].count(s := last(name, n)) == 1), name))
    return result


def clipped(text: str, length: int) -> str:
    """At most so long, with an ellipsis where something is left out."""
    return text if len(text) <= length else text[: length - 1] + "…"
