"""The commands of dvc.yaml and of `make paper`:

    python -m experiments.primal_dual_weighting search|table|fashion|bad_clients|toy|page quick|full [--only TEXT]
    python -m experiments.primal_dual_weighting plan quick|full        what would be run, and for how long

On a machine with a GPU the same commands run the cells there; copy the `cells` folder back and run `page`. Stopped
(Ctrl-C, kill -9), they go on where they were.
"""

from __future__ import annotations

import argparse

from experiments import command
from experiments.cells import ROOT, Cell, read, require_one, run_all, selected, workers
from experiments.primal_dual_weighting.grid import HERE, TABLES, Plan, search_cells, table_cells
from experiments.primal_dual_weighting.toy import Label, run_toy, toy_cells
from experiments.primal_dual_weighting.winners import choose
from pipeline.errors import UserError

PARTS = ("search", "table", "fashion", "bad_clients", "toy")
CELLS, DATA = HERE / "cells", HERE / "data"
SECONDS = {"digits": 0.13, "mnist": 0.28, "fashion-mnist": 0.28}
"""Of a round with all clients active on one core of an Intel Xeon, mean over the methods: for the announcement."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments.primal_dual_weighting")
    parser.add_argument("what", choices=[*PARTS, "page", "plan"])
    parser.add_argument("profile", choices=["quick", "full"])
    command.run(parser, perform)


def perform(arguments: argparse.Namespace) -> None:
    """One command."""
    plan = Plan.load(arguments.profile)
    if arguments.what == "page":
        from experiments.primal_dual_weighting.page import PAGES, write_page
        from experiments.tracking import publish

        pages = PAGES / plan.profile
        print(write_page(plan, choose(plan, CELLS), CELLS, pages))
        publish(
            [cell for what in PARTS for cell in cells_of(plan, what)],
            CELLS,
            pages,
            f"primal_dual_weighting {plan.profile}",
            ROOT,
        )
        return
    if arguments.what == "plan":
        announce(plan)
        return
    if arguments.what in TABLES:
        require_search(plan)
    cells = cells_of(plan, arguments.what)
    require_one(cells, arguments.only)
    runner = run_toy if arguments.what == "toy" else None
    run_all(selected(cells, arguments.only), CELLS, workers(arguments.workers), DATA, runner)


def cells_of(plan: Plan, what: str) -> list[Cell]:
    """The cells of one part; tables take the search's winners."""
    if what == "search":
        return search_cells(plan)
    if what == "toy":
        return toy_cells(plan)
    return table_cells(plan, what, choose(plan, CELLS))


def require_search(plan: Plan) -> None:
    """Tables are run with the search's winners, so it comes first."""
    waiting = sum(1 for cell in search_cells(plan) if read(cell, CELLS) is None)
    if waiting:
        raise UserError(
            f"{waiting} trials of the search are not done, and the tables take its winners."
            f" Fix: python -m experiments.primal_dual_weighting search {plan.profile}"
        )


def announce(plan: Plan) -> None:
    """How many cells wait, and about how long they take on this machine."""
    total = 0.0
    for what in PARTS:
        cells = cells_of(plan, what)
        waiting = [cell for cell in cells if read(cell, CELLS) is None]
        seconds = sum(estimate(cell) for cell in waiting) * (plan.sizes.toy.repetitions if what == "toy" else 1)
        total += seconds
        if cells:
            print(f"{what}: {len(waiting)} of {len(cells)} cells to run, about {seconds / 60:.0f} core-minutes")
    print(f"about {total / 60 / workers(None):.0f} minutes with {workers(None)} processes (on a GPU far less)")


def estimate(cell: Cell) -> float:
    """Seconds on one core."""
    data, rounds = cell.settings["data.name"], cell.settings["train.rounds"]
    network = 0.2 if cell.settings.get("model.name") == "mlp" else 1.0
    if data == "toy":
        label = Label.of(cell)
        return rounds * (0.06 if label.method == "exact_gradient" else 0.006 * label.K)
    return network * rounds * SECONDS[data] * (0.3 + 0.7 * cell.participation)


if __name__ == "__main__":
    main()
