"""The sections of params.yaml."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from pipeline.params import partitions
from pipeline.params.methods import Algorithms
from pipeline.params.pairs import AlgorithmName, ProblemName
from pipeline.params.spec import Auto, NonNegativeInt, PositiveFloat, PositiveInt, Ratio, Section, Share, param, section

MODEL_NAMES = ("linear", "mlp", "mlp3", "lenet5", "lenet_wide", "cnn", "conv4", "resnet18")


@dataclass(frozen=True)
class Data(Section):
    """Which images, or the toy."""

    name: Literal["digits", "mnist", "fashion-mnist", "cifar10", "cifar100", "omniglot", "glyphs", "toy"] = param(
        "digits",
        "data set; digits needs no download; omniglot and, without a download, glyphs are characters for few-shot"
        " learning; toy is the laboratory of closed forms (no images, no network)",
    )
    mirror: str | None = param(
        None,
        "folder or base URL holding <name>/<original file names>, tried before the public sources;"
        " the environment variable FEDBILEVEL_DATA_MIRROR wins over it",
    )


@dataclass(frozen=True)
class Subset(Section):
    """The first images only, in the order of the data set's files; for small experiments."""

    train: PositiveInt | Literal["all"] = param("all", "number of training images")
    test: PositiveInt | Literal["all"] = param("all", "number of test images")


@dataclass(frozen=True)
class Partition(Section):
    """Who holds what."""

    scheme: Literal[
        "lead",
        "iid",
        "shards",
        "dirichlet",
        "quantity",
        "duplicates",
        "label_noise",
        "mixed",
        "cleaning",
        "longtail",
        "balanced",
        "powerlaw",
        "few_shot",
    ] = param("lead", "how training samples are dealt to clients; the section of that name holds its settings")
    validation_per_label: NonNegativeInt | Auto = param(
        "auto",
        "server's clean validation samples per label; auto = 10 below 10,000 training images, else 20, but 0 for"
        " few-shot data; 0 will do where the upper level is the clients' own",
    )
    selection_per_label: NonNegativeInt | Auto = param(
        "auto",
        "samples per label that no method sees, for choosing step sizes; auto = 5 below 10,000 training images, else"
        " 20, but 0 for few-shot data",
    )
    client_validation: Share | Auto = param(
        "auto",
        "share of each client's samples set aside as its own validation part; auto = 0.2 where the upper level of the"
        " problem lies there, else 0",
    )
    lead: partitions.Lead = section(partitions.Lead, "label groups and noise clients")
    iid: partitions.Iid = section(partitions.Iid, "equal random parts")
    shards: partitions.Shards = section(partitions.Shards, "few labels per client")
    dirichlet: partitions.Dirichlet = section(partitions.Dirichlet, "label shares from a Dirichlet distribution")
    quantity: partitions.Quantity = section(partitions.Quantity, "sizes from a power law")
    duplicates: partitions.Duplicates = section(partitions.Duplicates, "label groups and copies of one of them")
    label_noise: partitions.LabelNoise = section(partitions.LabelNoise, "wrong labels at a rate per client")
    mixed: partitions.Mixed = section(partitions.Mixed, "label groups and bad clients of every kind")
    cleaning: partitions.Cleaning = section(partitions.Cleaning, "wrong labels everywhere, clean validation parts")
    longtail: partitions.Longtail = section(partitions.Longtail, "imbalanced classes in equal parts")
    balanced: partitions.Balanced = section(partitions.Balanced, "everybody the same number of every label")
    powerlaw: partitions.Powerlaw = section(partitions.Powerlaw, "few labels per client, sizes from a power law")
    few_shot: partitions.FewShot = section(partitions.FewShot, "tasks of a few classes with a few samples each")


@dataclass(frozen=True)
class Model(Section):
    """The network."""

    name: str = param(
        "lenet5",
        "linear, mlp, mlp3, lenet5, lenet_wide, cnn, conv4, resnet18, or the dotted path of your own"
        " function (channels, image_size, classes, **options) -> torch.nn.Module",
    )
    options: dict[str, Any] = param({}, "keyword arguments of the model's function")


@dataclass(frozen=True)
class ClientWeighting(Section):
    """Weights over clients: the validation loss above, the weighted training losses below."""

    l2: float = param(0.0, "adds l2/2 ||w||^2 to every client's training loss", ge=0)


@dataclass(frozen=True)
class HyperRepresentation(Section):
    """The body of the network above, its last layer below."""

    heads: Literal["auto", "shared", "local"] = param(
        "auto", "shared = one last layer for all clients; local = one each; auto = what the algorithm is made for"
    )
    reg: Literal["sq", "norm", "none"] = param(
        "sq",
        "of the last layer y, below: sq = mu/2 ||y||^2; norm = mu (||W|| + ||b||), as the public FedNest code; none",
    )
    mu: float = param(0.001, "strength of `reg`; the public code's 0.05 goes with norm", ge=0)
    measured_samples: PositiveInt | Literal["all"] = param(
        10_000, "so many of the clients' samples, at most, are looked at for the training accuracy; all = every one"
    )


@dataclass(frozen=True)
class FewShot(Section):
    """The body of the network above, a last layer for each of a client's tasks below."""

    mu: float = param(0.01, "mu/2 ||y||^2 is added to every task's training loss", gt=0, symbol="rho")
    test_tasks: int = param(100, "so many tasks of new classes are tested, each with a last layer fitted to it", ge=1)


@dataclass(frozen=True)
class DataCleaning(Section):
    """A weight for every training sample."""

    validation: Literal["auto", "clients", "server"] = param(
        "auto",
        "whose clean samples the upper level is: clients = their own validation parts; server = its validation set;"
        " auto = clients on `partition.scheme: cleaning`, else server",
    )
    scores: Literal["averaged", "sharded"] = param(
        "averaged",
        "averaged = all clients exchange all scores, as the paper; sharded = the same run, but scores stay with"
        " their samples and no floats are counted for them (what a client must do for that: problems/data_cleaning.py)",
    )
    scale: PositiveFloat | Auto = param(
        "auto",
        "a sample's weight is sigmoid(scale x): a step eta of x is one of scale^2 eta of the scores; auto = the root of"
        " the number of training samples, which suits the methods' usual steps; 1 = the paper",
    )
    l2: float = param(0.001, "adds l2/2 ||y||^2 to every client's training loss", ge=0, symbol="rho")


@dataclass(frozen=True)
class LossTuning(Section):
    """A temperature and a shift per class in the training loss, so that rare classes are learned."""

    class_weights: Ratio | Auto = param(
        "auto",
        "of the upper level's cross-entropy: a number r = class c of C counts r^(-c/(C-1)), 0.01 in the public code;"
        " auto = one over the class's training samples",
    )
    l2: float = param(0.001, "adds l2/2 ||y||^2 to every client's training loss; 0 = the public code", ge=0)


@dataclass(frozen=True)
class Fair(Section):
    """Client weights that help the worst clients."""

    q: float = param(
        1.0, "upper loss = (validation loss)^(q+1)/(q+1); 0 = the mean; larger = the worst counts more", ge=0
    )
    l2: float = param(0.001, "adds l2/2 ||y||^2 to every client's training loss", ge=0, symbol="rho")


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
    hyper_representation: HyperRepresentation = section(HyperRepresentation, "body above, last layer below")
    few_shot: FewShot = section(FewShot, "body above, a last layer for each task below")
    data_cleaning: DataCleaning = section(DataCleaning, "a weight for every training sample")
    loss_tuning: LossTuning = section(LossTuning, "a loss for imbalanced classes")
    fair: Fair = section(Fair, "client weights that help the worst clients")
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
    )
    accelerator: Literal["auto", "cpu", "gpu"] = param("auto", "auto takes the GPU when there is one")
    devices: int = param(1, "processes per machine, each on a GPU of its own or, on a CPU, with a share of it", ge=1)
    nodes: int = param(1, "machines; more than one are started by srun or torchrun", ge=1)
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
        None, "MLflow tracking URI; null = MLFLOW_TRACKING_URI if set, else sqlite:///mlflow.db here"
    )
    experiment: str = param("fedbilevel", "MLflow experiment name")


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


@dataclass(frozen=True)
class Params(Section):
    """The whole of params.yaml."""

    seed: int = param(0, "all randomness comes from it; equal seeds give equal runs", ge=0, lt=2**31)
    data: Data = section(Data, "which images")
    subset: Subset = section(Subset, "the first images of the data set only")
    partition: Partition = section(Partition, "who holds what")
    model: Model = section(Model, "the network")
    problem: ProblemName = param("auto", "what is optimised; auto = what the data or the algorithm are made for")
    problems: Problems = section(Problems, "settings of each problem")
    federation: Federation = section(Federation, "who takes part, and with how much data")
    algorithm: AlgorithmName = param("primal_dual", "the method")
    algorithms: Algorithms = section(Algorithms, "settings of each method")
    train: Train = section(Train, "the loop")
    sweep: Sweep = section(Sweep, "the runs of `make sweep`; a single run does not look at it")
    tracking: Tracking = section(Tracking, "where runs are recorded")
