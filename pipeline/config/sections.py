"""The sections of params.yaml that belong to no feature."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from pipeline.config.spec import Auto, PositiveInt, Section, param


@dataclass(frozen=True)
class LossSettings(Section):
    """Of one sample; the mean is what clients and server minimise."""

    name: Literal["auto", "cross_entropy", "squared", "huber"] = param(
        "auto", "auto = cross_entropy for classes, squared for numbers; huber = linear in large errors"
    )
    huber_delta: float = param(
        1.0, "of huber: errors above it count linearly; in standard deviations of the target", gt=0
    )
    class_weights: Literal["none", "balanced"] = param(
        "none", "of cross_entropy: balanced = a class counts by one over its training samples"
    )


@dataclass(frozen=True)
class FederationSettings(Section):
    """Who takes part, and with how much data."""

    sampling: Literal["bernoulli", "fixed"] = param(
        "bernoulli", "bernoulli = each client independently; fixed = the same number every time"
    )
    participation: float = param(
        1.0, "probability (bernoulli) or fraction (fixed) of active clients", gt=0, le=1, symbol="p or AP"
    )
    batch_size: PositiveInt | Auto = param(
        "auto",
        "minibatch per client and step; auto = 32 below 10,000 training images, else 64, as for few-shot data",
        symbol="B",
    )
    validation_batch_size: PositiveInt | Literal["all"] = param(
        "all", "server's minibatch of validation samples per step; all = the whole set", symbol="B_0"
    )
    aggregation: Literal["uniform", "samples"] = param(
        "uniform", "weights of methods that do not learn them: 1/N, or in proportion to samples"
    )


@dataclass(frozen=True)
class Screening(Section):
    """Which clients' answers count."""

    leave_out: bool = param(
        True, "leave out answers that are not finite or out of all proportion; their clients count as absent"
    )
    factor: float = param(
        100.0,
        "an answer is out of all proportion if its norm is more than this many times the largest median norm of all"
        " clients' answers so far",
        gt=1,
    )
    bad_rounds: float = param(
        0.5,
        "the run ends, naming the clients, when more than this share of the last 100 rounds were without at least half"
        " of their clients' answers; 1 = never",
        ge=0,
        le=1,
    )


@dataclass(frozen=True)
class Train(Section):
    """The loop."""

    rounds: int = param(500, "outer iterations", ge=1, symbol="T")
    eval_every: int = param(25, "rounds between evaluations on the test set", ge=1)
    checkpoint_every: int = param(50, "rounds between saves; an interrupted run goes on from the last", ge=1)
    replicates: int = param(
        0,
        "further runs on other random draws after training, for 90 % intervals of the client weights; 0 = none, else"
        " at least 2; under client_weighting only, and not in a sweep",
        ge=0,
        le=1000,
    )
    accelerator: Literal["auto", "cpu", "gpu"] = param("auto", "auto takes the GPU when there is one")
    devices: int = param(
        1, "processes per machine, each on a GPU of its own or, on a CPU, with a share of it", ge=1, le=1024
    )
    nodes: int = param(1, "machines; more than one are started by srun or torchrun", ge=1, le=10_000)
    strategy: Literal["auto", "ddp"] = param(
        "auto", "Lightning strategy; auto = ddp (torch.distributed) for several processes"
    )
    precision: Literal["32-true", "tf32", "bf16-mixed", "64-true"] = param(
        "32-true",
        "floating point: tf32 = a GPU rounds in products | bf16-mixed = the network in bfloat16, but in evaluations |"
        " 64-true = for checks of the mathematics",
    )
    backend: Literal["fused", "loop"] = param(
        "fused", "fused = all clients in one pass; loop = one by one, the slow readable reference"
    )


@dataclass(frozen=True)
class Tracking(Section):
    """Where runs are recorded; changing it reruns nothing."""

    uri: str | None = param(
        None, "MLflow tracking URI; null = MLFLOW_TRACKING_URI if set, else sqlite:///mlflow.db here", secret=True
    )
    experiment: str = param("fedbilevel", "MLflow experiment name")
    register: str | None = param(
        None, "name under which the model goes into MLflow's registry, a new version per model; null = it does not"
    )
    alias: str | None = param(
        None, "alias, such as champion, that the registered version takes over from the one that had it; null = none"
    )
    pickle: bool = param(False, "whether a network that torch.export cannot take is served as a pickle")


@dataclass(frozen=True)
class Sweep(Section):
    """The runs of `make sweep`: every seed with every combination of values."""

    seeds: list[int] = param([], "seeds, each with a partition of its own; empty = the run's own seed")
    values: dict[str, list[Any]] = param(
        {}, "dotted name of a parameter -> its values; all combinations; an empty list = the run's own value"
    )
    together: Literal["auto", "always", "never"] = param(
        "auto",
        "runs that differ in seed and continuous hyper-parameters alone, as one computation: auto = on a GPU and for"
        " the toy; the others one after another",
    )
