"""The sections of params.yaml."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from pipeline.params import partitions
from pipeline.params.methods import Algorithms
from pipeline.params.spec import Auto, NonNegativeInt, PositiveInt, Section, param, section

MODEL_NAMES = ("linear", "mlp", "mlp3", "lenet5", "lenet_wide", "cnn", "resnet18")


@dataclass(frozen=True)
class Data(Section):
    """Which images, or the toy."""

    name: Literal["digits", "mnist", "fashion-mnist", "cifar10", "cifar100", "toy"] = param(
        "digits", "data set; digits needs no download, toy is the laboratory of closed forms (no images, no network)"
    )
    mirror: str | None = param(
        None,
        "folder or base URL holding <name>/<original file names>, tried before the public sources;"
        " the environment variable FEDBILEVEL_DATA_MIRROR wins over it",
    )


@dataclass(frozen=True)
class Partition(Section):
    """Who holds what."""

    scheme: Literal["lead", "iid", "shards", "dirichlet", "quantity", "duplicates", "label_noise", "mixed"] = param(
        "lead", "how training samples are dealt to clients; the section of that name holds its settings"
    )
    validation_per_label: PositiveInt | Auto = param(
        "auto", "server's clean validation samples per label; auto = 10 on digits, 20 elsewhere"
    )
    selection_per_label: NonNegativeInt | Auto = param(
        "auto",
        "samples per label that no method sees, for choosing step sizes; auto = 5 on digits, 20 elsewhere",
    )
    client_validation: float = param(
        0.0, "share of each client's samples set aside as its own validation part", ge=0, lt=1
    )
    lead: partitions.Lead = section(partitions.Lead, "label groups and noise clients")
    iid: partitions.Iid = section(partitions.Iid, "equal random parts")
    shards: partitions.Shards = section(partitions.Shards, "few labels per client")
    dirichlet: partitions.Dirichlet = section(partitions.Dirichlet, "label shares from a Dirichlet distribution")
    quantity: partitions.Quantity = section(partitions.Quantity, "sizes from a power law")
    duplicates: partitions.Duplicates = section(partitions.Duplicates, "label groups and copies of one of them")
    label_noise: partitions.LabelNoise = section(partitions.LabelNoise, "wrong labels at a rate per client")
    mixed: partitions.Mixed = section(partitions.Mixed, "label groups and bad clients of every kind")


@dataclass(frozen=True)
class Model(Section):
    """The network."""

    name: str = param(
        "lenet5",
        "linear, mlp, mlp3, lenet5, lenet_wide, cnn, resnet18, or the dotted path of your own"
        " function (channels, image_size, classes, **options) -> torch.nn.Module",
    )
    options: dict[str, Any] = param({}, "keyword arguments of the model's function")


@dataclass(frozen=True)
class ClientWeighting(Section):
    """Weights over clients: the validation loss above, the weighted training losses below."""

    l2: float = param(0.0, "adds l2/2 ||w||^2 to every client's training loss", ge=0)


@dataclass(frozen=True)
class Consensus(Section):
    """One model for everybody: the mean of the clients' training losses."""

    augment: bool | Auto = param(
        "auto",
        "random flips and crops of training images, on the device; auto = on for colour images, off elsewhere",
    )
    normalise: bool | Auto = param(
        "auto", "channels to mean 0 and deviation 1, within the network; auto = on for colour images, off elsewhere"
    )


@dataclass(frozen=True)
class Toy(Section):
    """Strongly convex clients drawn from the seed, solved exactly for comparison (`data.name: toy`)."""

    clients: int = param(15, "number of clients", ge=2, symbol="N")
    noise: float = param(
        0.0,
        "standard deviation of white noise in every gradient and Hessian estimate, per entry; 0.5 in the paper's noisy"
        " setting, with federation.participation 0.5",
        ge=0,
    )


@dataclass(frozen=True)
class Problems(Section):
    """One section per problem; only the one in use counts."""

    client_weighting: ClientWeighting = section(ClientWeighting, "learn how much to trust each client")
    consensus: Consensus = section(Consensus, "one model that minimises the mean of the clients' losses")
    toy: Toy = section(Toy, "client weighting on functions with closed forms")


@dataclass(frozen=True)
class Federation(Section):
    """Who takes part, and with how much data."""

    sampling: Literal["bernoulli", "fixed"] = param(
        "bernoulli", "bernoulli = each client independently; fixed = the same number every time"
    )
    participation: float = param(
        1.0, "probability (bernoulli) or fraction (fixed) of active clients", gt=0, le=1, symbol="p or AP"
    )
    batch_size: PositiveInt | Auto = param(
        "auto", "minibatch per client and step; auto = 32 on digits, 64 elsewhere", symbol="B"
    )
    validation_batch_size: PositiveInt | Literal["all"] = param(
        "all", "server's minibatch of validation samples per step; all = the whole set", symbol="B_0"
    )
    aggregation: Literal["uniform", "samples"] = param(
        "uniform", "weights of methods that do not learn them: 1/N, or in proportion to samples"
    )


@dataclass(frozen=True)
class Train(Section):
    """The loop."""

    rounds: int = param(500, "outer iterations", ge=1, symbol="T")
    eval_every: int = param(25, "rounds between evaluations on the test set", ge=1)
    checkpoint_every: int = param(50, "rounds between saves; an interrupted run goes on from the last", ge=1)
    accelerator: Literal["auto", "cpu", "gpu"] = param("auto", "auto takes the GPU when there is one")
    devices: Literal[1] = param(1, "number of devices")
    strategy: Literal["auto"] = param("auto", "Lightning strategy")
    precision: Literal["32-true", "64-true"] = param("32-true", "floating point of the whole run")
    backend: Literal["fused", "loop"] = param(
        "fused", "fused = all clients in one pass; loop = one by one, the slow readable reference"
    )


@dataclass(frozen=True)
class Tracking(Section):
    """Where runs are recorded; changing it reruns nothing."""

    uri: str | None = param(
        None, "MLflow tracking URI; null = MLFLOW_TRACKING_URI if set, else sqlite:///mlflow.db here"
    )
    experiment: str = param("fedbilevel", "MLflow experiment name")


@dataclass(frozen=True)
class Params(Section):
    """The whole of params.yaml."""

    seed: int = param(0, "all randomness comes from it; equal seeds give equal runs", ge=0, lt=2**31)
    data: Data = section(Data, "which images")
    partition: Partition = section(Partition, "who holds what")
    model: Model = section(Model, "the network")
    problem: Literal["auto", "client_weighting", "consensus", "toy"] = param(
        "auto", "what is optimised; auto = what the algorithm is made for, or toy on `data.name: toy`"
    )
    problems: Problems = section(Problems, "settings of each problem")
    federation: Federation = section(Federation, "who takes part, and with how much data")
    algorithm: Literal[
        "primal_dual",
        "rfho",
        "fednest",
        "sustain",
        "afl",
        "validation_only",
        "average",
        "oracle_weights",
        "exact_gradient",
        "fedavg",
        "fedprox",
        "fedcm",
        "scaffold",
        "fedsam",
        "fedpd",
        "fedadmm",
        "feddyn",
        "fedspeed",
        "a_fedpd",
        "a_fedpd_sam",
    ] = param("primal_dual", "the method")
    algorithms: Algorithms = section(Algorithms, "settings of each method")
    train: Train = section(Train, "the loop")
    tracking: Tracking = section(Tracking, "where runs are recorded")
