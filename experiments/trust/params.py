"""What params.yaml beside this file may hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pipeline.config.spec import Section, param, section

Options = dict[str, Any]
"""Hyper-parameters of a method by dotted name."""


@dataclass(frozen=True)
class Runs(Section):
    """Every method on every federation, from every seed, at every length and participation."""

    methods: list[str] = param([], "by name; `running.METHODS`")
    federations: list[str] = param([], "by name; [] = all")
    leave_out: list[str] = param([], "federations that are not run")
    seeds: list[int] = param([0], "of the federation and of the run")
    rounds: list[int] = param([100], "lengths")
    participation: list[float] = param([1.0], "chance of each client to take part in a round")
    options: dict[str, Options] = param({}, "of a method: hyper-parameters that differ from the defaults")
    winners: bool = param(False, "take the search's winners, where a method has one")


@dataclass(frozen=True)
class TrustSearch(Section):
    """As many trials for every method, on federations from seeds that are not reported."""

    federations: list[str] = param([], "where trials are run")
    seeds: list[int] = param([0], "of the federation and of the run")
    rounds: list[int] = param([100], "lengths")
    participation: list[float] = param([1.0], "chance of each client to take part in a round")
    grids: dict[str, dict[str, list[Any]]] = param({}, "of a method: values tried; every combination is a trial")


@dataclass(frozen=True)
class TrustStudy(Section):
    """The file."""

    batch_size: int = param(32, "of a client's minibatch", ge=1)
    quick: dict[str, Runs] = param({}, "cells by any names; what several mean is run once")
    full: dict[str, Runs] = param({}, "likewise")
    search: TrustSearch = section(TrustSearch, "step sizes")
