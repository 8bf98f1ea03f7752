"""The most memory a run takes: against all clients N at fixed activity, and against active clients n.

As `benchmarks.scaling`, every point in a fresh process. On a CPU the most the process has held (VmHWM) beyond what it
held before training, libraries and data included there; on a GPU the most that torch had allocated, data included.

| curve | what varies | method |
|---|---|---|
| clients | N, at 10 active ones | primal_dual, `estimator: normalised` |
| remembered | the same | primal_dual, `estimator: memory`: the server keeps 2 N d numbers |
| active | n of 100 | as the first |
| duals | N, at 10 active ones, ResNet-18 | a_fedpd: the server keeps N d numbers (d = 11.2 million) |
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from benchmarks.scaling import PRIMAL_DUAL, settings
from benchmarks.timing import device, equal_clients, made_up, seconds_per_round

REPETITIONS = 1
MIB = 2**20


def measure() -> dict[str, float]:
    """MiB of every point."""
    figures: dict[str, float] = {}
    for curve, points in curves().items():
        for x, chosen in points.items():
            command = [sys.executable, "-W", "ignore", "-m", "benchmarks.memory", json.dumps(chosen)]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            figures[f"{curve}_{x}_mib"] = float(done.stdout.split()[-1])
    return figures


def curves() -> dict[str, dict[int, dict[str, Any]]]:
    """Curve -> value on the horizontal axis -> settings."""
    remembers = {f"{PRIMAL_DUAL}.estimator": "memory"}
    return {
        "clients": {n: settings(clients=n) for n in (10, 100, 1_000, 10_000)},
        "remembered": {n: settings(clients=n) | remembers for n in (10, 100, 1_000)},
        "active": {n: settings(active=n) for n in (5, 10, 20, 40, 80)},
        "duals": {n: with_duals(n) for n in (10, 100)},
    }


def with_duals(clients: int) -> dict[str, Any]:
    """A-FedPD on ResNet-18 among that many clients."""
    size = {"algorithm": "a_fedpd", "problem": "consensus", "algorithms.a_fedpd.local_steps": 1, "train.rounds": 4}
    return settings(clients=clients) | size | {"model.name": "resnet18", "model.options": {}}


def here(chosen: dict[str, Any]) -> float:
    """MiB of one point, in this process."""
    case = equal_clients(made_up(20_000), chosen)
    before = _held("VmRSS")
    seconds_per_round(case)
    if device().type == "cuda":
        return torch.cuda.max_memory_allocated() / MIB
    return _held("VmHWM") - before


def _held(entry: str) -> float:
    """MiB; of this program alone, where getrusage would count what its parent held when it was started."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{entry}:")) / 1024


if __name__ == "__main__":
    print(here(json.loads(sys.argv[1])))
