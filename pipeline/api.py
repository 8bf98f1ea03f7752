"""Learn whom to trust, in three lines of Python: no files, no DVC, no MLflow.

import fedbilevel as fb

found = fb.fit({"north": (X1, y1), "south": (X2, y2)}, validation=(X0, y0))
print(found.weights)
"""

from __future__ import annotations

import copy
import dataclasses
import difflib
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from pipeline.config.loading import checked
from pipeline.config.own_code import cause
from pipeline.config.spec import dotted, override
from pipeline.data.own_partition import dealt_anew, partition_of
from pipeline.data.partition import Partition
from pipeline.data.raw import RawDataset
from pipeline.errors import UserError
from pipeline.fitted import Fit
from pipeline.in_memory import TARGET, Samples, assembled
from pipeline.methods.registry import algorithm_named
from pipeline.models import FlatModel, tried
from pipeline.params import Params, Resolved
from pipeline.params.resolve import resolve, switched
from pipeline.params.rules import check_rules
from pipeline.params.tree import params_of
from pipeline.report.numbers import UNCHECKED, served_line
from pipeline.sharing import Share
from pipeline.training.best import Best, selection_of
from pipeline.training.loop import Loop, evaluates, row_of
from pipeline.training.setup import build_context, build_problem, device_for
from pipeline.training.tasks import image_task

SHORT = ("federation", "train", "data", "partition", "loss", "model")
"""Sections whose keys `fit` takes by their own name, as in `participation=0.5`; the method's hyper-parameters first."""
IN_FILES = (
    "name",
    "mirror",
    "path",
    "label",
    "client",
    "features",
    "group",
    "image_size",
    "channels",
    "skip_unreadable",
)
"""Keys of `data` that say where samples are and what their columns mean, in params.yaml alone."""
STEPS = ("lr", "learning_rate", "step_size", "eta")


def fit(
    clients: Mapping[str, Samples],
    validation: Samples | None = None,
    test: Samples | None = None,
    *,
    selection: Samples | None = None,
    groups: Mapping[str, Any] | None = None,
    model: str | nn.Module | Callable[..., nn.Module] | None = None,
    algorithm: str = "primal_dual",
    rounds: int = 500,
    seed: int = 0,
    progress: bool = True,
    **settings: Any,
) -> Fit:
    """Train a model on the clients' samples and learn how much to trust each client.

    clients: name -> (X, y). X is [m, f] numbers (nan or masked: missing; [m] for one feature), images [m, H, W] or
    [m, C, H, W], or a DataFrame with numbers, categories, dates and missing values; y is classes of any kind, or
    numbers. validation: the server's clean samples; None holds a tenth of all samples out, which trusts every client a
    little. test: for the figures alone; None holds a fifth out. selection: decides which round is served; None holds
    some out. groups: name -> a value for each of the client's samples, such as the person it is of: where samples are
    held out, those of one value, whichever clients hold them, stay together. model: a name (`linear`, `mlp`, `lenet5`,
    ...), a module, or a function (channels, image_size, classes) -> module; None chooses one for the data. settings:
    the method's hyper-parameters, keys of params.yaml by their own name (`participation=0.5`, `batch_size=16`,
    `replicates=5` for intervals) or dotted.

    Raises UserError, in one line, for whatever does not go together.
    """
    raw = assembled(
        {"clients": clients, "validation": validation, "selection": selection, "test": test}, settings, groups
    )
    params = _params(raw, algorithm, rounds, seed, model, settings)
    check_rules(params)
    if said := switched(params):
        print(f"note: {said}", file=sys.stderr)
    run = resolve(params, raw.info)
    partition = partition_of(raw, run.data, run.partition, run.seed)
    for note in (*raw.notes, *dealt_anew(raw, partition)):
        print(f"note: {note}", file=sys.stderr)
    found = trained(run, raw, partition, _own_network(model, raw), progress=progress)
    facts = {"algorithm": run.algorithm, "rounds": run.train.rounds, "served_round": found.served_round}
    if said := served_line(facts, found.rows):
        print(f"note: {said}", file=sys.stderr)
    if partition.unchecked and found.settled is not None:
        print(f"note: {UNCHECKED}", file=sys.stderr)
    return found


def _params(raw: RawDataset, algorithm: str, rounds: int, seed: int, model: Any, settings: dict[str, Any]) -> Params:
    """Every setting under its dotted name, checked."""
    if not isinstance(algorithm, str):
        raise UserError(f"algorithm is {type(algorithm).__name__}. Fix: the name of a method, such as primal_dual.")
    kind = params_of(algorithm, "natural", "auto")
    chosen: dict[str, Any] = {"data.name": raw.name, "data.path": "in memory", "partition.scheme": "natural"}
    chosen |= {"algorithm": algorithm, "train.rounds": rounds, "seed": seed}
    if raw.name == "table":
        chosen |= {"data.label": TARGET, "data.client": "client"}
    if isinstance(model, str):
        chosen["model.name"] = model
    elif model is not None:
        chosen["model.name"] = "mlp"  # resolved, and not used
    method = algorithm_named(algorithm).name
    known = list(dotted(kind()))
    for name, value in settings.items():
        chosen[_dotted(name, method, known)] = value
    params = override(kind(), {name: _plain(value) for name, value in chosen.items()})
    return checked(kind, dataclasses.asdict(params), "fit")


def _plain(value: Any) -> Any:
    """numpy's numbers and arrays as Python's, tuples as lists."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    return [_plain(each) for each in value] if isinstance(value, tuple | list) else value


def _dotted(name: str, method: str, known: list[str]) -> str:
    """A parameter's full name; UserError for one that does not exist, or that `fit` has no use for."""
    places = [f"algorithms.{method}.{name}", *(f"{section}.{name}" for section in SHORT), name]
    place = next((place for place in places if place in known), None)
    if place and (place.startswith(("tracking.", "sweep.", "subset.")) or place in [f"data.{key}" for key in IN_FILES]):
        fix = "groups, a dictionary of a value per sample of each client" if place == "data.group" else "remove it"
        raise UserError(f"fit: {name} is of files and stages, and fit has the samples themselves. Fix: {fix}.")
    if place:
        return place
    own = [key.split(".", 2)[2] for key in known if key.startswith(f"algorithms.{method}.")]
    others = [key.split(".")[1] for key in known if key.startswith("algorithms.") and key.split(".", 2)[2] == name]
    usable = [key for section in SHORT for key in _keys(known, section)]
    near = difflib.get_close_matches(name, [*own, *usable], n=1)
    if others:
        hint = f"It is one of {', '.join(others[:5])}{' ...' if len(others) > 5 else ''}."
    elif name in STEPS and (steps := [key for key in own if key.split("_")[0] == "eta"]):
        hint = f"Its steps are {', '.join(steps)}."
    else:
        hint = f"Did you mean {near[0]}?" if near else f"Those of {method} are {', '.join(own)}."
    raise UserError(f"fit: {name} is no parameter of {method} or of params.yaml. {hint} Fix: rename or remove it.")


def _keys(known: list[str], section: str) -> list[str]:
    """Of a section itself, without those below it."""
    return [key.partition(".")[2] for key in known if key.startswith(f"{section}.") and key.count(".") == 1]


def _own_network(model: Any, raw: RawDataset) -> FlatModel | None:
    """A module, or what makes one, as a function of one flat vector; None for a name."""
    if model is None or isinstance(model, str):
        return None
    if not callable(model):
        raise UserError(f"model is {type(model).__name__}. Fix: a name, a module, or a function that makes one.")
    info = raw.info
    arguments = (info.channels, info.size, info.classes or 1)
    # Vectors are images of one pixel inside; a module of one's own takes [m, f].
    flat = info.size == 1

    try:
        network = FlatModel(partial(_made, model, arguments, flat), "model")
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"model: calling it with {arguments} failed ({cause(error)}). Fix: (channels, image_size, classes) ->"
            " module."
        ) from error
    w, black = network.initial(0), torch.zeros(2, info.channels, info.size, info.size)
    if w.dtype != torch.float32:
        raise UserError(f"model: its parameters are {w.dtype}. Fix: model.float(), which makes them float32.")
    try:
        with torch.no_grad():
            answer = network.apply(w, black)
    except Exception as error:
        shape = [2, info.channels] if flat else list(black.shape)
        raise UserError(
            f"model: it fails on samples of shape {shape} ({cause(error)}). Fix: its first layer."
        ) from error
    if getattr(answer, "shape", None) != (2, arguments[2]):
        got = list(answer.shape) if isinstance(answer, torch.Tensor) else type(answer).__name__
        raise UserError(
            f"model: it answers two samples with {got}. Fix: its last layer; [2, {arguments[2]}] is wanted."
        )
    tried("model", network, black)
    if not network.one_pass:
        said = "it cannot take all clients in one pass; they go through it one by one, which takes longer"
        print(f"note: model: {said}", file=sys.stderr)
    return network


def _made(model: Any, arguments: tuple[int, int, int], flat: bool) -> nn.Module:
    """The network anew."""
    made: nn.Module = copy.deepcopy(model) if isinstance(model, nn.Module) else model(*arguments)
    return nn.Sequential(nn.Flatten(), made) if flat else made


def trained(
    params: Resolved, raw: RawDataset, partition: Partition, network: FlatModel | None, *, progress: bool
) -> Fit:
    """The rounds, with a record of each. network: in place of the one that the parameters name."""
    from tqdm.auto import tqdm

    problem = build_problem(params, raw, partition, device_for(params.train.accelerator), network)
    task, started = image_task(problem), time.perf_counter()
    loop = Loop(params.method, build_context(params, problem, Share()), params.train.rounds)
    if "Y" in loop.state.memory:
        raise UserError(
            f"algorithm: {params.algorithm} keeps a head of its own on each client, and a fitted model is one network."
            " Fix: simfbo or fedbio, or run it with params.yaml."
        )
    best, rows, weights = Best(), [], []
    bar = tqdm(total=loop.rounds, desc=params.algorithm, unit="round", disable=not progress)
    with bar, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r".*torch\.jit\.script.*")  # of torch about its own parts
        for t in range(loop.rounds + 1):
            if t:
                loop.step()
                bar.update()
            seen = evaluates(loop, params.train.eval_every)
            variables = loop.state.variables
            found, x = row_of(loop, variables, time.perf_counter() - started, task.measure if seen else None)
            row: dict[str, Any] = {"validation_loss": None, **found}
            if seen:
                best.see(t, selection_of(row), variables)
                bar.set_postfix({name: f"{row[name]:.3f}" for name in ("test_accuracy", "test_r2") if name in row})
            rows.append(row)
            if x is not None:
                weights.append(x.copy())
    served, screen = best.served(loop.round, loop.state.variables), loop.context.screen
    pull = loop.state.memory.get("pull")
    return Fit(
        params=params,
        raw=raw,
        partition=partition,
        problem=problem,
        network=network,
        variables=served.variables,
        served_round=served.round,
        rows=rows,
        over_rounds=np.array(weights, dtype=np.float64),
        replicates=_replicates(params, problem, progress),
        pull=np.zeros(0) if pull is None else pull.double().cpu().numpy(),
        left_out=screen.by_name if screen else {},
    )


def _replicates(params: Resolved, problem: Any, progress: bool) -> np.ndarray:
    """Weights of further runs, [B, N] (`pipeline.training.replicates`)."""
    from tqdm.auto import tqdm

    from pipeline.training.replicates import replicate

    count = range(1, params.train.replicates + 1)
    shown = tqdm(count, desc="intervals", unit="run", disable=not progress or not count)
    return np.array([replicate(params, problem, b) for b in shown])
