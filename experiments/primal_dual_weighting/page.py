"""One page per profile: tables and figures, with where and when they were made."""

from __future__ import annotations

import json
from pathlib import Path

from experiments.cells import Cell, read
from experiments.primal_dual_weighting import figures, tables
from experiments.primal_dual_weighting.toy import Label, sizes, toy_cells
from experiments.report import Row, provenance, write_numbers
from experiments.study import LIKE, Study

SEARCHED = "table"
"""The part whose trials choose the step sizes of all."""
AS_PRINTED = "primal_dual, as printed"
BAD_CLIENTS = "bad_clients"
"""The part that is about who is found, not about accuracy."""


def write_page(study: Study) -> Path:
    """pages/<profile>/README.md with its figures, and its numbers where git does not keep the results."""
    out = study.page
    out.mkdir(parents=True, exist_ok=True)
    command = "make paper" if study.profile == "full" else "make paper-quick"
    parts = [
        f"# {study.title}, {study.profile}",
        f"Made by `{command}` ([what it consists of](../../params.yaml)). Accuracies are on the test set, weights are"
        " means over the last 100 rounds. All rows take plain steps without a limit, as the papers print them."
        " `primal_dual` has the printed dual, the library's former defaults (`experiments/former.py`) and searched"
        " steps, like the others without clipping;"
        " `primal_dual, as printed` is the paper's listing, its steps not searched: constant steps (eta_w 0.1, eta_x"
        " 0.01), gamma 1, a ball of radius 10, neither damping nor clipping, the hypergradient on the gradient's"
        " minibatch, absent clients scaled by N/n.",
    ]
    for part in study.parts:
        parts += (_detection_section if part == BAD_CLIENTS else _accuracy_section)(study, part, out)
    parts += [*_toy_section(study, out), *_search_section(study)]
    write_numbers(study, "table", [row for part in study.parts for row in _table(study, part)])
    write_numbers(study, "curves", [row for part in study.parts for row in _curves(study, part)])
    path = out / "README.md"
    path.write_text("\n\n".join(parts) + "\n")
    return path


def _cells(study: Study, part: str) -> list[Cell]:
    return [slot.cell for slot in study.table(part)]


def _rows(study: Study, part: str) -> list[Row]:
    """Of the part's table on the page."""
    if part == BAD_CLIENTS:
        return tables.detections(_cells(study, part), study.results)
    return tables.summarise(_cells(study, part), study.results, _published(study, part))


def _published(study: Study, part: str) -> bool:
    """Whether the paper has these runs too."""
    settings = study.parts[part].settings
    return bool(settings["data.name"] == "mnist" and settings["train.rounds"] == 2000)


def _table(study: Study, part: str) -> list[Row]:
    """Its rows, with the clean clients' weights in one cell."""
    rows = ({"part": part} | row for row in _rows(study, part))
    return [
        row | ({"weights": " ".join(f"{w:.6f}" for w in row["weights"])} if row.get("weights") else {}) for row in rows
    ]


def _curves(study: Study, part: str) -> list[Row]:
    """Test accuracy over rounds, a column per method."""
    cells = [] if part == BAD_CLIENTS else _cells(study, part)
    return [
        {"part": part, "participation": participation} | row
        for participation in dict.fromkeys(cell.participation for cell in cells)
        for row in tables.curves(cells, study.results, participation)
    ]


def _accuracy_section(study: Study, part: str, out: Path) -> list[str]:
    settings, cells = study.parts[part].settings, _cells(study, part)
    parts = [
        f"## {study.parts[part].title}",
        tables.markdown(_rows(study, part), _published(study, part)),
        *_variants(study, part),
        provenance(cells, study.results),
    ]
    drawn = figures.accuracy(cells, study.results, f"Test accuracy on {settings['data.name']}")
    if figures.save_if_any(drawn, out / f"{part}.png"):
        parts.insert(
            2, f"![Test accuracy over rounds]({part}.png)\n\nWhat stays below the frame is in the table alone."
        )
    return parts


def _variants(study: Study, part: str) -> list[str]:
    """What the rows with settings of their own set."""
    found = []
    for row, settings in study.parts[part].rows.items():
        steps = [f"{name} {value}" for name, value in settings.items() if name not in (LIKE, "algorithm")]
        if steps and row != AS_PRINTED:
            found.append(f"`{row}`: {', '.join(steps)}")
    return [f"Rows with settings of their own: {'; '.join(found)}."] if found else []


def _detection_section(study: Study, part: str, out: Path) -> list[str]:
    return [
        f"## {study.parts[part].title}",
        "Three clean clients and one each of: random labels, 30 and 60 % wrong labels, shuffled pixels, a copy of the"
        " first clean client, few samples. AUC: the chance that a clean client holds more weight than a bad one (0.5 ="
        " the weights are uninformative); a copy and a small client count as bad. Rank correlation: of the weights with"
        " the share of right samples, of which the copy and the small client have all.",
        tables.detection_markdown(_rows(study, part)),
        provenance(_cells(study, part), study.results),
    ]


def _toy_section(study: Study, out: Path) -> list[str]:
    cells, size, results = toy_cells(study), sizes(study), study.results
    parts = [
        "## Figures 1 and 2: the toy laboratory",
        f"15 clients, {size.repetitions} repetitions, {size.rounds} rounds. In the figure all methods have the same"
        f" steps, eta_x = {min(size.eta_x):g}; bands as in the paper: 0.1 standard error of the value, 0.5 of the"
        " stationarity. A series cut after K terms is too short, by two to five times at K = 1, and points elsewhere as"
        " well: the first table shows how far a larger eta_x takes it.",
    ]
    if figures.save_if_any(figures.toy(cells, results), out / "toy.png"):
        parts.append("![Value and stationarity over rounds](toy.png)")
    lines = [
        "| K | eta_x | method | rounds to a tenth of the start (median)"
        f" | repetitions within twice exact_gradient's at eta_x {min(size.eta_x):g} |",
        "|--|--|--|--|--|",
    ]
    for row in tables.toy_claim(cells, results):
        within = "" if row["within_twice"] is None else f"{100 * row['within_twice']:.0f} %"
        rounds = "never" if row["median_rounds"] == float("inf") else f"{row['median_rounds']:g}"
        lines.append(f"| {row['K']} | {row['eta_x']:g} | {row['method']} | {rounds} | {within} |")
    parts.append("Deterministic setting:\n\n" + "\n".join(lines))
    if noisy := tables.toy_noise(cells, results):
        lines = [
            "| setting | K | method | stationarity at the end (mean)"
            f" | repetitions with f_0(w*(x)) above its start after round {size.rounds // 3} |",
            "|--|--|--|--|--|",
        ]
        lines += [
            f"| {r['setting']} | {r['K']} | {r['method']} | {r['stationarity']:.2g} | {100 * r['gone']:.0f} % |"
            for r in noisy
        ]
        parts.append(
            "Noisy settings, half of the clients active; the dual of primal_dual is kept in a ball of radius 5 (1000 in"
            " the deterministic setting). steadied: every method remembers absent clients' answers, and primal_dual's"
            " dual is slower (eta_lambda 0.03, not 0.1) and damped (0.3, not 0), found by a few trials on these"
            " repetitions; the others keep their steps:\n\n" + "\n".join(lines)
        )
    if missing := [str(Label.of(cell)) for cell in cells if not read(cell, results)]:
        parts.append(f"Not run: {'; '.join(missing)}.")
    return [*parts, provenance(cells, results)]


def _search_section(study: Study) -> list[str]:
    """And, beside the quick page, winners.json."""
    tried, cells = tables.trials(study, SEARCHED), [slot.cell for slot, _ in study.trials(SEARCHED)]
    winners = {method: steps for method in study.parts[SEARCHED].grids if (steps := study.winner(SEARCHED, method))}
    if study.profile == "quick":
        (study.page / "winners.json").write_text(json.dumps(winners, indent=2) + "\n")
    waiting = sum(1 for trial in tried if trial["state"] == "not run")
    one = cells[0].settings
    return [
        "## Step sizes",
        "Chosen by accuracy on the selection set, which no method sees; of equals the former default, else the smallest"
        f" loss. {one['data.name']}, {one['model.name']}, {one['train.rounds']} rounds, participation"
        f" {cells[0].participation:g}, seed {cells[0].seed}."
        " As many trials for each method that learns weights, and defaults where there is none; but the other settings"
        " of primal_dual were found by some twenty earlier trials, those of its competitors are first choices."
        + (f" **{waiting} trials are not run; rows that wait for them have their default steps.**" if waiting else ""),
        tables.trials_markdown(tried, winners),
        provenance(cells, study.results),
    ]
