"""Whether it pays to compute things together: the measurements behind three rules of the library.

| figure | what | the rule it stands behind |
|---|---|---|
| local_NETWORK | ten clients' gradients, each at its own parameters: one batched pass over one by one | `pipeline.oracles.local`: one by one for convolutions on a CPU |
| client_NETWORK | ten clients' gradients and products at the server's parameters, likewise | `pipeline.oracles.weighting`: one by one for convolutions on a CPU |
| runs_NETWORK | a round of five seeds as one computation over five rounds alone | `pipeline.sweep.running`: `together: auto` |

Below 1 it pays. Synthetic images of MNIST's shape, 10 clients x 50, primal_dual; `runs_toy` is the toy laboratory.
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from benchmarks.targets import together
from benchmarks.timing import Case, clock, equal_clients, interleaved, made_up, median_ratio, params_of
from pipeline.oracles.local import FusedLocal
from pipeline.oracles.weighting import FusedOracle, client_by_client
from pipeline.problems.client_weighting import ClientWeighting
from pipeline.training.setup import build_toy

REPETITIONS, BATCH, SEEDS = 5, 50, 5
NETWORKS = ("linear", "mlp", "lenet5")


def measure() -> dict[str, float]:
    """Ratios, medians of pairs."""
    raw = made_up(20_000)
    figures = {}
    for network in NETWORKS:
        chosen = {"model.name": network, "federation.batch_size": BATCH, "algorithms.primal_dual.eta_w": 0.01}
        cases = [equal_clients(raw, chosen | {"seed": seed}) for seed in range(SEEDS)]
        figures[f"local_{network}"] = ratio(*local_gradients(cases[0]))
        figures[f"client_{network}"] = ratio(*client_derivatives(cases[0]))
        figures[f"runs_{network}"] = ratio(*runs(cases, rounds=3))
    toy = params_of({"data.name": "toy", "algorithms.primal_dual.eta_w": 0.01})
    laboratories = [replace(toy, seed=seed) for seed in range(SEEDS)]
    figures["runs_toy"] = ratio(*runs([(params, build_toy(params)) for params in laboratories], rounds=50))
    return figures


def ratio(batched: Callable[[], float], alone: Callable[[], float]) -> float:
    """Of two ways, measured in turn."""
    times = interleaved({1: batched, 0: alone}, REPETITIONS)
    return median_ratio(times[1], times[0])


def local_gradients(case: Case) -> tuple[Callable[[], float], Callable[[], float]]:
    """Every client at parameters of its own."""
    problem: Any = case[1]
    oracle, W = FusedLocal(problem), problem.initial(0).repeat(10, 1)
    batch = oracle.draw(1, torch.arange(10, device=W.device), BATCH)
    return timed(lambda: oracle.gradients_each(W, batch, 10)), timed(lambda: oracle.gradients_each(W, batch, 1))


def client_derivatives(case: Case) -> tuple[Callable[[], float], Callable[[], float]]:
    """Every client at the server's parameters."""
    problem: Any = case[1]
    assert isinstance(problem, ClientWeighting)
    oracle, w = FusedOracle(problem), problem.initial(0)
    lam, one = torch.full_like(w, 1e-3), torch.ones(1, dtype=w.dtype, device=w.device)
    batch = oracle.draw(1, torch.arange(10, device=w.device), BATCH)
    parts = [problem.select(batch, i) for i in range(10)]
    return (
        timed(lambda: client_by_client(lambda part: oracle.gradient_and_product(w, lam, part, one)[:2], batch)),
        timed(lambda: [oracle.gradient_and_product(w, lam, part, one) for part in parts]),
    )


def runs(cases: list[Any], rounds: int) -> tuple[Callable[[], float], Callable[[], float]]:
    """Several seeds' runs."""
    return lambda: together(cases, rounds), lambda: sum(together([one], rounds) for one in cases)


def timed(function: Callable[[], Any], times: int = 3) -> Callable[[], float]:
    """Seconds of that many calls."""

    def measured() -> float:
        start = clock()
        for _ in range(times):
            function()
        return clock() - start

    return measured
