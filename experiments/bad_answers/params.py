"""What params.yaml beside this file may hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pipeline.config.spec import Section, param, section

Options = dict[str, Any]
"""`algorithm`, its own options by their names, and `robust.*`."""


@dataclass(frozen=True)
class AnswersRuns(Section):
    """Every row on every federation from every seed."""

    rows: list[str] = param([], "by name; [] = all")
    data: list[str] = param([], "names; [] = all")
    faults: list[str] = param([], "names")
    shares: list[str] = param([], "of bad clients; [] = all")
    seeds: list[int] = param([0], "of the federation and of the run")
    screening: list[bool | float] = param(
        [True], "answers out of proportion are left out; a number = `screening.factor` in place of the default's"
    )


@dataclass(frozen=True)
class AnswersSearch(Section):
    """Trials."""

    seeds: list[int] = param([0], "not reported")
    federations: list[list[str]] = param([], "data, fault and share of each")
    grids: dict[str, dict[str, list[Any]]] = param({}, "of a row: values tried; every combination is a trial")


@dataclass(frozen=True)
class Profile(Section):
    """quick or full."""

    rounds: int = param(100, "of every run", ge=1)
    batch_size: int = param(32, "of a client's minibatch", ge=1)
    runs: dict[str, AnswersRuns] = param({}, "by any names")
    search: AnswersSearch = section(AnswersSearch, "parameters")


@dataclass(frozen=True)
class AnswersStudy(Section):
    """The file."""

    rows: dict[str, Options] = param({}, "name -> algorithm, its options by their names, and robust.*")
    quick: Profile = section(Profile, "a part of it")
    full: Profile = section(Profile, "all of it")
