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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from pipeline.config.loading import checked
from pipeline.config.spec import dotted, override
from pipeline.data.own import preprocessing
from pipeline.data.own_partition import partition_of
from pipeline.data.partition import Partition
from pipeline.data.raw import RawDataset
from pipeline.data.sets.arrays import from_arrays
from pipeline.data.sets.table import from_frames
from pipeline.errors import UserError
from pipeline.methods.registry import algorithm_named
from pipeline.models import FlatModel
from pipeline.params import Params
from pipeline.params.resolve import resolve
from pipeline.params.rules import check_rules
from pipeline.params.tree import params_of
from pipeline.problems.base import ImageProblem
from pipeline.problems.served import logits
from pipeline.sharing import Share
from pipeline.training.best import Best, selection_of
from pipeline.training.evaluation import weight_interval
from pipeline.training.loop import Loop
from pipeline.training.rows import evaluates, row_of
from pipeline.training.setup import build_context, build_problem, device_for
from pipeline.training.tasks import image_task

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

Samples = tuple[Any, Any]
"""X and y: numpy arrays, torch tensors, or a pandas DataFrame and a Series; y may also be a list."""
SHORT = ("federation", "train", "data", "partition", "loss", "model")
"""Sections whose keys `fit` takes by their own name, as in `participation=0.5`; the method's hyper-parameters first."""
TARGET = "y"


def fit(
    clients: Mapping[str, Samples],
    validation: Samples | None = None,
    test: Samples | None = None,
    *,
    selection: Samples | None = None,
    model: str | nn.Module | Callable[..., nn.Module] | None = None,
    algorithm: str = "primal_dual",
    rounds: int = 500,
    seed: int = 0,
    progress: bool = True,
    **settings: Any,
) -> Fit:
    """Train a model on the clients' samples and learn how much to trust each client.

    clients: name -> (X, y). X is [m, f] numbers, images [m, H, W] or [m, C, H, W], or a DataFrame with numbers,
    categories and missing values; y is classes of any kind, or numbers. validation: the server's clean samples; None
    holds a tenth of all samples out, which trusts every client a little. test: for the figures alone; None holds a
    fifth out. selection: decides which round is served; None holds some out. model: a name (`linear`, `mlp`, `lenet5`,
    ...), a module, or a function (channels, image_size, classes) -> module; None chooses one for the data. settings:
    the method's hyper-parameters, keys of params.yaml by their own name (`participation=0.5`, `batch_size=16`,
    `replicates=5` for intervals) or dotted.

    Raises UserError, in one line, for whatever does not go together.
    """
    raw = _assembled({"clients": clients, "validation": validation, "selection": selection, "test": test}, settings)
    params = _params(raw, algorithm, rounds, seed, model, settings)
    check_rules(params)
    params = resolve(params, raw.info)
    partition = partition_of(raw, params.data, params.partition, params.seed)
    problem = build_problem(params, raw, partition, device_for(params.train.accelerator), _own_network(model, raw))
    for note in raw.notes:
        print(f"note: {note}", file=sys.stderr)
    return _trained(params, raw, partition, problem, progress)


@dataclass(frozen=True, eq=False)
class Fit:
    """What `fit` found: the model, the clients' weights, and how they came about.

    params: every setting, `auto` resolved. rows: a row of figures per round; over_rounds: the weights, [R + 1, N].
    variables: the server's, of the served round. replicates: weights of further runs, [B, N]; pull: what moved the
    weights, [N], of methods that keep it.
    """

    params: Params
    raw: RawDataset = field(repr=False)
    partition: Partition = field(repr=False)
    problem: ImageProblem = field(repr=False)
    variables: dict[str, torch.Tensor] = field(repr=False)
    served_round: int
    rows: list[dict[str, Any]] = field(repr=False)
    over_rounds: np.ndarray = field(repr=False)
    replicates: np.ndarray = field(repr=False)
    pull: np.ndarray = field(repr=False)
    left_out: dict[str, int] = field(repr=False)

    @cached_property
    def weights(self) -> pd.DataFrame:
        """A row per client: client, weight, the ends of its 90 % interval low and high (nan without `replicates`), and
        samples; the heaviest first."""
        import pandas as pd

        clients = self.clients
        low, high = np.full((2, len(clients)), np.nan) if clients.interval is None else clients.interval
        frame = pd.DataFrame(
            {"client": clients.names, "weight": clients.weights, "low": low, "high": high, "samples": clients.samples}
        )
        return frame.sort_values("weight", ascending=False, kind="stable", ignore_index=True)

    @property
    def settled(self) -> bool | None:
        """Whether the weights have; None of a method that does not say. If not, train for more rounds."""
        found = self.rows[self.served_round].get("settled")
        return None if found is None else bool(found)

    @property
    def suspicious(self) -> list[str]:
        """Clients of low weight with whose labels the model disagrees; empty while the weights have not settled."""
        return [] if self.settled is False else [self.clients.names[i] for i in self.clients.suspects]

    @cached_property
    def history(self) -> pd.DataFrame:
        """A row per round: costs, what the method reports, and each client's weight under its name."""
        import pandas as pd

        frame = pd.DataFrame(self.rows)
        if not len(self.over_rounds):
            return frame
        return pd.concat([frame, pd.DataFrame(self.over_rounds, columns=self.clients.names)], axis=1)

    @property
    def classes(self) -> list[str]:
        """Names of the classes, in the order of `predict_proba`'s columns; none where numbers are predicted."""
        return list(self.raw.class_names)

    @property
    def model(self) -> nn.Module:
        """The trained network. It takes prepared features: `prepared(X)`."""
        return self.problem.model.module_with(self.problem.network(self.variables))

    def prepared(self, X: Any) -> torch.Tensor:
        """Features of raw samples as the network takes them, [m, C, H, W]."""
        assert self.raw.preprocessing is not None
        features = preprocessing.apply(self.raw.preprocessing, _plain(X))
        return self.problem.data.scaled(torch.as_tensor(features, device=self.problem.data.device))

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probability of every class, [m, C]."""
        if not self.classes:
            raise UserError("predict_proba: the targets are numbers, which have no probabilities. Fix: predict.")
        return self._outputs(X).softmax(1).cpu().numpy()

    def predict(self, X: Any) -> np.ndarray:
        """The class of every sample as it was given in y, or its number, [m]."""
        found = self._outputs(X)
        if not self.classes:
            unit = self.problem.data.unit
            return (found[:, 0].double() * unit.spread + unit.shift).cpu().numpy()
        return self._labels[found.argmax(1).cpu().numpy()]

    def score(self, X: Any, y: Any) -> float:
        """Accuracy, or R2 of numbers."""
        guess, y = self.predict(X), np.asarray(_plain(y))
        if self.classes:
            return float((guess.astype(str) == y.astype(self._labels.dtype).astype(str)).mean())
        return float(1 - np.square(y - guess).sum() / np.square(y - y.mean()).sum())

    def plot_weights(self) -> Figure:
        """The weights over rounds, as a matplotlib figure."""
        from pipeline.report.figures import weights_over_rounds

        return weights_over_rounds(np.arange(len(self.over_rounds)), self.over_rounds, self.clients)

    def report(self, path: str | Path) -> Path:
        """Write the page on this run: one file that needs no network."""
        from pipeline.report.page.render import write_page

        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_page(self._story, path)
        return path

    @cached_property
    def metrics(self) -> dict[str, Any]:
        """Every figure of the result, as in metrics.json."""
        from pipeline.report.numbers import metrics

        says = {} if self.settled is None else {"weights_settled": self.settled}
        return metrics(self._outcome, self.partition, self._record) | says

    @cached_property
    def clients(self) -> Any:
        """Names, sizes, weights and what speaks against each (`pipeline.report.clients.Clients`)."""
        from pipeline.report.clients import Clients

        weights = self._outcome.weights
        interval = weight_interval(weights, self.replicates) if len(self.replicates) else None
        found = Clients.of(self.partition, weights, interval)
        return replace(found, disagrees=self._evidence.disagrees)

    @cached_property
    def _outcome(self) -> Any:
        from pipeline.training.evaluation import outcome

        return outcome(self.problem, self.variables)

    @cached_property
    def _evidence(self) -> Any:
        from pipeline.report.evidence import gather

        pull = self.pull if self.served_round == len(self.rows) - 1 else np.zeros(0)
        return gather(self.problem, self.variables, pull, getattr(self._outcome.test, "recall", []))

    @cached_property
    def _record(self) -> Any:
        from pipeline.report.record import describe

        data = self.problem.data
        names = self.partition.names
        record = describe(dotted(self.params), self.raw.hash, self.partition.hash, str(data.device), names)
        return replace(record, served_round=self.served_round, left_out=self.left_out)

    @property
    def _story(self) -> Any:
        from pipeline.report.page.story import Holdings, Story
        from pipeline.training.evaluation import Classification

        test = self._outcome.test
        return Story(
            self._record,
            self.metrics,
            self.clients,
            self.rows,
            self.over_rounds,
            test=test if isinstance(test, Classification) else None,
            what="class" if self.classes else "number",
            holdings=Holdings.of(self.problem.data, self.partition),
            evidence=self._evidence,
        )

    @cached_property
    def _labels(self) -> np.ndarray:
        """Classes as they were given."""
        return (
            np.array([_number(name) for name in self.classes])
            if _all_numbers(self.classes)
            else np.array(self.classes, dtype=object)
        )

    def _outputs(self, X: Any) -> torch.Tensor:
        return logits(
            self.problem.model, self.problem.data, self.problem.network(self.variables), self.prepared(X), scaled=True
        )


# ------------------------------------------------------------------------------------------- data and settings


def _assembled(parts: dict[str, Any], settings: dict[str, Any]) -> RawDataset:
    """The samples as a data set in memory."""
    clients = parts.pop("clients")
    if not isinstance(clients, Mapping) or len(clients) < 2:
        raise UserError("clients: at least two are needed. Fix: a dictionary, name -> (X, y).")
    pairs = {f"client {name!r}": _pair(f"client {name!r}", pair) for name, pair in clients.items()}
    server = {part: _pair(part, pair) for part, pair in parts.items() if pair is not None}
    sizes = [len(y) for _, y in pairs.values()]
    owners = np.repeat(np.array([str(name) for name in clients], dtype=object), sizes)
    if len(set(map(str, clients))) < len(clients):
        raise UserError("clients: two have the same name. Fix: rename one.")
    kinds = {name: hasattr(X, "columns") for name, (X, _) in (pairs | server).items()}
    if len(set(kinds.values())) > 1:
        frame = next(name for name, is_frame in kinds.items() if is_frame)
        array = next(name for name, is_frame in kinds.items() if not is_frame)
        raise UserError(f"{frame} is a DataFrame and {array} an array. Fix: the same kind everywhere.")
    task = settings.get("task", settings.get("data.task", "auto"))
    if next(iter(kinds.values())):
        import pandas as pd

        frames = {"clients": [X.assign(**{TARGET: np.asarray(y)}) for X, y in pairs.values()]}
        frames |= {part: [X.assign(**{TARGET: np.asarray(y)})] for part, (X, y) in server.items()}
        chosen = list(frames["clients"][0].columns.drop(TARGET))
        for name, (X, _) in (pairs | server).items():
            if TARGET in X.columns:
                raise UserError(f"{name}: a column of X is called {TARGET!r}. Fix: rename it.")
            if absent := [column for column in chosen if column not in X.columns]:
                raise UserError(f"{name}: X has no column {absent[0]!r}. Fix: the same columns everywhere.")
        whole = {part: pd.concat(each, ignore_index=True) for part, each in frames.items()}
        return from_frames(whole, chosen, TARGET, owners, None, "table", task)
    first = next(iter(pairs.values()))[0].shape[1:]
    for name, (X, _) in (pairs | server).items():
        if X.shape[1:] != first:
            raise UserError(f"{name}: samples of shape {X.shape[1:]}, and others of {first}. Fix: the same everywhere.")
    found = {"X": np.concatenate([X for X, _ in pairs.values()]), "client": owners.astype(str)}
    found["y"] = np.concatenate([np.asarray(y) for _, y in pairs.values()])
    for part, (X, y) in server.items():
        found |= {f"X_{part}": X, f"y_{part}": np.asarray(y)}
    return from_arrays(found, "arrays", task, "fit")


def _pair(name: str, pair: Any) -> Samples:
    """X as a DataFrame or an array, y as an array of as many targets."""
    if not isinstance(pair, Sequence) or len(pair) != 2:
        raise UserError(f"{name} is {type(pair).__name__}. Fix: a pair (X, y).")
    X, y = (_plain(part) for part in pair)
    y = np.asarray(y)
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if not len(y) or len(X) != len(y) or y.ndim != 1:
        raise UserError(f"{name}: {len(X)} samples and targets of shape {y.shape}. Fix: one target per sample.")
    return X, y


def _plain(part: Any) -> Any:
    """A DataFrame as it is, everything else as an array on the host."""
    if isinstance(part, torch.Tensor):
        return part.detach().cpu().numpy()
    if hasattr(part, "columns"):
        return part
    return part.to_numpy() if hasattr(part, "to_numpy") else np.asarray(part)


def _params(raw: RawDataset, algorithm: str, rounds: int, seed: int, model: Any, settings: dict[str, Any]) -> Params:
    """Every setting under its dotted name, checked."""
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
    params = override(kind(), chosen)
    return checked(kind, dataclasses.asdict(params), "fit")


def _dotted(name: str, method: str, known: list[str]) -> str:
    """A parameter's full name; UserError for one that does not exist."""
    places = [f"algorithms.{method}.{name}", *(f"{section}.{name}" for section in SHORT), name]
    for place in places:
        if place in known:
            return place
    near = difflib.get_close_matches(name, [each.rpartition(".")[2] for each in known], n=1)
    hint = f" Did you mean {near[0]}?" if near else ""
    raise UserError(f"fit: {name} is no parameter of {method} or of params.yaml.{hint} Fix: rename or remove it.")


def _own_network(model: Any, raw: RawDataset) -> FlatModel | None:
    """A module, or what makes one, as a function of one flat vector; None for a name."""
    if model is None or isinstance(model, str):
        return None
    info = raw.info
    arguments = (info.channels, info.size, info.classes or 1)
    make = partial(copy.deepcopy, model) if isinstance(model, nn.Module) else partial(model, *arguments)
    # Vectors are images of one pixel inside; a module of one's own takes [m, f].
    flat = info.size == 1
    network = FlatModel(lambda: nn.Sequential(nn.Flatten(), make()) if flat else make(), "model")
    try:
        with torch.no_grad():
            answer = network.apply(network.initial(0), torch.zeros(2, info.channels, info.size, info.size))
    except UserError:
        raise
    except Exception as error:
        shape = [2, info.channels] if flat else [2, info.channels, info.size, info.size]
        raise UserError(
            f"model: it fails on samples of shape {shape} ({' '.join(str(error).split())}). Fix: its first layer."
        ) from error
    if answer.shape != (2, arguments[2]):
        raise UserError(
            f"model: it answers two samples with {list(answer.shape)}. Fix: its last layer; [2, {arguments[2]}] is"
            " wanted."
        )
    return network


def _all_numbers(names: Sequence[str]) -> bool:
    return all(name.lstrip("-").isdigit() for name in names)


def _number(name: str) -> int:
    return int(name)


# ------------------------------------------------------------------------------------------------------ training


def _trained(params: Params, raw: RawDataset, partition: Partition, problem: ImageProblem, progress: bool) -> Fit:
    """The rounds, with a record of each."""
    from tqdm.auto import tqdm

    task, started = image_task(problem), time.perf_counter()
    loop = Loop(params.method, build_context(params, problem, Share()), params.train.rounds)
    best, rows, weights = Best(), [], []
    bar = tqdm(total=loop.rounds, desc=params.algorithm, unit="round", disable=not progress)
    with bar:
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
        variables=served.variables,
        served_round=served.round,
        rows=rows,
        over_rounds=np.array(weights, dtype=np.float64),
        replicates=_replicates(params, problem, progress),
        pull=np.zeros(0) if pull is None else pull.double().cpu().numpy(),
        left_out=screen.by_name if screen else {},
    )


def _replicates(params: Params, problem: Any, progress: bool) -> np.ndarray:
    """Weights of further runs, [B, N] (`pipeline.training.replicates`)."""
    from tqdm.auto import tqdm

    from pipeline.training.replicates import replicate

    count = range(1, params.train.replicates + 1)
    shown = tqdm(count, desc="intervals", unit="run", disable=not progress or not count)
    return np.array([replicate(params, problem, b) for b in shown])
