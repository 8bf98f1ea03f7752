"""LR-MNIST (`benchmarks.local_epochs`) by us, by pfl and by Flower: same samples, same machine, same threads, in turn.

The two others need environments of their own, since they pin what we do not:

    python3 -m venv /some/pfl  && /some/pfl/bin/pip install "pfl[pytorch]"
    python3 -m venv /some/flwr && /some/flwr/bin/pip install "flwr[simulation]" torch

    PFL_PYTHON=/some/pfl/bin/python FLWR_PYTHON=/some/flwr/bin/python .venv/bin/python -m benchmarks rivals

A rival whose variable is unset is left out. Each has one thread for the mathematics; Flower's engine also spreads its
clients over all cores. The ratios are medians over repetitions run in turn, because the machine's speed drifts; each
repetition has a seed of its own, since with ten of a thousand two-label clients a round the last rounds' draw moves the
accuracy by several points in every library: the spread is given.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from benchmarks.local_epochs import CLIENTS, SETTINGS, case, train_once

HERE = Path(__file__).parent
REPETITIONS = 3


def measure() -> dict[str, float]:
    """Seconds of training and final accuracies (medians), and the others' seconds over ours."""
    torch.set_num_threads(1)
    rivals = {name: os.environ.get(f"{name.upper()}_PYTHON") for name in ("pfl", "flwr")}
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        raw, partition, problem = case(Path(scratch))
        file = Path(scratch) / "case.npz"
        np.savez(
            file,
            images=raw.train_images[partition.indices].reshape(len(partition.indices), -1),
            labels=partition.labels,
            offsets=partition.offsets,
            test_images=raw.test_images.reshape(len(raw.test_images), -1),
            test_labels=raw.test_labels,
            rounds=SETTINGS["train.rounds"],
            eval_every=SETTINGS["train.eval_every"],
            active=round(SETTINGS["federation.participation"] * CLIENTS),
            batch=SETTINGS["federation.batch_size"],
            eta=SETTINGS["algorithms.fedavg.eta"],
            threads=1,
        )
        train_once(problem, Path(scratch) / "warm", seed=0)
        for repetition in range(REPETITIONS):
            results = {"ours": train_once(problem, Path(scratch) / str(repetition), repetition)}
            results |= {name: _by(name, python, file, repetition) for name, python in rivals.items() if python}
            for name, (seconds, accuracy) in results.items():
                found.setdefault(f"{name}_s", []).append(seconds)
                found.setdefault(f"{name}_accuracy", []).append(accuracy)
                if name != "ours":
                    found.setdefault(f"{name}_over_ours", []).append(seconds / results["ours"][0])
    figures = {name: statistics.median(values) for name, values in found.items()}
    for name, values in found.items():
        if name.endswith("_accuracy"):
            figures |= {f"{name}_least": min(values), f"{name}_most": max(values)}
    return figures


def environment(ours: Mapping[str, str]) -> dict[str, str]:
    """Ours without what our own libraries set for themselves: Lightning has torch ask for GPUs by NVML, which makes
    each of pfl's 14,000 questions for its device slow."""
    return {name: value for name, value in ours.items() if not name.startswith("PYTORCH_")}


def _by(name: str, python: str, file: Path, seed: int) -> tuple[float, float]:
    done = subprocess.run(
        [python, "-W", "ignore", str(HERE / f"with_{name}.py"), str(file), str(seed)],
        env=environment(os.environ) | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=True,
    )
    result = json.loads(done.stdout.splitlines()[-1])
    return result["seconds"], result["accuracy"]
