"""The commands of this study, by way of `python -m experiments trust`:

    plan quick|full                      what waits, for how long
    run quick|full [--only TEXT] [--again]   the cells that are missing; --again: those with a result too
    page quick|full                      page.md and its picture, from all results of both profiles
    search [--only METHOD]               step sizes, by selection accuracy
    coverage                             how often the weights' intervals cover, over twenty seeds
    changes                              what the scale of features, network and steps, and each addition, decides

A new version of a method has the old one's parameters and so its cells: `run full --only primal_dual --again`.
"""

from __future__ import annotations

import argparse

from experiments import provenance, workers
from experiments.results import read
from experiments.trust import changes, coverage
from experiments.trust.outcomes import run_cells
from experiments.trust.params import TrustStudy
from experiments.trust.plan import HERE, PlannedRun, cells, load
from experiments.trust.search import run_search, winners
from pipeline.errors import not_allowed

RESULTS, TRIALS = HERE / "results.jsonl", HERE / "search.jsonl"
INTERVALS, CHANGES = HERE / "coverage.jsonl", HERE / "changes.jsonl"
SECONDS = {
    **{"validation_only": 0.0005, "average": 0.001, "oracle_weights": 0.001, "afl": 0.0015, "primal_dual": 0.004},
    **{"fednest_general": 0.02, "fedbio": 0.02, "aggitd": 0.04, "fedbioacc": 0.04},
}
"""Of a round on one core of an AMD EPYC, with a small dense network; of the others 0.01."""
LENET = 20
"""Times that, with LeNet-5."""


def perform(arguments: argparse.Namespace) -> None:
    """One command."""
    study, processes = load(), workers.count(arguments.workers)
    if arguments.what == "search":
        run_search(study, TRIALS, processes, arguments.only)
        return
    if arguments.what == "coverage":
        coverage.run_seeds(INTERVALS, processes)
        return
    if arguments.what == "changes":
        changes.run_changes(CHANGES, processes)
        return
    wanted = cells_of(study, arguments.profile)
    if arguments.what == "plan":
        announce(wanted)
    elif arguments.what == "run":
        chosen = [cell for cell in wanted if arguments.only in str(cell)]
        if not chosen:
            raise not_allowed("--only", arguments.only, f"part of a cell's name, such as {wanted[0]}", "name one")
        run_cells(chosen, RESULTS, processes, arguments.again)
    else:
        from experiments.trust.page import write_page

        provenance.require_clean()
        both = dict.fromkeys(cell for profile in ("quick", "full") for cell in cells_of(study, profile))
        print(write_page(list(both), RESULTS, HERE, INTERVALS, CHANGES))


def cells_of(study: TrustStudy, profile: str) -> list[PlannedRun]:
    """With the search's winners where they are asked for."""
    return cells(study, profile, winners(study, TRIALS))


def announce(wanted: list[PlannedRun]) -> None:
    """How many cells wait, and about how long they take on this machine."""
    done = read(RESULTS)
    waiting = [cell for cell in wanted if cell.key not in done]
    seconds = sum(estimate(cell) for cell in waiting)
    print(f"{len(waiting)} of {len(wanted)} cells to run, about {seconds / 60:.0f} core-minutes")
    print(f"about {seconds / 60 / workers.count(None):.0f} minutes with {workers.count(None)} processes")


def estimate(cell: PlannedRun) -> float:
    """Seconds on one core."""
    heavy = LENET if cell.federation.startswith(("digits28", "patches")) else 1
    return heavy * cell.rounds * SECONDS.get(cell.method, 0.01)
