"""What a round costs as the federation grows while the number of active clients stays: 10 of N = 10 to 10,000.

MNIST-sized made-up images (60,000 of 28 x 28), equal random parts, minibatches of 64, LeNet-5 and a linear model (whose
rounds are so short that any cost per client would show), the train stage's own loop without evaluations. The absent
clients' answers are not remembered (`estimator: normalised`): that memory, 2 N d numbers, is the method's own. Sizes
are run in turn, several times; ratios are paired within a repetition, because the machine's speed drifts.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path

from benchmarks.round_cost import seconds_per_round
from benchmarks.timing import device, made_up
from pipeline.data.catalog import resolve
from pipeline.data.datasets import RawDataset
from pipeline.data.partition import make_partition
from pipeline.params import Params
from pipeline.params.spec import override
from pipeline.problems.client_weighting import ClientWeighting
from pipeline.training.setup import build_problem

SIZES = (10, 100, 1_000, 10_000)
ACTIVE, REPETITIONS = 10, 5
MODELS = {"linear": 110, "lenet5": 20}
"""And how many rounds of each."""


def measure() -> dict[str, float]:
    """Median milliseconds per round and the ratio to N = 10, for primal_dual with active weights (no memory of absent
    clients, whose cost is the method's own state: 2 N d numbers)."""
    raw = made_up(60_000)
    return {f"{model}_{name}": value for model in MODELS for name, value in _growth(raw, model).items()}


def _growth(raw: RawDataset, model: str) -> dict[str, float]:
    problems = {N: _problem(raw, N, model) for N in SIZES}
    times: dict[int, list[float]] = {N: [] for N in SIZES}
    for repetition in range(REPETITIONS + 1):
        for N, (params, problem) in problems.items():
            with tempfile.TemporaryDirectory() as scratch:
                seconds = seconds_per_round(params, problem, Path(scratch))
            if repetition:  # the first warms up
                times[N].append(seconds)
    figures = {f"round_ms_{N}": 1e3 * statistics.median(times[N]) for N in SIZES}
    for N in SIZES[1:]:
        figures[f"ratio_{N}"] = statistics.median(a / b for a, b in zip(times[N], times[SIZES[0]], strict=True))
    return figures


def _problem(raw: RawDataset, clients: int, model: str) -> tuple[Params, ClientWeighting]:
    settings = {
        "data.name": "mnist",
        "partition.scheme": "iid",
        "partition.iid.clients": clients,
        "federation.sampling": "fixed",
        "federation.participation": ACTIVE / clients,
        "algorithms.primal_dual.estimator": "normalised",
        "model.name": model,
        "train.rounds": MODELS[model],
        "train.eval_every": 10**6,
    }
    params = resolve(override(Params(), settings))
    partition = make_partition(raw.train_labels, "mnist", 10, params.partition, seed=0)
    problem = build_problem(params, raw, partition, device())
    assert isinstance(problem, ClientWeighting)
    return params, problem
