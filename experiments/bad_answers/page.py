"""The page of a profile: accuracy with the bad clients against without them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from experiments.bad_answers.federations import CLIENTS, FAULTS, HONEST, SHARES
from experiments.bad_answers.params import AnswersStudy, Profile
from experiments.bad_answers.plan import AnswersRun, grid, winner
from experiments.results import Row, read

Place = tuple[str, int]
"""Data and seed."""
Measured = list[tuple[AnswersRun, Row]]
ABOUT = """\
Twelve clients, of which a third (4) or half (6) are bad; three data sets ([what they are](../../federations.py)). A bad
client has random labels, has every label moved by one, or sends ten times or minus once what it computed. **without**:
the same method without the bad clients, as if they were known. Entries are test accuracies in %, means over data sets
and seeds. **worst run**: the most points that a single run lost against its own run without the bad clients.

- One exchange with all clients a round, equally many for every row; answers out of all proportion are left out, as by
  default. Ten times is in proportion (the limit is a hundred).
- **average**, **primal_dual** and **simfbo** ask for gradients (and products) at the server's model; in the rows of
  **fedavg** clients take five local steps. primal_dual, simfbo, learned weights, validation steps and validation only
  use the server's 80 clean validation samples; the others do not.
- **validation only** trains on these 80 samples alone: what the clients add is what lies above it.
- In the full profile every row has four trials over its own parameters. The winner is the most accurate on the
  selection sets of federations from a seed that is not reported; no test sample has a say. The quick profile takes the
  defaults. Krum expects as many bad clients as it bears (4 of 12).
- With half of the clients bad no robust rule promises anything: each of them rests on an honest majority.
- The model after the last round is tested. One that diverged counts as guessing."""


def write_page(study: AnswersStudy, profile: Profile, cells: Sequence[AnswersRun], results: Path, out: Path) -> Path:
    """README.md in `out`, of the data sets and seeds whose runs are all there."""
    held = read(results)
    done: Measured = [(cell, held[cell.key]) for cell in cells if cell.key in held]
    whole = _whole(cells, held)
    used = [(cell, row) for cell, row in done if (cell.data, cell.seed) in whole[cell.part]]
    main = [(cell, row) for cell, row in used if cell.part in ("main", "alone")]
    text = ["# Bad clients: learned weights against robust averaging", ABOUT, _provenance(cells, used)]
    if main:
        text += ["## All data sets", table(study, main)]
        for data in dict.fromkeys(cell.data for cell, _ in main):
            text += [f"## {data.capitalize()}", table(study, [pair for pair in main if pair[0].data == data])]
    if screened := [(cell, row) for cell, row in used if cell.part == "screening"]:
        text += ["## With and without screening", about_screening(study, screened)]
    if strict := [(cell, row) for cell, row in used if cell.part == "strict"]:
        text += ["## A stricter screening", about_strict(study, strict, main)]
    if profile.search.grids:
        text += ["## Parameters", parameters(study, profile, held)]
    out.mkdir(parents=True, exist_ok=True)
    path = out / "README.md"
    path.write_text("\n\n".join(text) + "\n")
    return path


def _whole(cells: Sequence[AnswersRun], held: dict[str, Row]) -> dict[str, set[Place]]:
    """Of each part the places without a run that is missing."""
    found: dict[str, set[Place]] = {cell.part: set() for cell in cells}
    for cell in cells:
        found[cell.part].add((cell.data, cell.seed))
    for cell in cells:
        if cell.key not in held:
            found[cell.part].discard((cell.data, cell.seed))
    return found


def _provenance(cells: Sequence[AnswersRun], used: Measured) -> str:
    def listed(key: str) -> str:
        return ", ".join(sorted({str(row[key]) for _, row in used}))

    seeds = ", ".join(str(seed) for seed in sorted({cell.seed for cell, _ in used}))
    rounds = ", ".join(str(count) for count in sorted({cell.rounds for cell, _ in used}))
    return (
        f"*{len(used)} of {len(cells)} runs, seeds {seeds}, {rounds} rounds, {listed('device')}, one thread,"
        f" {listed('date')}; code {listed('commit')}.*"
    )


def table(study: AnswersStudy, pairs: Measured) -> str:
    """A line for each row; for each share of bad clients the accuracy without them and with each fault."""
    shares = [share for share in SHARES if any(cell.share == share for cell, _ in pairs)]
    faults = [fault for fault in FAULTS if any(cell.fault == fault for cell, _ in pairs)]
    head = ["method"]
    for share in shares:
        head += [f"{SHARES[share]} of {CLIENTS} bad: without", *(FAULTS[fault].title for fault in faults)]
    head.append("worst run")
    lines = [_line(head), _line(["--", *["--:"] * (len(head) - 1)])]
    for row in study.rows:
        own = {_where(cell): found["accuracy"] for cell, found in pairs if cell.row == row}
        if not own:
            continue
        shown = [row]
        for share in shares:
            shown += [
                _percent(v for where, v in own.items() if where[2:] == (share, fault)) for fault in (HONEST, *faults)
            ]
        lost = [
            100 * (own[(*where[:3], HONEST)] - value)
            for where, value in own.items()
            if where[3] != HONEST and (*where[:3], HONEST) in own
        ]
        lines.append(_line([*shown, f"{max(lost):.1f}" if lost else ""]))
    return "\n".join(lines)


def about_screening(study: AnswersStudy, pairs: Measured) -> str:
    """Answers times 1000, screened and not."""
    lines = [
        "Four of twelve clients send a thousand times what they computed. Screened, they are left out as a client that"
        " is absent; without screening only the rule stands between them and the model.",
        "",
        _line(["method", "screened", "not screened", "diverged, not screened"]),
        _line(["--", "--:", "--:", "--:"]),
    ]
    for row in study.rows:
        own = [(cell, found) for cell, found in pairs if cell.row == row]
        if own:
            on, off = ([found for cell, found in own if cell.screening is which] for which in (True, False))
            gone = sum("failed" in found for found in off)
            shown = [_percent(found["accuracy"] for found in side) for side in (on, off)]
            lines.append(_line([row, *shown, f"{gone} of {len(off)}"]))
    return "\n".join(lines)


def about_strict(study: AnswersStudy, pairs: Measured, main: Measured) -> str:
    """Ten times, under a factor that lets ten times through and one that does not."""
    factor = next(cell.screening for cell, _ in pairs)
    lines = [
        f"Four of twelve clients send ten times what they computed, with `screening.factor` 100 (the default) and"
        f" {factor:g}.",
        "",
        _line(["method", "without, 100", f"without, {factor:g}", "times 10, 100", f"times 10, {factor:g}"]),
        _line(["--", *["--:"] * 4]),
    ]
    for row in dict.fromkeys(cell.row for cell, _ in pairs):
        shown = [row]
        for fault in (HONEST, "scaled"):
            own = {_where(cell): found["accuracy"] for cell, found in pairs if (cell.row, cell.fault) == (row, fault)}
            usual = [found["accuracy"] for cell, found in main if cell.row == row and _where(cell) in own]
            shown += [_percent(usual), _percent(own.values())]
        lines.append(_line(shown))
    return "\n".join(lines)


def parameters(study: AnswersStudy, profile: Profile, held: dict[str, Row]) -> str:
    """What was tried, and what won."""
    search = profile.search
    where = ", ".join(" ".join((data, fault, share)) for data, fault, share in search.federations)
    seeds = ", ".join(map(str, search.seeds))
    lines = [f"Tried on {where} (seed {seeds}).", "", _line(["method", "tried", "won"]), _line(["--", "--", "--"])]
    for row, values in search.grids.items():
        tried = "; ".join(f"`{name}` {', '.join(map(str, each))}" for name, each in values.items())
        lines.append(_line([row, f"{tried} ({len(list(grid(search, row)))} trials)", _won(study, profile, row, held)]))
    return "\n".join(lines)


def _won(study: AnswersStudy, profile: Profile, row: str, held: dict[str, Row]) -> str:
    won: dict[str, Any] = winner(study, profile, row, held)
    return ", ".join(f"`{name}: {value}`" for name, value in won.items())


def _where(cell: AnswersRun) -> tuple[str, int, str, str]:
    return cell.data, cell.seed, cell.share, cell.fault


def _percent(values: Iterable[float]) -> str:
    found = list(values)
    return f"{100 * fmean(found):.1f}" if found else ""


def _line(entries: Iterable[str]) -> str:
    return f"| {' | '.join(entries)} |"
