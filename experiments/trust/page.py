"""The page: what the methods win and lose against fixed weights, whom they trust, and what goes wrong."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import fmean, median

from experiments.results import Row, read
from experiments.trust import changes
from experiments.trust.coverage import REPLICATES, ROUNDS, covered
from experiments.trust.picture import common, draw, draw_validation
from experiments.trust.plan import AVERAGE, LEAD, ORACLE, PlannedRun
from experiments.trust.running import METHODS
from experiments.trust.validation import BASES, SETTINGS, setting
from pipeline.report.figures import save

BY_WRONG = (400, 1.0)
"""Rounds and participation of the tables by what is wrong, if they were run; else those of most runs."""
SETTLED = "settled"
"""The measure by which a method reports whether its weights have come to rest: 1, or 0."""
SETTLING = "not settled"
Columns = dict[str, Callable[[Sequence[Row]], str]]
ABOUT = """\
Small federations of images and tables that no default was tuned for: 3 to 300 clients of 5 to 10,000 samples, some of
which hold wrong labels, shuffled or rescaled features, or nothing; a server with 10 to 100 validation samples. The lead
method and the baselines run with their defaults everywhere, every other method with the steps that won its search, if
it was searched. Declared in [params.yaml](params.yaml), what they hold in [given.py](given.py) and [own.py](own.py),
every run in [results.jsonl](results.jsonl). Accuracies are on test samples that neither a method nor a search of step
sizes sees.

- **against average**, **against oracle**: difference in accuracy, in points, to the same run with fixed equal weights,
  and with fixed weights made in the knowledge of the clean clients; mean, and the worst run.
- **> 1 below**: share of the runs that end more than a point below equal weights.
- **AUC**: the chance that a clean client holds more weight than a bad one, ties half; **< .9**: share of the runs where
  it is less. **bad weight**: what bad clients hold together. Over federations with bad clients.
- **drop**: points between the best evaluation of a run and the model it serves: the last, unless its accuracy on the
  selection set had fallen by more than 2 points.
- **ms a round**: median, evaluations aside, with other runs on the same machine. A round is what the method calls one:
  the averaging methods, FedNest's relatives and FedBiO take five local steps in each, the others one step.
- A run that diverged counts as accuracy 0 with equal weights."""


def write_page(
    cells: Sequence[PlannedRun], results: Path, out: Path, intervals: Path | None = None, changed: Path | None = None
) -> Path:
    """page.md and its pictures, from the rows of these cells. intervals: rows of `coverage.run_seeds`, if any. changed:
    of `changes.run_changes`."""
    held = read(results)
    every = compared([held[cell.key] for cell in cells if cell.key in held])
    rows = [row for row in every if not setting(row["federation"])[1]]
    text = ["# Federations that no default was tuned for", ABOUT, provenance(cells, every)]
    if rows:
        save(draw(rows), out / "page.png")
        text.append("![Test accuracy of every method against equal weights, federation by federation](page.png)")
        for where in settings(rows):
            text += [f"## {where[0]} rounds, {_who(where[1])}", *tables(_at(rows, where))]
        text += by_wrong(rows)
        if len(every) > len(rows):
            text += about_validation(every, out)
        if intervals and intervals.is_file():
            text += about_intervals(list(read(intervals).values()))
        if changed and changed.is_file():
            text += about_changes(list(read(changed).values()))
        text += [f"## Where {LEAD} falls short", shortcomings(rows)]
    path = out / "page.md"
    path.write_text("\n\n".join(text) + "\n")
    return path


def compared(rows: Iterable[Row]) -> list[Row]:
    """With `against_average` and `against_oracle`, in points, where the run with these weights is there."""
    rows = list(rows)
    known = {(row["method"], *_where(row)): row["accuracy"] for row in rows}
    found = []
    for row in rows:
        more = {}
        for name, method in (("against_average", AVERAGE), ("against_oracle", ORACLE)):
            fixed = known.get((method, *_where(row)))
            if fixed is not None:
                more[name] = 100 * (row["accuracy"] - fixed)
        found.append(row | more)
    return found


def _where(row: Row) -> tuple[str, int, int, float]:
    return row["federation"], row["seed"], row["rounds"], row["participation"]


def settings(rows: Iterable[Row]) -> list[tuple[int, float]]:
    """Lengths and participations that were run, full participation first."""
    return sorted({(row["rounds"], row["participation"]) for row in rows}, key=lambda where: (-where[1], where[0]))


def _at(rows: Iterable[Row], where: tuple[int, float]) -> list[Row]:
    return [row for row in rows if (row["rounds"], row["participation"]) == where]


def _who(p: float) -> str:
    return "all clients in every round" if p >= 1 else f"each client in {100 * p:g} % of the rounds"


# ------------------------------------------------------------------------------------------------------------- tables


def tables(rows: Sequence[Row]) -> list[str]:
    """The methods that were run on all federations; if others were run on some, all methods on these."""
    shared = common(rows)
    if len(shared) == len(rows):
        return [table(rows)]
    runs = Counter(row["method"] for row in rows)
    text = [table([row for row in rows if runs[row["method"]] == max(runs.values())])]
    if shared:
        places = len({(row["federation"], row["seed"]) for row in shared})
        text += [f"All methods, on the {places} federations where each was run:", table(shared)]
    return text


def table(rows: Sequence[Row]) -> str:
    """A line per method."""
    names = [name for name in COLUMNS if name != SETTLING or _settled(rows)]
    return markdown(rows, names)


def by_wrong(rows: Sequence[Row]) -> list[str]:
    """A table for each kind of wrong, at one length and participation."""
    where = BY_WRONG if BY_WRONG in settings(rows) else max(settings(rows), key=lambda at: len(_at(rows, at)))
    columns = ("runs", "accuracy %", "against average", "against oracle", "AUC", "bad weight")
    chosen = _at(rows, where)
    text = [f"## By what is wrong ({where[0]} rounds, {_who(where[1])})"]
    for wrong in dict.fromkeys(row["wrong"] for row in chosen):
        own = common([row for row in chosen if row["wrong"] == wrong])
        names = ", ".join(dict.fromkeys(row["federation"] for row in own))
        text += [f"**{wrong[0].upper()}{wrong[1:]}** ({names})", markdown(own, columns)]
    return text


def about_validation(rows: Sequence[Row], out: Path) -> list[str]:
    """The picture, and a line per size of the validation set. rows: with the federations of `validation.VALIDATION`."""
    places = {(setting(row["federation"])[0], *_where(row)[1:]) for row in rows if setting(row["federation"])[1]}
    own = [row for row in rows if (setting(row["federation"])[0], *_where(row)[1:]) in places]
    save(draw_validation(own), out / "validation.png")
    (rounds, participation), *_ = settings(own)
    columns = ("runs", "accuracy %", "against average", "worst", "AUC", "< .9", "bad weight", SETTLING)
    lines = ["| validation samples | method | " + " | ".join(columns) + " |", "|--|--|" + "--:|" * len(columns)]
    for (ending, said), method in itertools.product(SETTINGS.items(), (LEAD, "validation_only")):
        some = [row for row in own if row["method"] == method and setting(row["federation"])[1] == ending]
        if some:
            values = " | ".join(COLUMNS[name](some) for name in columns)
            lines.append(f"| {said} | {method} | {values} |")
    return [
        f"## What the validation set decides ({rounds} rounds, {_who(participation)})",
        f"{', '.join(BASES)}: all of the server's 60 to 100 samples, the first 50, 20 or 10 of them, drawn at random,"
        " and 50 of which 5 have another label.",
        "![Accuracy, AUC and weight of bad clients over the size of the validation set](validation.png)",
        "\n".join(lines),
    ]


def about_intervals(rows: Sequence[Row]) -> list[str]:
    """A line per federation. rows: of `coverage.run_seeds`."""
    columns = ("clients", "seeds", "covered", "covered, clients in use", "median width, in equal shares")
    lines = ["| federation | " + " | ".join(columns) + " |", "|--|" + "--:|" * len(columns)]
    for name in dict.fromkeys(row["federation"] for row in rows):
        own = [row for row in rows if row["federation"] == name]
        found = covered(own)
        shares = f"{100 * found['covered']:.0f} % | {100 * found['held']:.0f} % | {found['width']:.2f}"
        lines.append(f"| {name} | {len(own[0]['weights'])} | {len(own)} | {shares} |")
    seen = sorted({f"{row['device']}, {row['date']}, code {row['commit']}" for row in rows})
    return [
        "## Whether the intervals cover",
        f"90 % intervals of {LEAD}'s client weights, of a run of {ROUNDS} rounds and {REPLICATES} replicates. For each"
        " seed the server's samples are drawn anew; an interval covers if it holds the client's mean weight over all"
        f" seeds ([coverage.py](coverage.py)). In use: more than a tenth of an equal share. {'; '.join(seen)}.",
        "\n".join(lines),
    ]


def about_changes(rows: Sequence[Row]) -> list[str]:
    """Two tables, a line per change. rows: of `changes.run_changes`."""
    seen = sorted({f"{row['device']}, {row['date']}, code {row['commit']}" for row in rows})
    return [
        "## What the scale of features, network and steps decides",
        f"{LEAD} on the federations of [given.py](given.py), {changes.ROUNDS} rounds, all clients in every round, with"
        " one thing changed ([changes.py](changes.py)). Difference: to the same run without the change, in points; of"
        f" the lines with `then standardised`, to `standardised`. {'; '.join(seen)}.",
        changes.table(rows, changes.SCALES),
        f"## What each addition to {LEAD} decides",
        "The same runs, with our additions to the paper's listing switched off, one at a time and then together. Half:"
        " every client takes part in half of the rounds, held against the default there.",
        changes.table(rows, changes.ADDITIONS),
    ]


def markdown(rows: Sequence[Row], columns: Sequence[str]) -> str:
    """A line per method, in the order of `METHODS`; the lead method's in bold."""
    lines = ["| method | " + " | ".join(columns) + " |", "|--|" + "--:|" * len(columns)]
    for method in METHODS:
        own = [row for row in rows if row["method"] == method]
        if own:
            name = f"**{method}**" if method == LEAD else method
            lines.append(f"| {name} | " + " | ".join(COLUMNS[name](own) for name in columns) + " |")
    return "\n".join(lines)


def shortcomings(rows: Sequence[Row]) -> str:
    """A line per run of the lead method that ends a point below equal weights or ranks clients badly."""
    lines = ["| federation | rounds | participation | against average | AUC | bad weight |", "|--|--:|--:|--:|--:|--:|"]
    for row in rows:
        if row["method"] == LEAD and (row.get("against_average", 0) < -1 or row.get("auc", 1) < 0.9):
            where = f"{row['federation']}-{row['seed']} | {row['rounds']} | {row['participation']:g}"
            forms = {"against_average": "{:+.1f}", "auc": "{:.2f}", "bad_weight": "{:.3f}"}
            figures = " | ".join(_mean(_all([row], name), form) for name, form in forms.items())
            lines.append(f"| {where} | {figures} |")
    return "\n".join(lines) if len(lines) > 2 else "In no run: it ends nowhere a point below, with AUC .9 or more."


def provenance(cells: Sequence[PlannedRun], rows: Sequence[Row]) -> str:
    """Which machines, when, with which code."""
    if not rows:
        return "*Nothing has been run yet.*"
    commits = sorted({row["commit"] + " with changes" * row["dirty"] for row in rows})
    machines, dates = sorted({row["device"] for row in rows}), sorted({row["date"] for row in rows})
    when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    minutes = sum(row["seconds"] for row in rows) / 60
    return (
        f"*{len(rows)} of {len(cells)} runs, {', '.join(machines)}, one thread each, {when}, {minutes:.1f} minutes of"
        f" training in all; code {', '.join(commits)}.*"
    )


# ------------------------------------------------------------------------------------------------------------ numbers


def _all(rows: Iterable[Row], name: str) -> list[float]:
    """Of the rows that have it."""
    return [row[name] for row in rows if name in row]


def _settled(rows: Iterable[Row]) -> list[float]:
    return [row["measures"][SETTLED] for row in rows if SETTLED in row.get("measures", {})]


def _accuracy(rows: Sequence[Row]) -> str:
    return _mean([100 * row["accuracy"] for row in rows], "{:.1f}")


def _mean(values: Sequence[float], form: str) -> str:
    return form.format(fmean(values)) if values else ""


def _worst(values: Sequence[float]) -> str:
    return f"{min(values):+.1f}" if values else ""


def _share(values: Sequence[bool]) -> str:
    return f"{100 * fmean(values):.0f} %" if values else ""


COLUMNS: Columns = {
    "runs": lambda own: str(len(own)),
    "accuracy %": _accuracy,
    "against average": lambda own: _mean(_all(own, "against_average"), "{:+.1f}"),
    "worst": lambda own: _worst(_all(own, "against_average")),
    "> 1 below": lambda own: _share([value < -1 for value in _all(own, "against_average")]),
    "against oracle": lambda own: _mean(_all(own, "against_oracle"), "{:+.1f}"),
    "its worst": lambda own: _worst(_all(own, "against_oracle")),
    "AUC": lambda own: _mean(_all(own, "auc"), "{:.2f}"),
    "< .9": lambda own: _share([value < 0.9 for value in _all(own, "auc")]),
    "bad weight": lambda own: _mean(_all(own, "bad_weight"), "{:.3f}"),
    SETTLING: lambda own: _share([not settled for settled in _settled(own)]),
    "drop": lambda own: _mean([100 * (row["best"] - row["accuracy"]) for row in own], "{:.1f}"),
    "diverged": lambda own: str(sum("failed" in row for row in own)),
    "ms a round": lambda own: f"{median(1000 * row['seconds'] / row['rounds'] for row in own):.1f}",
}
"""Of all tables, in this order."""
