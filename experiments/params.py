"""What the params.yaml of a study may hold (`experiments.study`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pipeline.config.spec import Section, param, section

Settings = dict[str, Any]


@dataclass(frozen=True)
class Panel(Section):
    """One set of data for all rows."""

    settings: Settings = param({}, "on top of the part's")
    rows: dict[str, Settings] = param({}, "on top of a row's own, in this panel")
    leave_out: list[str] = param([], "rows that have no place here")
    budget: dict[str, float] = param(
        {}, "{floats: 1e8} or {hvps: 1e4}: every row gets as many rounds as that pays for, by what its trials cost"
    )
    published: dict[str, list[float]] = param({}, "of rows: accuracy % and its spread, as the paper has them")


@dataclass(frozen=True)
class Search(Section):
    """The grids' trials: one seed, one panel; their winners serve all panels."""

    part: str = param("", "the part whose winners serve this one, which then has no grids of its own; none: this one")
    panel: str = param("", "where the trials are run")
    settings: Settings = param({}, "on top of the panel's: a selection set, for one")
    share: float = param(1.0, "of the runs' rounds", gt=0, le=1)
    seed: int = param(0, "the one seed")
    default_first: bool = param(False, "of equally accurate trials the row's own settings win, not the smallest loss")


@dataclass(frozen=True)
class Part(Section):
    """Runs that a page shows together."""

    title: str = param("", "heading on the page")
    note: str = param("", "what a reader should know: protocol, choices, how to read it")
    settings: Settings = param({}, "of all cells")
    panels: dict[str, Panel] = param({}, "tables, side by side in the figure")
    rows: dict[str, Settings] = param(
        {}, "methods, as the tables name them; `like: <row>` begins with that row's settings and winner"
    )
    named_by_panel: bool = param(True, "whether cells' names hold the panel, where there are several")
    seeds: list[int] = param([0], "one run of every row in every panel for each")
    grids: dict[str, dict[str, list[Any]]] = param({}, "values tried, by row; every combination is a trial")
    search: Search = section(Search, "how they are tried")
    measures: list[str] = param(
        [], "columns besides the accuracy: keys of the cells' `outcome` or, over the last fifth, `curve`"
    )
    reach: list[float] = param([], "accuracies % whose first evaluation the tables show, in rounds and floats")
    figures: dict[str, list[str]] = param(
        {"test_accuracy": ["communication_rounds"]},
        "what they show (a key of the cells' `curve`): over what, a line of panels each",
    )
    minutes: float = param(1.0, "of a cell on one core, for the announcement, until some are done", gt=0)
