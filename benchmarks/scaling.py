"""How a round's cost grows: with all clients N, active clients n, the model's dimension d, and steps K.

Synthetic images of MNIST's shape, equal random parts, minibatches of 32, a network of one hidden layer; the train stage
without evaluations. One quantity varies at a time from N = 100, n = 10, 64 hidden units, K = 1. Points of a
curve are measured in turn, several times; ratios to its first point are paired within a turn.

| curve | what varies | method |
|---|---|---|
| clients | N, at 10 active ones | primal_dual, `estimator: normalised` (no memory of absent clients) |
| active | n of 100 | the same |
| dimension | hidden units, named by d | the same |
| inner | K updates of model and dual per update of the weights | the same |
| local | K local steps | fedavg |
| duals | N, at 10 active ones, 5 local steps | a_fedpd, which touches active clients' duals alone |
| reference | the same | a_fedpd, `form: reference`, which moves all duals |
"""

from __future__ import annotations

import statistics
from functools import partial
from typing import Any

from benchmarks.timing import equal_clients, interleaved, made_up, median_ratio, seconds_per_round

REPETITIONS, ROUNDS, ACTIVE, N, HIDDEN = 5, 12, 10, 100, 64
PRIMAL_DUAL = "algorithms.primal_dual"


def measure() -> dict[str, float]:
    """Milliseconds per round of every point (medians) and ratios to the curve's first."""
    raw, figures = made_up(20_000), {}
    for curve, points in curves().items():
        cases = {x: equal_clients(raw, settings) for x, settings in points.items()}
        times = interleaved({x: partial(seconds_per_round, case) for x, case in cases.items()}, REPETITIONS)
        first = times[next(iter(times))]
        for x, found in times.items():
            figures[f"{curve}_{x}_ms"] = 1e3 * statistics.median(found)
            figures[f"{curve}_{x}_ratio"] = median_ratio(found, first)
    return figures


def curves() -> dict[str, dict[int, dict[str, Any]]]:
    """Curve -> value on the horizontal axis -> settings."""
    widths = (16, 64, 256, 1024)
    return {
        "clients": {n: settings(clients=n) for n in (10, 100, 1_000, 10_000)},
        "active": {n: settings(active=n) for n in (5, 10, 20, 40, 80)},
        "dimension": {785 * h + 11 * h - h + 10: settings(hidden=h) for h in widths},
        "inner": {k: settings() | {f"{PRIMAL_DUAL}.inner_steps": k} for k in (1, 2, 4, 8)},
        "local": {
            k: settings() | {"algorithm": "fedavg", "algorithms.fedavg.local_steps": k} for k in (1, 2, 4, 8, 16)
        },
        "duals": {n: with_duals("low_memory", n) for n in (10, 100, 1_000)},
        "reference": {n: with_duals("reference", n) for n in (10, 100, 1_000)},
    }


def with_duals(form: str, clients: int) -> dict[str, Any]:
    """A-FedPD among that many clients."""
    return settings(clients=clients) | {"algorithm": "a_fedpd", "algorithms.a_fedpd.form": form}


def settings(clients: int = N, active: int = ACTIVE, hidden: int = HIDDEN) -> dict[str, Any]:
    """Of one point."""
    return {
        "partition.iid.clients": clients,
        "federation.participation": active / clients,
        "federation.batch_size": 32,
        f"{PRIMAL_DUAL}.estimator": "normalised",
        "model.name": "mlp",
        "model.options": {"hidden": [hidden]},
        "train.rounds": ROUNDS,
    }
