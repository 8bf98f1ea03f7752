"""What params.yaml beside this file may hold."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.config.spec import Section, param, section


@dataclass(frozen=True)
class Runs(Section):
    """What all runs of a stage have in common. Stages that agree in everything share a run."""

    data: str = param("digits", "data set")
    model: str = param("lenet5", "network")
    rounds: int = param(200, "outer iterations")
    eval_every: int = param(10, "rounds between evaluations")


@dataclass(frozen=True)
class Search(Runs):
    """The grids' runs, at full participation on the lead partition."""

    seed: int = param(0, "the one seed")


@dataclass(frozen=True)
class Table(Runs):
    """All methods at some participations and seeds."""

    participation: list[float] = param([1.0], "chance of each client to take part in a round")
    seeds: list[int] = param([0], "one run of every row for each; [] leaves the table out")
    scheme: str = param("lead", "partition scheme")
    variants: dict[str, dict[str, float | str]] = param(
        {}, "rows more, `method, what differs`, or rows by their names -> parameters of the method that differ"
    )


@dataclass(frozen=True)
class ToyFigures(Section):
    """Figures 1 and 2."""

    repetitions: int = param(20, "problems drawn, seeds 0, 1, ...", ge=1)
    rounds: int = param(300, "outer iterations")
    eval_every: int = param(4, "rounds between measurements")
    inner_steps: list[int] = param([1, 5, 10], "K")
    eta_x: list[float] = param([0.01], "step sizes of the weights; the figure shows the smallest")


@dataclass(frozen=True)
class Profile(Section):
    """Sizes of one page."""

    search: Search = section(Search, "step sizes")
    table: Table = section(Table, "Table 1 and Figure 3")
    fashion: Table = section(Table, "Figure 4")
    bad_clients: Table = section(Table, "bad clients of every kind")
    toy: ToyFigures = section(ToyFigures, "Figures 1 and 2")
    grids: dict[str, dict[str, list[float]]] = param({}, "step sizes tried, by method")


@dataclass(frozen=True)
class Experiments(Section):
    """params.yaml of these experiments."""

    quick: Profile = section(Profile, "make paper-quick")
    full: Profile = section(Profile, "make paper")
