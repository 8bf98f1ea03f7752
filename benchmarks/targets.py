"""The figures that one large GPU is meant to reach, on whatever device is here.

LeNet-5, lead partition of synthetic images of MNIST's shape, 10 clients x 64, all active, primal_dual's defaults.

| figure | what | meant for a GPU of the H200's class |
|---|---|---|
| round_ms | a round of the train stage's loop in steady state | 0.6 |
| floor_ms | its floating-point operations at the rate of a large product | |
| run_s | `run_rounds` rounds with an evaluation of 10,000 test images every 50 | 4, for 2000 |
| five_over_one | five seeds as one computation over one seed | 2 |
"""

from __future__ import annotations

import statistics
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.round_cost import BareLoop
from benchmarks.timing import Case, case, clock, device, made_up, matmul_rate, seconds_per_round
from pipeline.methods import ALGORITHMS
from pipeline.problems.client_weighting import ClientWeighting
from pipeline.repetitions import Repetitions
from pipeline.sharing import Share
from pipeline.training.resume import ResumeFolder
from pipeline.training.run import train
from pipeline.training.setup import build_context
from pipeline.training.tasks import image_task

REPETITIONS, SEEDS = 3, 5


def measure() -> dict[str, float]:
    """The table's figures, medians."""
    fast = device().type == "cuda"
    rounds = {"steady": 200, "run": 2000, "together": 50} if fast else {"steady": 12, "run": 50, "together": 4}
    raw = made_up(60_000, tested=10_000)
    cases = [case(raw, {"seed": seed}) for seed in range(SEEDS)]
    params, problem = cases[0]
    assert isinstance(problem, ClientWeighting)
    flops = BareLoop(problem, int(params.federation.batch_size)).flops()
    steady = [seconds_per_round(_with(cases[0], rounds=rounds["steady"])) for _ in range(REPETITIONS)]
    whole = [whole_run(_with(cases[0], rounds=rounds["run"], eval_every=50)) for _ in range(REPETITIONS)]
    ratios = [together(cases, rounds["together"]) / together(cases[:1], rounds["together"]) for _ in range(REPETITIONS)]
    return {
        "round_ms": 1e3 * statistics.median(steady),
        "floor_ms": 1e3 * flops / matmul_rate(),
        "run_rounds": rounds["run"],
        "run_s": statistics.median(whole),
        "five_over_one": statistics.median(ratios),
    }


def whole_run(case: Case) -> float:
    """Seconds from the first round to the last, evaluations and saves included."""
    params, problem = case
    with tempfile.TemporaryDirectory() as root, ResumeFolder(Path(root), "run") as folder:
        start = clock()
        train(params, image_task(problem), folder, progress=False)
        return clock() - start


def together(cases: list[Case], rounds: int) -> float:
    """Seconds per round of these seeds as one computation, without the first round."""
    contexts: list[Any] = [build_context(params, problem, Share()) for params, problem in cases]
    runs = Repetitions(ALGORITHMS["primal_dual"], contexts)
    runs.round()
    start = clock()
    for _ in range(rounds):
        runs.round()
    return (clock() - start) / rounds


def _with(case: Case, **train: int) -> Case:
    params, problem = case
    return replace(params, train=replace(params.train, **train)), problem
