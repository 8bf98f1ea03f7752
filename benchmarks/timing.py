"""What the benchmarks share: seconds per round of the train loop, synthetic data, the machine's speed."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytorch_lightning as pl
import torch

from pipeline.config.spec import override
from pipeline.data.datasets import load, prepare
from pipeline.data.partition import make_partition
from pipeline.data.raw import RawDataset
from pipeline.params import Params, Resolved
from pipeline.params.resolve import resolve
from pipeline.problems.base import ImageProblem
from pipeline.training.resume import ResumeFolder
from pipeline.training.run import train
from pipeline.training.setup import build_problem, device_for
from pipeline.training.tasks import image_task

Case = tuple[Params, ImageProblem]
T = TypeVar("T")


def device() -> torch.device:
    """The GPU when there is one."""
    return device_for("auto")


def clock() -> float:
    """Seconds of the processor, of this thread alone, where one thread computes: other work on the machine disturbs
    them least. Of the wall with several threads or a GPU."""
    if device().type == "cuda":
        torch.cuda.synchronize()
    elif torch.get_num_threads() == 1:
        return time.thread_time()
    return time.perf_counter()


def median_ratio(a: list[float], b: list[float]) -> float:
    """Of pairs taken one after the other, because the machine's speed drifts."""
    return statistics.median(x / y for x, y in zip(a, b, strict=True))


def interleaved(points: Mapping[T, Callable[[], float]], repetitions: int) -> dict[T, list[float]]:
    """Each point's measurements, all points in turn, over and over; the first turn warms up and does not count."""
    found: dict[T, list[float]] = {x: [] for x in points}
    for repetition in range(repetitions + 1):
        for x, measure in points.items():
            value = measure()
            if repetition:
                found[x].append(value)
    return found


class Stopwatch(pl.Callback):
    """The clock after every round; and the processor's seconds of all other threads, such as the tracker's."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.others: list[float] = []

    def on_train_batch_end(self, *_: Any) -> None:
        self.times.append(clock())
        self.others.append(time.process_time() - time.thread_time())

    def per_round(self, skipped: int) -> float:
        """Seconds, without the first rounds and the last, which evaluates."""
        return _slope(self.times, skipped)

    def others_per_round(self, skipped: int) -> float:
        """The same of the other threads; with one thread for the mathematics, what runs in the background."""
        return _slope(self.others, skipped)


def _slope(times: list[float], skipped: int) -> float:
    return (times[-2] - times[skipped - 1]) / (len(times) - 1 - skipped)


def seconds_per_round(case: Case, skipped: int = 2) -> float:
    """Of the train stage's own loop, without a tracker. params: of `case`, with as many rounds as shall be run."""
    params, problem = case
    watch = Stopwatch()
    with tempfile.TemporaryDirectory() as root, ResumeFolder(Path(root), "run") as folder:
        train(params, image_task(problem), folder, callbacks=(watch,), progress=False)
    return watch.per_round(skipped)


def digits() -> RawDataset:
    """The embedded digits; where scikit-learn is not at hand, random images: a round costs the same."""
    try:
        with tempfile.TemporaryDirectory() as root:
            prepare("digits", Path(root) / "raw")
            return load(Path(root) / "raw")
    except ImportError as error:
        print(f"random images instead of digits: {error}")
        return made_up(1_438, "digits")


def made_up(images: int, name: str = "mnist", tested: int = 1_000) -> RawDataset:
    """Random images of MNIST's shape and labels, all labels alike; `tested` more as the test set."""
    rng = np.random.default_rng(0)

    def part(count: int) -> tuple[np.ndarray, np.ndarray]:
        return rng.integers(0, 256, (count, 1, 28, 28), dtype=np.uint8), rng.permutation(np.arange(count) % 10)

    return RawDataset(name, 10, *part(images), *part(tested))


def case(raw: RawDataset, settings: dict[str, Any]) -> Case:
    """The parameters and the problem of these settings, for a run without evaluations, on the device to measure."""
    params = params_of({"data.name": raw.name} | settings)
    partition = make_partition(raw.train_labels, raw.name, raw.classes, params.partition, params.seed)
    return params, build_problem(params, raw, partition, device_for("auto", params.train.devices))


def equal_clients(raw: RawDataset, settings: dict[str, Any]) -> Case:
    """The same on equal random parts of the images, with a fixed number of active clients."""
    return case(raw, {"partition.scheme": "iid", "federation.sampling": "fixed"} | settings)


def params_of(settings: dict[str, Any]) -> Resolved:
    """These settings on top of the shipped ones, evaluations off."""
    return resolve(override(Params(), {"train.eval_every": 10**6} | settings))


def matmul_rate(size: int = 2048, repetitions: int = 5) -> float:
    """FLOP per second of a product of two float32 matrices; the median."""
    a, b = torch.randn(size, size, device=device()), torch.randn(size, size, device=device())

    def once() -> float:
        start = clock()
        a @ b
        return clock() - start

    return 2 * size**3 / statistics.median(interleaved({size: once}, repetitions)[size])
