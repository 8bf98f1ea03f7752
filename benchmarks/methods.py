"""What a round of each method with local steps costs over that of FedAvg, as in A-FedPD's Tables 5 and 6.

LeNet-5 (ResNet-18 too on a GPU) on synthetic images of MNIST's shape, 100 clients, 10 active, 20 local steps of batch
50; the train stage's own loop without evaluations. Methods are measured in turn, ratios paired within a turn. The paper
times rounds of 100 "iterations". FedPD needs full participation and is left out.
"""

from __future__ import annotations

import statistics
from functools import partial

from benchmarks.timing import device, equal_clients, interleaved, made_up, median_ratio, seconds_per_round

METHODS = (
    "fedavg",
    "fedprox",
    "fedcm",
    "scaffold",
    "fedsam",
    "fedadmm",
    "feddyn",
    "fedspeed",
    "a_fedpd",
    "a_fedpd_sam",
)
REPETITIONS, ROUNDS, LOCAL_STEPS = 3, 5, 20


def measure() -> dict[str, float]:
    """Seconds per round of FedAvg, and of every method over it (medians)."""
    raw, figures = made_up(20_000), {}
    for network in ("lenet5", "resnet18") if device().type == "cuda" else ("lenet5",):
        cases = {
            method: equal_clients(
                raw,
                {
                    "algorithm": method,
                    "problem": "consensus",
                    f"algorithms.{method}.local_steps": LOCAL_STEPS,
                    "model.name": network,
                    "partition.iid.clients": 100,
                    "federation.participation": 0.1,
                    "federation.batch_size": 50,
                    "train.rounds": ROUNDS,
                },
            )
            for method in METHODS
        }
        times = interleaved({name: partial(seconds_per_round, case) for name, case in cases.items()}, REPETITIONS)
        figures[f"{network}_fedavg_s"] = statistics.median(times["fedavg"])
        for name, found in times.items():
            figures[f"{network}_{name}_ratio"] = median_ratio(found, times["fedavg"])
    return figures
