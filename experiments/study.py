"""A study: a paper's experiments, declared in the params.yaml of their folder and nowhere else.

    profile (quick, full) -> part (tables and a figure) -> panel (data, split, budget) -> row (method) -> seed

One such combination is a cell (`experiments.cells`). Settings are the library's parameters by dotted name; in rows and
grids a name that does not begin with a section of params.yaml is one of the row's method: `eta_y` of a row with
`algorithm: simfbo` is `algorithms.simfbo.eta_y`. A later level overrides an earlier one: part, panel, row, winner.
A row `like` another one has that one's settings and winner below its own. Below all lie the defaults that recorded
cells were run with (`experiments.former`), or the library's where a level says `defaults: current`. What is no set of
runs on data stands in a profile's section `more`, for more.py beside params.yaml (`Study.extras`).
"""

from __future__ import annotations

import dataclasses
import importlib
import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from experiments import former
from experiments.cells import Cell, read
from experiments.params import Part, Settings
from pipeline.config.loading import checked, read_yaml
from pipeline.config.spec import dotted
from pipeline.errors import UserError, not_allowed
from pipeline.params import Params
from pipeline.params.rules import check_rules

ROOT = Path(__file__).parent
LIKE, MORE = "like", "more"
"""The one setting of a row, and the one section of a profile, that are nothing of the library's."""
PROFILES = ("quick", "full")
AXES = {
    "round": "round",
    "communication_rounds": "communication rounds",
    "floats": "floats sent",
    "gradients": "gradients",
    "hvps": "Hessian-vector products",
    "seconds": "seconds",
}
"""What a figure may count, and how it is called."""
BUDGETS = ("floats", "gradients", "hvps", "communication_rounds")


@dataclass(frozen=True)
class Slot:
    """A cell and its place."""

    part: str
    panel: str
    row: str
    cell: Cell


@dataclass(frozen=True)
class Study:
    """One profile of one folder's params.yaml."""

    name: str
    profile: str
    title: str
    parts: dict[str, Part]
    more: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def folder(self) -> Path:
        return ROOT / self.name

    @property
    def results(self) -> Path:
        return self.folder / "results" / f"{self.profile}.jsonl"

    @property
    def page(self) -> Path:
        return self.folder / "pages" / self.profile

    @property
    def extras(self) -> Any:
        """The module more.py beside params.yaml, or None. It may define

        | function | what for |
        |---|---|
        | `sections(study)` | paragraphs more for the page |
        | `cells(study)`, `run(cell, code)` | cells that are no runs on data, and what makes a row of one |
        | `write_page(study)` | a page of its own kind |
        """
        if not (self.folder / "more.py").is_file():
            return None
        return importlib.import_module(f"experiments.{self.name}.more")

    def table(self, part: str) -> Iterator[Slot]:
        """The runs of a part, the first seeds first, with the search's winners."""
        found = self.parts[part]
        for seed, (panel, where), row in itertools.product(found.seeds, found.panels.items(), found.rows):
            if row in where.leave_out:
                continue
            algorithm = self._algorithm(part, row)
            own = found.settings | where.settings | self._row(part, row) | _named(where.rows.get(row, {}), algorithm)
            own |= _named(self.winner(part, row), algorithm)
            rounds = self._rounds(part, row, where.budget) if where.budget else own.get("train.rounds")
            own |= {"seed": seed} | ({"train.rounds": rounds} if rounds else {})
            yield Slot(part, panel, row, Cell(part, _label(row, panel, found), own))

    def _row(self, part: str, row: str) -> Settings:
        """A row's own settings; below them those of the row that it is like, with that one's winner."""
        own = dict(self.parts[part].rows[row])
        other = own.pop(LIKE, None)
        algorithm = self._algorithm(part, row)
        below = self._row(part, other) | _named(self.winner(part, other), algorithm) if other else {}
        return below | _named(own, algorithm)

    def _algorithm(self, part: str, row: str) -> str | None:
        own = self.parts[part].rows[row]
        return self._algorithm(part, own[LIKE]) if LIKE in own else own.get("algorithm")

    def searched(self, part: str) -> str:
        """The part whose trials serve this one."""
        return self.parts[part].search.part or part

    def trials(self, part: str, row: str | None = None) -> Iterator[tuple[Slot, Settings]]:
        """The part's own search: its runs, each with the values it tries."""
        found = self.parts[part]
        for name, grid in found.grids.items():
            if row in (None, name):
                where, algorithm = found.panels[found.search.panel], self._algorithm(part, name)
                base = found.settings | where.settings | self._row(part, name)
                base |= _named(where.rows.get(name, {}), algorithm)
                for values in itertools.product(*grid.values()):
                    tried = dict(zip(grid, values, strict=True))
                    own = base | _named(tried, algorithm) | found.search.settings | {"seed": found.search.seed}
                    rounds = own.get("train.rounds", Params().train.rounds)
                    own["train.rounds"] = max(1, round(found.search.share * rounds))
                    own["train.eval_every"] = found.search.settings.get("train.eval_every", own["train.rounds"])
                    cell = Cell(f"{part}-search", name, own)
                    yield Slot(part, found.search.panel, name, cell), tried

    def scores(self, part: str, row: str) -> list[tuple[Settings, dict[str, Any] | None]]:
        """Of every trial of a row: what it tried, and its result (None: not run)."""
        return [(tried, read(slot.cell, self.results)) for slot, tried in self.trials(self.searched(part), row)]

    def winner(self, part: str, row: str) -> Settings:
        """The trial most accurate on the selection set, which no method sees; of equals the one of smaller loss, or the
        row's own settings. Empty without a trial that ended: the row's own settings."""
        ended = [
            (t, f["outcome"]) for t, f in self.scores(part, row) if f and "selection_accuracy" in f.get("outcome", {})
        ]
        if not ended:
            return {}
        own = self._default(part, row) if self.parts[self.searched(part)].search.default_first else {}

        def rank(trial: tuple[Settings, dict[str, Any]]) -> tuple[float, bool, float]:
            tried, outcome = trial
            return outcome["selection_accuracy"], tried.items() <= own.items(), -outcome["selection_loss"]

        return max(ended, key=rank)[0]

    def _default(self, part: str, row: str) -> Settings:
        """The hyper-parameters of a row without a search, by the names that grids give them."""
        part = self.searched(part)
        prefix = f"algorithms.{self._algorithm(part, row)}."
        found = dotted(former.parameters(self._row(part, row)))
        return {name.removeprefix(prefix): value for name, value in found.items() if name.startswith(prefix)}

    def waiting(self, part: str) -> set[str]:
        """The rows that have no settings yet: whose trials are not all done, or all diverged."""
        source = self.searched(part)
        undone = {slot.row for slot, _ in self.trials(source) if read(slot.cell, self.results) is None}
        undone |= {row for row in self.parts[source].grids if not self.winner(source, row)}
        return undone | {row for row, own in self.parts[part].rows.items() if own.get(LIKE) in undone}

    def _rounds(self, part: str, row: str, budget: dict[str, float]) -> int | None:
        """As many rounds as the budget pays for, by what a round of the row's trials cost."""
        ((what, amount),) = budget.items()
        for slot, _ in self.trials(self.searched(part), row):
            found = read(slot.cell, self.results)
            if found and "costs" in found:
                spent = cost(found["costs"], what)
                return max(1, round(amount * slot.cell.settings["train.rounds"] / spent)) if spent else None
        return None


def cost(costs: dict[str, float], name: str) -> float:
    """`floats` are those sent up and down."""
    return costs["floats_up"] + costs["floats_down"] if name == "floats" else costs[name]


def _label(row: str, panel: str, part: Part) -> str:
    return f"{row}, {panel}" if len(part.panels) > 1 and part.named_by_panel else row


def _named(settings: Settings, algorithm: str | None) -> Settings:
    """With the method's own parameters under their full names."""
    known = {former.CHOICE} | {field.name for field in dataclasses.fields(Params)}
    return {
        name if name.partition(".")[0] in known else f"algorithms.{algorithm}.{name}": value
        for name, value in settings.items()
    }


# ------------------------------------------------------------------------------------------------- reading params.yaml


def studies() -> list[str]:
    """The folders that hold one."""
    return sorted(path.parent.name for path in ROOT.glob("*/params.yaml") if "title" in read_yaml(path))


def load_study(name: str, profile: str) -> Study:
    """From experiments/<name>/params.yaml; UserError for whatever cannot be run, before anything is."""
    path = ROOT / name / "params.yaml"
    tree = read_yaml(path)
    if profile not in tree:
        raise UserError(f"experiments/{name}/params.yaml has no profile {profile}. Fix: add it, or use another one.")
    more = tree[profile].pop(MORE, {})
    try:
        kind = TypeAdapter(dict[str, Part])
        parts = kind.validate_json(json.dumps(tree[profile]), strict=True)
    except ValidationError as error:
        lines = [f"{path.name}: {profile}.{'.'.join(map(str, e['loc']))}: {e['msg'].lower()}" for e in error.errors()]
        raise UserError("\n".join(lines) + ". Fix: see experiments/params.py for what may stand there.") from None
    study = Study(name, profile, str(tree.get("title", name)), parts, more)
    _check(study, f"experiments/{name}/params.yaml")
    return study


def _check(study: Study, file: str) -> None:
    for name, part in study.parts.items():
        panels = part.panels.values()
        rows = {*part.grids, *(row for p in panels for row in (*p.rows, *p.leave_out, *p.published))}
        if unknown := sorted(rows - part.rows.keys()):
            raise UserError(f"{file}: {study.profile}.{name} has no row {', '.join(unknown)}. Fix: add or rename it.")
        for row, own in part.rows.items():
            _check_likeness(row, own, part, f"{file}: {study.profile}.{name}.rows.{row}.{LIKE}")
        if part.search.part and (part.grids or not study.parts.get(part.search.part, Part()).grids):
            raise not_allowed(
                f"{file}: {study.profile}.{name}.search.part",
                part.search.part,
                "a part that has grids, for a part that has none",
                "name one, or leave out either of them",
            )
        if part.grids and part.search.panel not in part.panels:
            raise UserError(
                f"{file}: {study.profile}.{name}.search.panel = {part.search.panel!r} is not allowed: it must be one of"
                f" {', '.join(part.panels)}. Fix: name the panel on which the grids are tried."
            )
        for key, found, allowed in (
            ("figures", [axis for axes in part.figures.values() for axis in axes], AXES),
            ("budget", [what for panel in panels for what in panel.budget], BUDGETS),
        ):
            if wrong := [value for value in found if value not in allowed]:
                raise not_allowed(
                    f"{file}: {study.profile}.{name}.{key}", wrong, f"of {', '.join(allowed)}", "name one"
                )
        for slot, _ in study.trials(name):
            if slot.cell.settings.get("partition.selection_per_label") == 0:
                raise not_allowed(
                    f"{file}: {study.profile}.{name}.search.settings: partition.selection_per_label",
                    0,
                    "at least 1, for trials are compared on the selection set",
                    "add it there",
                )
        for slot in itertools.chain((slot for slot, _ in study.trials(name)), study.table(name)):
            _check_cell(slot, f"{file}: {study.profile}.{name}, {slot.row}, {slot.panel}")


def _check_likeness(row: str, own: Settings, part: Part, where: str) -> None:
    """The row that it is like is there, and like no other one."""
    allowed = [other for other, settings in part.rows.items() if LIKE not in settings]
    if LIKE in own and own[LIKE] not in allowed:
        raise not_allowed(where, own[LIKE], f"one of {', '.join(allowed)}", "name a row with settings of its own")


def _check_cell(slot: Slot, where: str) -> None:
    """The library admits its parameters."""
    try:
        params = former.parameters(slot.cell.settings)
    except KeyError as error:
        raise UserError(f"{where}: {error.args[0]}. Fix: rename or remove it.") from None
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    try:
        check_rules(checked(Params, dataclasses.asdict(params), where))
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
