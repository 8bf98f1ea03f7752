"""How often the 90 % interval of a client weight covers what it is meant to cover.

The interval (`pipeline.training.evaluation.weight_interval`) of one run and its replicates is meant to cover the
weight's mean over redraws of the validation set, the initial model and the minibatches. Here the server's samples are
drawn anew for every seed, from all that the federation keeps for validation, selection and test, while the clients'
stay; the mean is that of all runs; and the share of intervals that hold it is counted, over clients and seeds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from experiments.results import Row, read
from experiments.trust.outcomes import about_code, held
from experiments.trust.plan import LEAD
from experiments.trust.record import Federation
from experiments.trust.running import start
from experiments.workers import run_missing
from pipeline.problems.client_weighting import ClientWeighting
from pipeline.seeds import key
from pipeline.training.evaluation import weight_interval
from pipeline.training.replicates import resampled, with_validation

FEDERATIONS = ("digits-5of8", "table-2of12", "cancer-2of6")
"""Ten classes and two, 40 to 100 validation samples, and clients of 20 to 500."""
SEEDS, ROUNDS, REPLICATES = range(20), 400, 5
BATCH_SIZE = 32
MADE = 30
"""The seed of the clients' samples: not reported elsewhere."""


def redrawn(made: Federation, seed: int) -> Federation:
    """The same clients beside another draw of the server's samples, of which there are as many as before."""
    held = (made.validation, made.selection, made.test)
    X, y = (np.concatenate(parts) for parts in zip(*held, strict=True))
    order = np.random.default_rng([seed, 1]).permutation(len(y))
    validation, selection, test = np.split(order, np.cumsum([len(y) for _, y in held[:2]]))
    return dataclasses.replace(
        made,
        validation=(X[validation], y[validation]),
        selection=(X[selection], y[selection]),
        test=(X[test], y[test]),
    )


def interval(made: Federation, seed: int, rounds: int = ROUNDS, replicates: int = REPLICATES) -> Row:
    """The weights of a run from that seed, [N], and the ends of their intervals."""

    problem = ClientWeighting(made.model(), made.data())
    size = len(problem.data.validation_labels)

    def weights(b: int) -> np.ndarray:
        """Of the run, b = 0, or of its b-th replicate."""
        own = with_validation(problem, resampled(size, seed, b)) if b else problem
        assert isinstance(own, ClientWeighting)
        loop = start(own, LEAD, rounds, seed=key(seed, "replicate", b) if b else seed, batch_size=BATCH_SIZE)
        for _ in range(rounds):
            loop.step()
        found: np.ndarray = loop.state.variables["x"].double().numpy()
        return found

    run = weights(0)
    low, high = weight_interval(run, np.stack([weights(b) for b in range(1, replicates + 1)]))
    return {"weights": run.tolist(), "low": low.tolist(), "high": high.tolist()}


def of_seed(cell: tuple[str, int], about: Row) -> Row:
    """The row of a federation and a seed."""
    name, seed = cell
    return {"federation": name, "seed": seed} | interval(redrawn(held(name, MADE), seed), seed) | about


def run_seeds(path: Path, workers: int, names: Iterable[str] = FEDERATIONS, seeds: Iterable[int] = SEEDS) -> None:
    """A row per federation and seed that has none."""
    cells = {f"{name} {MADE} {seed} {ROUNDS} {REPLICATES}": (name, seed) for name in names for seed in seeds}
    missing = {key: cell for key, cell in cells.items() if key not in read(path)}
    run_missing(missing, len(cells), path, partial(of_seed, about=about_code()), workers)


def covered(rows: Sequence[Row]) -> dict[str, float]:
    """Of the rows of one federation: the share of intervals that hold the mean over all runs; the same over clients
    whose mean is above a tenth of an equal share (`held`); the median width in equal shares."""
    weights, low, high = (np.array([row[name] for row in rows]) for name in ("weights", "low", "high"))
    mean = weights.mean(axis=0)
    holds = (low <= mean) & (mean <= high)
    clients = len(mean)
    held = mean > 0.1 / clients
    return {
        "covered": float(holds.mean()),
        "held": float(holds[:, held].mean()),
        "width": float(np.median((high - low)[:, held]) * clients),
    }
