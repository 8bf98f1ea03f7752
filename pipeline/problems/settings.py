"""The settings of each problem (``problems.<name>``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pipeline.config.spec import Auto, PositiveFloat, PositiveInt, Ratio, Section, param, section


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
