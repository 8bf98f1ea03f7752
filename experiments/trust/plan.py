"""What params.yaml beside this file declares, and the cells it means: a method on a federation, from one seed."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from experiments.trust.federations import FEDERATIONS, KNOWN, available
from experiments.trust.params import Options, TrustStudy
from experiments.trust.running import METHODS
from pipeline.config.loading import checked, read_yaml
from pipeline.config.spec import override
from pipeline.errors import UserError, not_allowed
from pipeline.params import Params

HERE = Path(__file__).parent
LEAD, AVERAGE, ORACLE = "primal_dual", "average", "oracle_weights"


@dataclass(frozen=True)
class PlannedRun:
    """One run. options: hyper-parameters of the method that differ from the defaults."""

    federation: str
    seed: int
    method: str
    rounds: int
    participation: float
    batch_size: int = 32
    options: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        return (
            f"{self.method} on {self.federation}-{self.seed}, {self.rounds} rounds,"
            f" participation {self.participation:g}"
        )

    @property
    def key(self) -> str:
        """Names the cell by everything it depends on but the code; a changed default is another cell."""
        content = dataclasses.asdict(self) | {"options": _hyper(self.method, self.options)}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]


def _hyper(method: str, options: tuple[tuple[str, Any], ...]) -> Any:
    """All hyper-parameters in use. Raises UserError for options that the library does not admit."""
    text = json.dumps(options)
    return _checked_hyper(method, text)


@cache
def _checked_hyper(method: str, options: str) -> Any:
    if method not in METHODS:
        raise not_allowed("methods", method, f"one of {', '.join(METHODS)}", "name one of them")
    settings = {f"algorithms.{method}.{name}": value for name, value in json.loads(options)}
    try:
        params = checked(Params, dataclasses.asdict(override(Params(), settings)), "experiments/trust/params.yaml")
    except KeyError as error:
        raise UserError(f"experiments/trust/params.yaml: {error.args[0]}. Fix: rename or remove it.") from None
    return dataclasses.asdict(getattr(params.algorithms, method))


def load(path: Path = HERE / "params.yaml") -> TrustStudy:
    """UserError for whatever cannot be run, before anything is."""
    try:
        study = TypeAdapter(TrustStudy).validate_json(json.dumps(read_yaml(path)), strict=True)
    except ValidationError as error:
        lines = [f"{path.name}: {'.'.join(map(str, e['loc']))}: {e['msg'].lower()}" for e in error.errors()]
        raise UserError("\n".join(lines) + ". Fix: see experiments/trust/params.py for what may stand there.") from None
    for runs in (*study.quick.values(), *study.full.values()):
        _require_federations([*runs.federations, *runs.leave_out])
        for method in runs.methods:
            _hyper(method, ())
        for method, options in runs.options.items():
            _hyper(method, tuple(options.items()))
    _check_search(study)
    return study


def _require_federations(names: list[str]) -> None:
    for name in names:
        if name not in KNOWN:
            raise not_allowed("federations", name, f"one of {', '.join(KNOWN)}", "name one of them")


def _check_search(study: TrustStudy) -> None:
    """As many trials for every method, and no seed that is reported."""
    search = study.search
    _require_federations(search.federations)
    reported = {seed for runs in (*study.quick.values(), *study.full.values()) for seed in runs.seeds}
    if shared := sorted(reported & set(search.seeds)):
        raise not_allowed("search.seeds", search.seeds, f"no seed that is reported, as {shared[0]} is", "take others")
    trials = {method: len(list(grid_of(study, method))) for method in search.grids}
    if len(set(trials.values())) > 1:
        counts = ", ".join(f"{method} {count}" for method, count in trials.items())
        raise not_allowed("search.grids", counts, "as many trials for every method", "add or remove values")
    for method in search.grids:
        for options in grid_of(study, method):
            _hyper(method, tuple(options.items()))


def grid_of(study: TrustStudy, method: str) -> Iterator[Options]:
    """The trials of a method."""
    grid = study.search.grids[method]
    for values in itertools.product(*grid.values()):
        yield dict(zip(grid, values, strict=True))


def cells(study: TrustStudy, profile: str, winners: dict[str, Options] | None = None) -> list[PlannedRun]:
    """Of a profile, each once, federation by federation. winners: the search's, by method."""
    found: dict[PlannedRun, None] = {}
    for runs in getattr(study, profile).values():
        wanted = [name for name in runs.federations or FEDERATIONS if name not in runs.leave_out]
        for seed, name in itertools.product(runs.seeds, available(wanted)):
            for method, rounds, p in itertools.product(runs.methods, runs.rounds, runs.participation):
                options = (winners or {}).get(method, {}) if runs.winners else {}
                options = options | runs.options.get(method, {})
                found[PlannedRun(name, seed, method, rounds, p, study.batch_size, tuple(options.items()))] = None
    return list(found)


def trials(study: TrustStudy, method: str) -> Iterator[tuple[Options, list[PlannedRun]]]:
    """Of the search: what is tried, and where."""
    search = study.search
    where = list(itertools.product(search.seeds, available(search.federations), search.rounds, search.participation))
    for options in grid_of(study, method):
        fixed = tuple(options.items())
        yield options, [PlannedRun(f, seed, method, rounds, p, study.batch_size, fixed) for seed, f, rounds, p in where]
