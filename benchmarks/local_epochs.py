"""Federated averaging of logistic regression on MNIST, the literature's LR-MNIST case.

784-10 logistic regression; 60,000 images over 1000 clients, sizes by a power law, at most two labels each; averaging
weighted by samples; 10 clients per round, batch 10, learning rate 0.03, 1 local epoch, 100 rounds, test every 20. Timed
is what the train stage does between data in memory and the trained model, evaluations included. Where MNIST is not at
hand, images and labels are random: the time is the same, the accuracy is guessing.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pipeline.config.spec import override
from pipeline.data.datasets import load, prepare
from pipeline.data.federated import FederatedData
from pipeline.data.partition import Partition
from pipeline.data.raw import RawDataset
from pipeline.data.schemes.quantity import power_law_sizes
from pipeline.errors import UserError
from pipeline.params import Params, Resolved
from pipeline.params.resolve import resolve
from pipeline.problems.consensus import Consensus
from pipeline.training.evaluation import accuracy
from pipeline.training.resume import ResumeFolder
from pipeline.training.run import train
from pipeline.training.setup import build_model
from pipeline.training.tasks import image_task

CLIENTS, EXPONENT, LEAST, REPETITIONS = 1000, 0.7, 10, 5
SETTINGS: dict[str, Any] = {
    "algorithm": "fedavg",
    "data.name": "mnist",
    "model.name": "linear",
    "federation.sampling": "fixed",
    "federation.participation": 0.01,
    "federation.batch_size": 10,
    "federation.aggregation": "samples",
    "algorithms.fedavg.eta": 0.03,
    "algorithms.fedavg.eta_decay": 1.0,
    "algorithms.fedavg.weight_decay": 0.0,
    "algorithms.fedavg.clip_norm": 0.0,
    "algorithms.fedavg.local_epochs": 1,
    "train.rounds": 100,
    "train.eval_every": 20,
    "train.checkpoint_every": 50,
    "train.accelerator": "cpu",
}


def measure() -> dict[str, float]:
    """Seconds of training (median, best, of the processor), final accuracy, and all clients' local steps together."""
    seconds, processor = [], []
    with tempfile.TemporaryDirectory() as scratch:
        _, _, problem = case(Path(scratch))
        for repetition in range(REPETITIONS + 1):
            busy = time.process_time()
            spent, accuracy = train_once(problem, Path(scratch) / str(repetition), repetition)
            seconds.append(spent)
            processor.append(time.process_time() - busy)
    return {
        "train_s": statistics.median(seconds[1:]),  # the first warms up
        "train_best_s": min(seconds[1:]),
        "processor_s": statistics.median(processor[1:]),  # on a machine with other work, the fairer figure
        "test_accuracy": accuracy,
        "threads": torch.get_num_threads(),
    }


def case(scratch: Path) -> tuple[RawDataset, Partition, Consensus]:
    """The data, who holds what, and the problem in memory."""
    raw = _mnist(scratch)
    partition = _two_labels_each(raw)
    data = FederatedData.build(raw, partition, torch.device("cpu"))
    return raw, partition, Consensus(build_model(_params()), data)


def train_once(problem: Consensus, root: Path, seed: int) -> tuple[float, float]:
    """(seconds of training, final test accuracy)."""
    with ResumeFolder(root, "run") as folder:
        start = time.perf_counter()
        module, _ = train(replace(_params(), seed=seed), image_task(problem), folder, progress=False)
        seconds = time.perf_counter() - start
    data = problem.data
    return seconds, accuracy(problem, module.served, data.test_images, data.test_labels)


def _params() -> Resolved:
    return resolve(override(Params(), SETTINGS))


def _mnist(scratch: Path) -> RawDataset:
    try:
        prepare("mnist", scratch / "mnist", os.environ.get("FEDBILEVEL_DATA_MIRROR"))
        return load(scratch / "mnist")
    except UserError as error:
        print(f"random images instead of MNIST: {str(error).splitlines()[0]}")
    g = np.random.default_rng(0)
    images = [g.integers(0, 256, (n, 1, 28, 28), dtype=np.uint8) for n in (60_000, 10_000)]
    labels = [g.integers(0, 10, n) for n in (60_000, 10_000)]
    return RawDataset("mnist", 10, images[0], labels[0], images[1], labels[1])


def _two_labels_each(raw: RawDataset) -> Partition:
    """Client i holds a share proportional to (i+1)^-EXPONENT, but at least LEAST samples, of the labels i and i + 1."""
    g = np.random.default_rng(0)
    sizes = power_law_sizes(len(raw.train_labels), CLIENTS, EXPONENT, LEAST)
    by_label = [g.permutation(np.flatnonzero(raw.train_labels == label)) for label in range(10)]
    used, hands = [0] * 10, []
    for client, size in enumerate(sizes):
        parts = []
        for label, count in ((client % 10, size - size // 2), ((client + 1) % 10, size // 2)):
            rows = (used[label] + np.arange(count)) % len(by_label[label])  # a label that is used up starts again
            parts.append(by_label[label][rows])
            used[label] += count
        hands.append(np.concatenate(parts))
    rows, none = np.concatenate(hands), np.zeros(0, dtype=np.int64)
    return Partition(
        dataset=raw.name,
        classes=raw.classes,
        scheme="power law, two labels",
        seed=0,
        settings={},
        kinds=["clean"] * CLIENTS,
        client_labels=[sorted({client % 10, (client + 1) % 10}) for client in range(CLIENTS)],
        quality=[1.0] * CLIENTS,
        indices=rows,
        labels=raw.train_labels[rows],
        offsets=np.concatenate([[0], np.cumsum(sizes)]),
        validation_indices=none,
        validation_labels=none,
        validation_offsets=np.zeros(CLIENTS + 1, dtype=np.int64),
        server_validation=rows[:100],  # for the loss in the record
        server_selection=none,
    )
