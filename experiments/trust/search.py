"""Step sizes for every method: as many trials each, judged by the mean accuracy on the federations' selection sets."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from typing import Any

from experiments.results import Row, append, read
from experiments.trust.outcomes import run_cells
from experiments.trust.params import Options, TrustStudy
from experiments.trust.plan import trials


def scores(study: TrustStudy, method: str, rows: dict[str, Row]) -> list[tuple[Options, float | None]]:
    """Of every trial: what it tried, and its mean selection accuracy; None while a run of it is missing."""
    found: list[tuple[Options, float | None]] = []
    for options, cells in trials(study, method):
        own = [rows[cell.key]["selection"] for cell in cells if cell.key in rows]
        found.append((options, fmean(own) if len(own) == len(cells) else None))
    return found


def winner(study: TrustStudy, method: str, rows: dict[str, Row]) -> tuple[Options, float] | None:
    """The best trial and its score, of equals the first; None while a trial is missing."""
    tried = [(options, score) for options, score in scores(study, method, rows) if score is not None]
    if not tried or len(tried) < len(scores(study, method, rows)):
        return None
    return max(tried, key=lambda trial: trial[1])


def winners(study: TrustStudy, path: Path) -> dict[str, Options]:
    """Of every method whose trials are done."""
    rows = read(path)
    found = {method: winner(study, method, rows) for method in study.search.grids}
    return {method: best[0] for method, best in found.items() if best}


def run_search(study: TrustStudy, path: Path, workers: int, only: str = "") -> None:
    """The trials that are missing; then, for each method, a row with its grid and its winner."""
    methods = [method for method in study.search.grids if only in method]
    cells = [cell for method in methods for _, own in trials(study, method) for cell in own]
    run_cells(cells, path, workers)
    rows = read(path)
    for method in methods:
        best = winner(study, method, rows)
        if best:
            row: Row = {"key": f"winner {method}", "method": method, "grid": study.search.grids[method]}
            row |= {"trials": [_trial(*trial) for trial in scores(study, method, rows)]}
            row |= {"winner": best[0], "selection": best[1]}
            if rows.get(row["key"]) != row:
                append(path, row)
            print(f"{method}: {best[0]}, mean selection accuracy {100 * best[1]:.2f} %", flush=True)


def _trial(options: Options, score: float | None) -> dict[str, Any]:
    return {"options": options, "selection": score}
