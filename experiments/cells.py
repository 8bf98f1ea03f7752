"""Cells: single runs of an experiment, each of which ends as one small file.

A cell is a set of parameters on top of defaults. Its file holds what it was, what came out, and where and
when it was run; it is named by the cell and by the fingerprint of everything the result depends on but the code, so a
finished cell is never run again, an edited one is, and a file made on another machine is taken in by copying it. Needs
neither DVC nor MLflow.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import platform
import signal
import subprocess
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from experiments import former
from pipeline.config.spec import Section
from pipeline.errors import UserError, not_allowed

ROOT = Path(__file__).parents[1]
COSTS = ("communication_rounds", "gradients", "hvps", "seconds")
RECORD = 2
"""Of a cell's file: which meaning its numbers have. Older ones are read as if they were new (`_as_recorded_now`)."""
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

    @property
    def name(self) -> str:
        """Readable, and unique by everything that is set: a changed default is another cell."""
        text = json.dumps({"row": self.row, **in_use(self.settings)}, sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:10]
        row = "".join(c if c.isalnum() else "-" for c in self.row)
        return f"{self.table}/{row}_p{self.participation:g}_seed{self.seed}_{digest}"

    def path(self, folder: Path) -> Path:
        return folder / f"{self.name}.json"


def in_use(settings: dict[str, Any]) -> dict[str, Any]:
    """Every parameter that decides the result, defaults included: no other method's, problem's or scheme's section."""
    from pipeline.methods.registry import family
    from pipeline.params import Subset
    from pipeline.params.resolve import problem_in_use, resolve

    params = resolve(former.parameters(settings))
    problem, scheme = problem_in_use(params), params.partition.scheme
    parts: dict[str, Any] = {
        "seed": params.seed,
        "data": params.data.name,
        "federation": params.federation,
        problem: getattr(params.problems, problem),
        params.algorithm: getattr(params.algorithms, params.algorithm),
        "train": {name: getattr(params.train, name) for name in ("rounds", "eval_every", "precision", "backend")},
    }
    if params.subset != Subset():
        parts["subset"] = params.subset
    if params.data.name != "toy":
        dealt = {field.name: getattr(params.partition, field.name) for field in dataclasses.fields(params.partition)}
        own = {name: value for name, value in dealt.items() if not dataclasses.is_dataclass(value) or name == scheme}
        parts |= {"model": params.model, "partition": own | {scheme: dataclasses.asdict(own[scheme])}}
    plain = {name: _plain(part) for name, part in parts.items()}
    method = plain[params.algorithm]
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


def _plain(part: Any) -> Any:
    """A section as a dictionary."""
    return dataclasses.asdict(part) if isinstance(part, Section) and dataclasses.is_dataclass(part) else part


Result = dict[str, Any]
"""A cell's file: cell, record, outcome, curve (columns by name), machine; `failed` with the reason if it diverged."""


def read(cell: Cell, folder: Path) -> Result | None:
    """The cell's file; None if it has not been run."""
    path = cell.path(folder)
    return _as_recorded_now(cell, json.loads(path.read_text())) if path.is_file() else None


def save(cell: Cell, folder: Path, content: Result) -> None:
    """Write the cell's file, whole or not at all; a line per part."""
    path = cell.path(folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text("{\n" + ",\n".join(f'"{k}": {json.dumps(part)}' for k, part in content.items()) + "\n}\n")
    os.replace(partial, path)


def run_all(
    cells: Sequence[Cell],
    folder: Path,
    workers: int,
    data: Path,
    runner: Callable[[Cell, Path, Path], str] | None = None,
) -> None:
    """Run the missing cells in their order, in `workers` processes of one thread each; a line for each as it ends. A
    cell that another table has run already is taken over.

    One thread per cell: on two cores two cells side by side take about half the time of one after the other with two
    threads each, since a round's tensors are too small to share.
    """
    missing = [cell for cell in cells if not cell.path(folder).is_file() and not take_over(cell, folder)]
    if cells:
        print(f"{len(cells) - len(missing)} of {len(cells)} cells are done, {len(missing)} to run", flush=True)
    if not missing:
        return
    for name in {str(cell.settings.get("data.name", "digits")) for cell in missing} - {"toy"}:
        fetch(name, data)
    start, broken = time.monotonic(), []
    # Forked children would inherit torch's threads and locks.
    pool = ProcessPoolExecutor(workers, get_context("spawn"), initializer=prepare_worker, initargs=(os.getpid(),))
    try:
        futures = {pool.submit(runner or run, cell, folder, data): cell for cell in missing}
        for done, future in enumerate(as_completed(futures), 1):
            try:
                line = future.result()
            except BrokenProcessPool:
                raise UserError(
                    "a worker process was killed (out of memory?); what is finished is kept. Fix: fewer --workers."
                ) from None
            except Exception as error:
                broken.append(futures[future].name)
                line = f"{broken[-1]}: failed with {type(error).__name__}: {error}"
            left = (time.monotonic() - start) / done * (len(missing) - done)
            print(f"[{done}/{len(missing)}, about {left / 60:.0f} min left] {line}", flush=True)
    finally:
        pool.shutdown(cancel_futures=True)
    if broken:
        raise UserError(
            f"{len(broken)} cells failed: {', '.join(broken)}. Fix: run one alone with `--only` to see why."
        )


def take_over(cell: Cell, folder: Path) -> bool:
    """Copy the file of the same run in another table; whether there is one."""
    twins = sorted(folder.glob(f"*/{cell.path(folder).name}"))
    if twins:
        save(cell, folder, json.loads(twins[0].read_text()) | {"cell": dataclasses.asdict(cell)})
    return bool(twins)


def fetch(name: str, data: Path) -> None:
    """The data set in canonical form, once for all cells."""
    from pipeline.data.datasets import prepare

    if not (data / name).is_dir():
        print(prepare(name, data / name), flush=True)


def prepare_worker(parent: int) -> None:
    """One thread for the mathematics; a worker ends at once with Ctrl-C, or when its parent is gone."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    signal.signal(signal.SIGINT, signal.SIG_DFL)
    threading.Thread(target=watch, daemon=True).start()
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")


def run(cell: Cell, folder: Path, data: Path) -> str:
    """Run one cell to its file, going on from where it was interrupted; returns a line on what came out."""
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
    content: Result = {"cell": dataclasses.asdict(cell), "record": RECORD, "machine": machine(str(task.device))}
    start = time.monotonic()
    try:
        with ResumeFolder(folder.parent / ".resume", run_fingerprint(params, task)) as resume:
            module, history = train(params, task, resume, progress=False)
            history.export(resume.path / "out")
            content |= _outcome(task, quality, module.served, resume.path / "out")
            resume.discard()
    except NotFinite as error:
        content["failed"] = str(error).split(" Fix:")[0]
    content["machine"]["seconds"] = round(time.monotonic() - start, 1)
    if task.device.type == "cuda":
        content["machine"]["peak_gpu_bytes"] = torch.cuda.max_memory_allocated()
    save(cell, folder, content)
    figures = [(name, value) for name, value in content.get("outcome", {}).items() if isinstance(value, float)]
    what = content.get("failed") or ", ".join(f"{name} {value:.4g}" for name, value in figures)
    return f"{cell.name}: {what}"


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


# ------------------------------------------------------------------------------------------------------ older files


def _as_recorded_now(cell: Cell, result: Result) -> Result:
    """An older file's content with the meaning that a new one's has.

    Record 1 tested theta of every method with duals and theta-bar beside it, where A-FedPD's own model is theta-bar;
    and did not count x and y for clients that FedNest's fresh sets ask later than its first one.
    """
    if result.get("record", 1) >= 2 or "curve" not in result:
        return result
    if "average_accuracy" in result["curve"]:
        return _with_both_models(cell, result)
    if cell.settings.get("algorithm") in ("fednest", "fednest_general"):
        return _with_fresh_sets_sent(cell, result)
    return result


def _with_both_models(cell: Cell, result: Result) -> Result:
    """Losses were theta's: where that is not the model any more they are left out."""
    from pipeline.params import Algorithms

    mean = getattr(Algorithms(), cell.settings["algorithm"]).served == "w_bar"
    found = {}
    for name in ("outcome", "curve"):
        part = result[name] | {"shifted_accuracy": result[name]["test_accuracy"]}
        if mean:
            part["test_accuracy"] = part["average_accuracy"]
            part = {key: value for key, value in part.items() if not key.endswith("_loss")}
        found[name] = part
    return result | found


def _with_fresh_sets_sent(cell: Cell, result: Result) -> Result:
    """The sets are drawn again. FedNest sends T d_x + d_y numbers more down than up to each client of a set."""
    from pipeline.params.resolve import resolve

    params = resolve(former.parameters(cell.settings))
    hyper, federation = params.algorithms.fednest_general, params.federation
    fresh = (hyper.client_sets, hyper.mode, hyper.series) == ("fresh", "clean", "deterministic")
    if params.algorithm != "fednest_general" or federation.participation == 1 or not fresh:
        return result
    if federation.sampling != "fixed" or hyper.lower_rounds != 1:
        raise UserError(
            f"the floats of {cell.name} are counted as they were before, and cannot be counted again"
            " under bernoulli sampling or with several lower rounds. Fix: delete its file, and the cell is run again."
        )
    clients, rounds = len(result["kinds"]), params.train.rounds
    n, more = _asked_later(clients, federation.participation, params.seed, rounds, hyper.series_terms)
    costs = result["costs"]
    point = (costs["floats_down"] - costs["floats_up"]) // (rounds * n)  # d_x + d_y
    curve = result["curve"]
    floats = [spent + point * more[int(r)] for spent, r in zip(curve["floats"], curve["round"], strict=True)]
    costs = costs | {"floats_down": costs["floats_down"] + point * more[-1]}
    return result | {"costs": costs, "curve": curve | {"floats": floats}}


@lru_cache
def _asked_later(clients: int, participation: float, seed: int, rounds: int, terms: int) -> tuple[int, list[int]]:
    """Clients of a set; and, after 0, 1, ... rounds, how many were asked that were not in FedOut's first set."""
    import torch

    from pipeline.participation import active_clients

    n, total = 0, [0]
    for t in range(1, rounds + 1):
        sets = [active_clients(clients, "fixed", participation, seed, t, 2, m) for m in range(terms + 1)]
        n = len(sets[0])
        total.append(total[-1] + len(torch.cat(sets).unique()) - n)
    return n, total


def machine(device: str) -> dict[str, Any]:
    """Where and when, and with which code: a commit, "-dirty" if code was changed since (pages and locks are none)."""
    import torch

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
        return done.stdout.strip()

    commit, changed = git("describe", "--always"), git("status", "--porcelain", "--", "pipeline", "experiments/*.py")
    return {
        "device": torch.cuda.get_device_name() if device.startswith("cuda") else _processor(),
        "date": datetime.now(UTC).date().isoformat(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "commit": (commit or "unknown") + "-dirty" * bool(changed),
    }


def _processor() -> str:
    """The processor's name as the kernel has it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def selected(cells: Iterable[Cell], pattern: str) -> list[Cell]:
    """The cells whose name contains the pattern."""
    return [cell for cell in cells if pattern in cell.name]


def require_one(cells: Iterable[Cell], pattern: str) -> None:
    """UserError if the pattern is in no cell's name."""
    names = [cell.name for cell in cells]
    if names and not any(pattern in name for name in names):
        raise not_allowed("--only", pattern, f"part of a cell's name, such as {names[0]}", "name one of them")


def workers(asked: int | None) -> int:
    """One process per core, or one for a GPU."""
    import torch

    if asked:
        return asked
    return 1 if torch.cuda.is_available() else max(1, len(os.sched_getaffinity(0)))
