"""What several processes gain: one GPU each or, on a CPU, one core and one thread each.

Synthetic images of MNIST's shape, 16 clients, all active, LeNet-5; the train stage's own loop without evaluations.
Points are 1, 2, 4, ... processes, as many as there are GPUs or cores, each in fresh processes, all in turn, several
times; time is wall-clock, so nothing else should run. Ideal is a speed-up of as many.

| curve | what is shared out |
|---|---|
| exchange | primal_dual, 64 samples per client and step: the processes wait for each other twice per round |
| local | fedavg, 16 local steps of 32 samples: once per round |
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.timing import Stopwatch, device, equal_clients, interleaved, made_up, median_ratio, params_of
from pipeline.training.processes import companions, share_of
from pipeline.training.resume import ResumeFolder
from pipeline.training.run import train
from pipeline.training.tasks import image_task

REPETITIONS, ROUNDS, SKIPPED, CLIENTS = 3, 12, 2, 16


def measure() -> dict[str, float]:
    """Milliseconds per round of every point (medians) and speed-ups over one process."""
    figures = {}
    for curve, chosen in curves().items():
        times = interleaved({count: partial(elsewhere, chosen, count) for count in counts()}, REPETITIONS)
        for count, found in times.items():
            figures[f"{curve}_{count}_ms"] = 1e3 * statistics.median(found)
            figures[f"{curve}_{count}_speedup"] = median_ratio(times[1], found)
    return figures


def counts() -> list[int]:
    """Powers of two, as far as GPUs or cores go."""
    most = torch.cuda.device_count() if device().type == "cuda" else os.cpu_count() or 1
    return [2**k for k in range(most.bit_length())]


def curves() -> dict[str, dict[str, Any]]:
    """Curve -> settings."""
    shared = {"partition.iid.clients": CLIENTS, "model.name": "lenet5", "train.rounds": ROUNDS}
    return {
        "exchange": shared | {"federation.batch_size": 64},
        "local": shared | {"algorithm": "fedavg", "algorithms.fedavg.local_steps": 16, "federation.batch_size": 32},
    }


def elsewhere(chosen: dict[str, Any], count: int) -> float:
    """Seconds per round of one point, in processes of its own."""
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "benchmarks.devices",
        json.dumps(chosen | {"train.devices": count}),
    ]
    surroundings = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=surroundings)
    return float(done.stdout.split()[-1])


def here(chosen: dict[str, Any]) -> float | None:
    """Seconds per round of one point; of the first process alone."""
    share = share_of(params_of(chosen).train)
    with companions(share), tempfile.TemporaryDirectory() as root:
        params, problem = equal_clients(made_up(20_000), chosen)
        watch = Wall()
        with ResumeFolder(Path(root), "run") as folder:
            train(params, image_task(problem), folder, callbacks=(watch,), progress=False, share=share)
    return None if share.rank else watch.per_round(SKIPPED)


class Wall(Stopwatch):
    """Wall-clock seconds after every round, since processes wait for each other."""

    def on_train_batch_end(self, *_: Any) -> None:
        self.times.append(time.perf_counter())


if __name__ == "__main__":
    seconds = here(json.loads(sys.argv[1]))
    if seconds is not None:
        print(seconds)
