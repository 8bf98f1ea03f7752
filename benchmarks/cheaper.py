"""What makes a round cheaper and what it costs in accuracy: `train.precision`, one minibatch for gradient and product.

Digits, lead partition (10 clients x 32), LeNet-5, primal_dual, as many rounds as shipped. A repetition is a seed; all
variants run in turn for each. tf32 is a GPU's.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.timing import Stopwatch, case, device, digits, median_ratio
from pipeline.data.raw import RawDataset
from pipeline.training.evaluation import accuracy
from pipeline.training.resume import ResumeFolder
from pipeline.training.run import train
from pipeline.training.tasks import image_task

REPETITIONS = 3


def measure() -> dict[str, float]:
    """Milliseconds per round (medians) and their ratio to the shipped run's; test accuracy in % (means), and by how
    much it differs from the shipped run's of the same seed."""
    raw, chosen = digits(), variants()
    seconds: dict[str, list[float]] = {name: [] for name in chosen}
    accuracies: dict[str, list[float]] = {name: [] for name in chosen}
    for seed in range(REPETITIONS):
        for name, settings in chosen.items():
            spent, right = run(raw, settings | {"seed": seed})
            seconds[name].append(spent)
            accuracies[name].append(100 * right)
    figures = {}
    for name in chosen:
        figures[f"{name}_ms"] = 1e3 * statistics.median(seconds[name])
        figures[f"{name}_ratio"] = median_ratio(seconds[name], seconds["shipped"])
        figures[f"{name}_accuracy"] = statistics.mean(accuracies[name])
        gains = [a - b for a, b in zip(accuracies[name], accuracies["shipped"], strict=True)]
        figures |= {f"{name}_least_gain": min(gains), f"{name}_most_gain": max(gains)}
    return figures


def variants() -> dict[str, dict[str, Any]]:
    """Name -> settings on top of the shipped ones."""
    bfloat16 = {"train.precision": "bf16-mixed"}
    one_batch = {"algorithms.primal_dual.product_batch_size": "shared"}
    found = {"shipped": {}, "bfloat16": bfloat16, "one_batch": one_batch, "both": bfloat16 | one_batch}
    return found | ({"tf32": {"train.precision": "tf32"}} if device().type == "cuda" else {})


def run(raw: RawDataset, settings: dict[str, Any]) -> tuple[float, float]:
    """Seconds per round, and the test accuracy after the last."""
    (params, problem), watch = case(raw, settings), Stopwatch()
    with tempfile.TemporaryDirectory() as root, ResumeFolder(Path(root), "run") as folder:
        module, _ = train(params, image_task(problem), folder, callbacks=(watch,), progress=False)
    return watch.per_round(2), accuracy(problem, module.served, problem.data.test_images, problem.data.test_labels)
