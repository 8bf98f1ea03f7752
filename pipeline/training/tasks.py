"""What is trained: a problem, who its clients are, and what is measured on the way.

| data.name | problem | measured at evaluations |
|---|---|---|
| samples | by `problem` | validation_loss (the upper loss), test_accuracy, selection_accuracy, the problem's own |
| samples with numbers | likewise | validation_loss, test_rmse, test_r2, selection_r2, the problem's own |
| toy | `Toy` | validation_loss f_0(w), upper_value f_0(w*(x)), stationarity (exact, by Newton's method) |
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from pipeline.data.datasets import load
from pipeline.data.partition import Partition
from pipeline.data.sets.registry import TOY
from pipeline.params import Resolved
from pipeline.problems.base import ImageProblem, Problem, Variables
from pipeline.problems.general_weighting import GeneralWeighting
from pipeline.problems.toy import Toy
from pipeline.training import evaluation
from pipeline.training.setup import build_problem, build_toy

Measure = Callable[[Variables], dict[str, float]]
"""The server's variables -> a number for each of the task's measures (one that makes no sense may be missing)."""


@dataclass(frozen=True)
class Task:
    """kinds: of each client (clean, noisy, ...). measures: columns of the history. digits: that a number is written
    with, so that reading it back gives the same. names: of the clients, where they have
    their own. The hashes name data and partition."""

    problem: Problem
    kinds: list[str]
    measures: tuple[str, ...]
    measure: Measure
    digits: int
    device: torch.device
    data_hash: str = ""
    partition_hash: str = ""
    names: list[str] = field(default_factory=list)

    @property
    def clean(self) -> np.ndarray:
        """Which clients are clean, [N] bool."""
        return np.array([kind == "clean" for kind in self.kinds])


def load_task(params: Resolved, raw: Path, partition: Path, device: torch.device) -> Task:
    """From the files that the earlier stages wrote."""
    if params.data.name == TOY:
        return toy_task(build_toy(params))
    images, dealt = load(raw).first(params.subset), Partition.load(partition)
    task = image_task(build_problem(params, images, dealt, device), images.hash, dealt.hash)
    return replace(task, names=dealt.names if images.client_names else [])


def image_task(problem: ImageProblem, data_hash: str = "", partition_hash: str = "") -> Task:
    """A problem on images."""
    data, digits = problem.data, 9 if problem.data.dtype == torch.float32 else 17
    measures, measure = evaluation.measures(problem), partial(evaluation.measured, problem)
    return Task(problem, data.kinds, measures, measure, digits, data.device, data_hash, partition_hash)


def toy_task(problem: Toy | GeneralWeighting) -> Task:
    """The toy laboratory, always in float64 on the CPU."""
    measures = ("validation_loss", "upper_value", "stationarity")
    toy = problem if isinstance(problem, Toy) else problem.problem
    assert isinstance(toy, Toy)
    name = f"toy-{toy.clients}-{toy.hash[:16]}"
    return Task(problem, ["clean"] * toy.clients, measures, problem.measure, 17, toy.A.device, name, name)
