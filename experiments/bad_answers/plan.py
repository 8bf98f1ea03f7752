"""What params.yaml beside this file declares, and the cells it means.

A cell is a row (a method with its settings) on a federation, from one seed. Rows with grids have as many trials each,
on federations from a seed that is not reported; the winner is the most accurate on their selection sets, on average.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter, ValidationError

from experiments.bad_answers.federations import DATA, FAULTS, HONEST, SHARES
from experiments.bad_answers.params import AnswersSearch, AnswersStudy, Options, Profile
from experiments.results import Row
from pipeline.config.loading import read_yaml
from pipeline.config.spec import override
from pipeline.errors import UserError, not_allowed
from pipeline.methods.consensus.robust import Robust
from pipeline.params import Algorithms

HERE = Path(__file__).parent


@dataclass(frozen=True)
class AnswersRun:
    """One run. options: `algorithm`, its own options and `robust.*`. part: of the page, or search."""

    part: str
    row: str
    data: str
    fault: str
    share: str
    seed: int
    rounds: int
    batch_size: int
    screening: bool | float
    options: tuple[tuple[str, Any], ...]

    def __str__(self) -> str:
        return f"{self.row} on {self.data}-{self.seed}, {self.fault} at a {self.share}"

    @property
    def key(self) -> str:
        """Names the run by everything it depends on but the code; a changed default is another one."""
        algorithm, options, robust = settings(dict(self.options))
        content = dataclasses.asdict(self) | {"options": [algorithm, options, robust], "part": None, "row": None}
        return hashlib.sha256(json.dumps(content, sort_keys=True, default=dataclasses.asdict).encode()).hexdigest()[:12]


def settings(options: Options) -> tuple[str, Any, Robust]:
    """Method, its hyper-parameters and the robust rule. Raises UserError for what the library does not know."""
    own = dict(options)
    algorithm = own.pop("algorithm")
    rule = {name.removeprefix("robust."): own.pop(name) for name in options if name.startswith("robust.")}
    try:
        return algorithm, override(getattr(Algorithms(), algorithm), own), override(Robust(), rule)
    except (AttributeError, KeyError) as error:
        raise UserError(f"experiments/bad_answers/params.yaml: {error.args[0]}. Fix: rename or remove it.") from None


def load(path: Path = HERE / "params.yaml") -> AnswersStudy:
    """UserError for whatever cannot be run, before anything is."""
    try:
        study = TypeAdapter(AnswersStudy).validate_json(json.dumps(read_yaml(path)), strict=True)
    except ValidationError as error:
        lines = [f"{path.name}: {'.'.join(map(str, e['loc']))}: {e['msg'].lower()}" for e in error.errors()]
        raise UserError("\n".join(lines) + ". Fix: see experiments/bad_answers/params.py.") from None
    for options in study.rows.values():
        settings(options)
    for profile in (study.quick, study.full):
        for runs in profile.runs.values():
            for key, known in (("rows", study.rows), ("data", DATA), ("faults", [*FAULTS, HONEST]), ("shares", SHARES)):
                _require(key, getattr(runs, key), known)
        counts = {row: len(list(grid(profile.search, row))) for row in profile.search.grids}
        _require("search.grids", list(counts), study.rows)
        if len(set(counts.values())) > 1:
            raise not_allowed("search.grids", counts, "as many trials for every row", "add or remove values")
        reported = {seed for runs in profile.runs.values() for seed in runs.seeds}
        if shared := reported & set(profile.search.seeds):
            raise not_allowed(
                "search.seeds", profile.search.seeds, f"none that is reported, as {min(shared)} is", "others"
            )
    return study


def _require(key: str, names: list[str], known: Any) -> None:
    for name in names:
        if name not in known:
            raise not_allowed(key, name, f"one of {', '.join(known)}", "name one of them")


def grid(search: AnswersSearch, row: str) -> Iterator[Options]:
    """The trials of a row."""
    values = search.grids.get(row, {})
    for chosen in itertools.product(*values.values()):
        yield dict(zip(values, chosen, strict=True))


def trials(study: AnswersStudy, profile: Profile, row: str) -> Iterator[tuple[Options, list[AnswersRun]]]:
    """What is tried, and where; nothing for a row without a grid."""
    search = profile.search
    if row in search.grids:
        for tried in grid(search, row):
            own = tuple((study.rows[row] | tried).items())
            where = itertools.product(search.federations, search.seeds)
            yield (
                tried,
                [
                    AnswersRun("search", row, data, fault, share, seed, profile.rounds, profile.batch_size, True, own)
                    for (data, fault, share), seed in where
                ],
            )


def winner(study: AnswersStudy, profile: Profile, row: str, found: Mapping[str, Row]) -> Options:
    """Of its trials the one most accurate on the selection sets, the first of equals; nothing without trials. Raises
    KeyError if one is not done."""
    scored = [
        (float(np.mean([found[cell.key]["selection"] for cell in cells])), tried)
        for tried, cells in trials(study, profile, row)
    ]
    return max(scored, key=lambda pair: pair[0])[1] if scored else {}


def searched(study: AnswersStudy, profile: Profile) -> list[AnswersRun]:
    """All trials."""
    return [cell for row in study.rows for _, cells in trials(study, profile, row) for cell in cells]


def cells(study: AnswersStudy, profile: Profile, found: Mapping[str, Row] | None) -> list[AnswersRun]:
    """The runs that are reported, with the winners, seed by seed; found: None = without."""
    own = dict(study.rows)
    if found is not None:
        own = {row: options | winner(study, profile, row, found) for row, options in own.items()}
    every = [
        AnswersRun(
            part, row, data, fault, share, seed, profile.rounds, profile.batch_size, screened, tuple(own[row].items())
        )
        for part, runs in profile.runs.items()
        for seed in runs.seeds
        for data in runs.data or DATA
        for share in runs.shares or SHARES
        for fault in runs.faults
        for row in runs.rows or study.rows
        for screened in runs.screening
    ]
    return sorted(every, key=lambda cell: cell.seed)
