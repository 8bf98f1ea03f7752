"""Cells: single runs of an experiment, each of which ends as one row of a results file (`experiments.results`).

A cell is a set of parameters on top of defaults. Its row holds what it was, what came out, and where and when it was
run; it is named by the cell and by the fingerprint of everything the result depends on but the code, so a finished
cell is never run again and an edited one is.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

from experiments import former, provenance, results
from experiments.results import Row
from experiments.workers import run_missing
from pipeline.config.spec import dotted
from pipeline.errors import not_allowed

COSTS = ("communication_rounds", "gradients", "hvps", "seconds")
TAIL = 100
"""Client weights are averaged over this many last rounds, as in the papers' tables; a short run's over its last
fifth."""


@dataclass(frozen=True)
class Cell:
    """One run. table: which table or figure it belongs to. row: the method, as the table names it. settings: dotted
    parameters on top of the former defaults (`experiments.former`), or of today's with `defaults: current`."""

    table: str
    row: str
    settings: dict[str, Any]

    @property
    def seed(self) -> int:
        return int(self.settings.get("seed", 0))

    @property
    def participation(self) -> float:
        return float(self.settings.get("federation.participation", 1.0))

    @cached_property
    def name(self) -> str:
        """Readable, and unique by everything that is set: a changed default is another cell."""
        digest = _digest(self.row, json.dumps(self.settings))
        row = "".join(c if c.isalnum() else "-" for c in self.row)
        return f"{self.table}/{row}_p{self.participation:g}_seed{self.seed}_{digest}"

    def __str__(self) -> str:
        return self.name


@cache
def _digest(row: str, settings: str) -> str:
    """settings: as JSON."""
    text = json.dumps({"row": row, **in_use(json.loads(settings))}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def in_use(settings: dict[str, Any]) -> dict[str, Any]:
    """What decides the run (`pipeline.params.decides`), in the form that recorded names are made of: they know neither
    the screening nor the loss, and of `train` only the settings below."""
    from pipeline.methods.registry import family
    from pipeline.params import Subset
    from pipeline.params.decides import params_in_use
    from pipeline.params.resolve import resolve

    params = resolve(former.parameters(settings))
    used = _nested(params_in_use(dotted(params)))
    method = used["algorithms"][params.algorithm]
    plain: dict[str, Any] = {
        "seed": params.seed,
        "data": params.data.name,
        "federation": used["federation"],
        params.problem: used["problems"][params.problem],
        params.algorithm: method,
        "train": {name: used["train"][name] for name in ("rounds", "eval_every", "precision", "backend")},
    }
    if params.subset != Subset():
        plain["subset"] = used["subset"]
    if robust := used.get("robust"):
        plain["robust"] = {"rule": robust["rule"]} | robust.get(robust["rule"], {})
    if "model" in used:
        dealt = {name: value for name, value in used["partition"].items() if value != {}}
        plain |= {"model": used["model"], "partition": dealt}
    # Older cells know no such options, and are what they are without.
    if family(params.algorithm) == "weighting":
        method = plain[params.algorithm] = former.left_out(method)
        if not method["clip_norm"]:
            del method["clip_norm"]
    if params.algorithm == "primal_dual" and "constant" in (method["schedule"], method["gamma_schedule"]):
        del method["gamma_schedule"]
    if "weights" in method:
        weights = method["weights"] = former.left_out(method["weights"])
        if not weights["server_steps"]:
            del weights["server_steps"]
    return plain


def _nested(flat: dict[str, Any]) -> dict[str, Any]:
    """Dotted names as sections."""
    tree: dict[str, Any] = {}
    for name, value in flat.items():
        *sections, last = name.split(".")
        place = tree
        for section in sections:
            place = place.setdefault(section, {})
        place[last] = value
    return tree


Result = Row
"""A cell's row: key, cell, machine, outcome, kinds, costs, curve (columns by name); if it diverged, `failed` with the
reason in place of the last four. `kept` in machine: by code with uncommitted changes, and too long to run again."""


def read(cell: Cell, path: Path) -> Result | None:
    """The cell's row in the results file; None if it has not been run."""
    return results.read(path).get(cell.name)


def run_all(
    cells: Sequence[Cell], path: Path, workers: int, data: Path, runner: Callable[..., Result] | None = None
) -> None:
    """Run the missing cells in their order. A cell that another table has run already is taken over. What code with
    uncommitted changes has run is missing once there are none.

    runner: runs a cell that is no run of the library on data (`run`); gets the cell and code=.
    """
    found, changed = results.read(path), bool(provenance.changes())
    done = {name for name, row in found.items() if changed or _of_a_commit(row)}
    missing = {cell.name: cell for cell in cells if cell.name not in done}
    if runner is None:
        taken = take_over(missing.values(), [found[name] for name in done], path)
        missing = {name: cell for name, cell in missing.items() if name not in taken}
    if not cells:
        return
    for name in {str(cell.settings.get("data.name", "digits")) for cell in missing.values()} - {"toy"}:
        fetch(name, data)
    code = provenance.commit()
    own = partial(run, resume=path.parents[1] / ".resume", data=data)
    run_missing(missing, len(cells), path, partial(runner or own, code=code), workers)


def _of_a_commit(row: Row) -> bool:
    """Whether a commit has the code that made it, or it is kept all the same."""
    machine = row["machine"]
    return "kept" in machine or not machine["commit"].endswith(provenance.CHANGED)


def take_over(cells: Iterable[Cell], rows: Iterable[Row], path: Path) -> set[str]:
    """Copy the row of the same run in another table; the names of the cells that have one."""
    twins = {row["key"].rpartition("/")[2]: row for row in rows}
    taken = set()
    for cell in cells:
        if twin := twins.get(cell.name.rpartition("/")[2]):
            results.append(path, twin | {"key": cell.name, "cell": dataclasses.asdict(cell)})
            taken.add(cell.name)
    return taken


def fetch(name: str, data: Path) -> None:
    """The data set in canonical form, once for all cells."""
    from pipeline.data.datasets import prepare

    if not (data / name).is_dir():
        print(prepare(name, data / name), flush=True)


def run(cell: Cell, resume: Path, data: Path, code: str) -> Result:
    """Run one cell, going on from where it was interrupted. resume: the folder for that. code: the commit."""
    import torch

    from pipeline.data.datasets import load
    from pipeline.data.partition import make_partition
    from pipeline.data.sets.registry import TOY
    from pipeline.params.resolve import resolve
    from pipeline.training.module import NotFinite
    from pipeline.training.resume import ResumeFolder
    from pipeline.training.run import run_fingerprint, train
    from pipeline.training.setup import build_problem, build_toy, device_for
    from pipeline.training.tasks import image_task, toy_task

    params = resolve(former.parameters(cell.settings))
    if params.data.name == TOY:
        task, quality = toy_task(build_toy(params)), []
    else:
        raw = load(data / params.data.name).first(params.subset)
        partition = make_partition(raw.train_labels, raw.name, raw.classes, params.partition, params.seed)
        problem = build_problem(params, raw, partition, device_for(params.train.accelerator))
        task, quality = image_task(problem, raw.hash, partition.hash), partition.quality
    content: Result = {"cell": dataclasses.asdict(cell), "machine": provenance.machine(str(task.device), code)}
    start = time.monotonic()
    try:
        with ResumeFolder(resume, run_fingerprint(params, task)) as folder:
            module, history = train(params, task, folder, progress=False)
            history.export(folder.path / "out")
            content |= _outcome(task, quality, module.served, folder.path / "out")
            folder.discard()
    except NotFinite as error:
        content["failed"] = str(error).split(" Fix:")[0]
    content["machine"]["seconds"] = round(time.monotonic() - start, 1)
    if task.device.type == "cuda":
        content["machine"]["peak_gpu_bytes"] = torch.cuda.max_memory_allocated()
    return content


def _outcome(task: Any, quality: list[float], variables: dict[str, Any], out: Path) -> Result:
    """Final figures, mean weights of the last rounds, costs, and the curve at evaluations."""
    import csv

    import numpy as np

    from pipeline.training import evaluation

    with (out / "history.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    evaluated = [row for row in rows if row["validation_loss"]]
    measured = [name for name in task.measures if evaluated[-1][name]]  # theta-bar, for one, is not every method's
    columns = ["round", *measured]
    with np.load(out / "client_weights_history.npz") as saved:
        weights = saved["weights"].astype(float)
    columns += [*COSTS, *_reports(evaluated[0], task)]
    curve: dict[str, list[float]] = {
        name: [float(row[name]) if row[name] else float("nan") for row in evaluated] for name in columns
    }
    outcome: dict[str, Any] = {name: curve[name][-1] for name in measured}
    curve["floats"] = [float(row["floats_up"]) + float(row["floats_down"]) for row in evaluated]
    if len(weights):
        last = weights[-max(1, min(TAIL, (len(weights) - 1) // 5)) :].mean(0)
        outcome["weights"] = [round(value, 7) for value in last.tolist()]
        curve["clean_weight"] = [float(weights[int(r), task.clean].sum()) for r in curve["round"]]
    if "test_accuracy" in task.measures:
        found = evaluation.outcome(task.problem, variables)
        outcome["test_loss"] = found.test.loss
        if found.selection:
            outcome |= {f"selection_{name}": found.selection.figures[name] for name in ("accuracy", "loss")}
        if found.weighted:
            weights = np.array(outcome.get("weights", found.weights))
            oracle = task.problem.data.oracle_weights.cpu().numpy()
            outcome |= evaluation.weight_quality(weights, oracle, task.clean)
            outcome |= evaluation.detection(weights, task.kinds, quality)
    costs = ("communication_rounds", "floats_up", "floats_down", "gradients", "hvps")
    return {
        "outcome": outcome,
        "kinds": task.kinds,
        "costs": {name: int(float(rows[-1][name])) for name in costs} | {"seconds": float(rows[-1]["seconds"])},
        "curve": curve,
    }


def _reports(row: dict[str, str], task: Any) -> list[str]:
    """Columns that are the method's own: residuals, norms."""
    known = {"round", "floats_up", "floats_down", *COSTS, *task.measures}
    return [name for name in row if name not in known and not name.startswith("client_weight")]


def selected(cells: Iterable[Cell], pattern: str) -> list[Cell]:
    """The cells whose name contains the pattern."""
    return [cell for cell in cells if pattern in cell.name]


def require_one(cells: Iterable[Cell], pattern: str) -> None:
    """UserError if the pattern is in no cell's name."""
    names = [cell.name for cell in cells]
    if names and not any(pattern in name for name in names):
        raise not_allowed("--only", pattern, f"part of a cell's name, such as {names[0]}", "name one of them")
