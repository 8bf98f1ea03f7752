"""What a round costs as the federation grows while the number of active clients stays: 10 of N = 10 to 10,000.

Synthetic MNIST (60,000 images of 28 x 28), equal random parts, minibatches of 64, LeNet-5 and a linear model (whose
rounds are so short that any cost per client would show), the train stage's own loop without evaluations. The absent
clients' answers are not remembered (`estimator: normalised`): that memory, 2 N d numbers, is the method's own. Sizes
are run in turn, several times; ratios are paired within a repetition, because the machine's speed drifts.
"""

from __future__ import annotations

import statistics
from functools import partial
from typing import Any

from benchmarks.timing import equal_clients, interleaved, made_up, median_ratio, seconds_per_round
from pipeline.data.raw import RawDataset

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
    cases = {N: equal_clients(raw, _settings(N, model)) for N in SIZES}
    times = interleaved({N: partial(seconds_per_round, case) for N, case in cases.items()}, REPETITIONS)
    figures = {f"round_ms_{N}": 1e3 * statistics.median(times[N]) for N in SIZES}
    return figures | {f"ratio_{N}": median_ratio(times[N], times[SIZES[0]]) for N in SIZES[1:]}


def _settings(clients: int, model: str) -> dict[str, Any]:
    return {
        "partition.iid.clients": clients,
        "federation.participation": ACTIVE / clients,
        "algorithms.primal_dual.estimator": "normalised",
        "model.name": model,
        "train.rounds": MODELS[model],
    }
