"""What `train.precision` gains and costs: seconds per round and test accuracy of the shipped run in each.

Digits, lead partition (10 clients x 32), LeNet-5, primal_dual, all rounds; a repetition is a seed, and all precisions
run in turn for each. tf32 is a GPU's.
"""

from __future__ import annotations

import statistics
import tempfile
from dataclasses import replace
from pathlib import Path

from benchmarks.timing import Stopwatch, device, digits, median_ratio
from pipeline.data.catalog import resolve
from pipeline.data.datasets import RawDataset
from pipeline.data.partition import make_partition
from pipeline.params import Params
from pipeline.params.spec import override
from pipeline.training.evaluation import accuracy
from pipeline.training.resume import ResumeFolder
from pipeline.training.run import train
from pipeline.training.setup import build_problem
from pipeline.training.tasks import image_task

REPETITIONS = 3


def measure() -> dict[str, float]:
    """Milliseconds per round, their ratio to 32-true, and test accuracy in % (medians; accuracy: means)."""
    raw, names = digits(), precisions()
    seconds: dict[str, list[float]] = {name: [] for name in names}
    accuracies: dict[str, list[float]] = {name: [] for name in names}
    for seed in range(REPETITIONS):
        for name in names:
            spent, right = run(raw, name, seed)
            seconds[name].append(spent)
            accuracies[name].append(right)
    figures = {}
    for name in names:
        key = name.replace("-", "_")
        figures[f"{key}_ms"] = 1e3 * statistics.median(seconds[name])
        figures[f"{key}_ratio"] = median_ratio(seconds[name], seconds["32-true"])
        figures[f"{key}_accuracy"] = 100 * statistics.mean(accuracies[name])
    return figures


def precisions() -> list[str]:
    """Those meant for speed."""
    return ["32-true", "bf16-mixed", *(["tf32"] if device().type == "cuda" else [])]


def run(raw: RawDataset, name: str, seed: int, rounds: int | None = None) -> tuple[float, float]:
    """Seconds per round, and the test accuracy after the last."""
    params = override(Params(), {"train.precision": name, "seed": seed, "train.eval_every": 10**6})
    params = resolve(replace(params, train=replace(params.train, rounds=rounds or params.train.rounds)))
    partition = make_partition(raw.train_labels, "digits", 10, params.partition, seed=seed)
    problem, watch = build_problem(params, raw, partition, device()), Stopwatch()
    with tempfile.TemporaryDirectory() as root, ResumeFolder(Path(root), "run") as folder:
        module, _ = train(params, image_task(problem), folder, callbacks=(watch,), progress=False)
    return watch.per_round(2), accuracy(problem, module.served, problem.data.test_images, problem.data.test_labels)
