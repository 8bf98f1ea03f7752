"""Settings of each partition scheme (``partition.<scheme>``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pipeline.config.spec import Auto, PositiveInt, Ratio, Section, param
from pipeline.errors import not_allowed


@dataclass(frozen=True)
class Lead(Section):
    """The lead paper's protocol: label groups to clean clients, plus clients whose labels are pure noise."""

    groups: list[list[int]] | Auto = param(
        "auto",
        "labels of each clean client; auto = the first half, the next three tenths and the last fifth of the"
        " labels, which is [[0,1,2,3,4],[5,6,7],[8,9]] for ten classes",
    )
    noise_clients: int = param(7, "clients with uniformly random labels", ge=0)
    noise_samples: PositiveInt | Auto = param(
        "auto", "samples of each noise client; auto = 100 below 10,000 training images, else 5000"
    )


@dataclass(frozen=True)
class Iid(Section):
    """Equal random parts."""

    clients: int = param(10, "number of clients", ge=1, symbol="N")


@dataclass(frozen=True)
class Shards(Section):
    """Samples sorted by label, cut into equal shards, dealt at random: few labels per client."""

    clients: int = param(10, "number of clients", ge=1, symbol="N")
    shards_per_client: int = param(2, "shards each client is dealt, about its number of labels", ge=1)


@dataclass(frozen=True)
class Dirichlet(Section):
    """Label shares of each client from a symmetric Dirichlet distribution; all clients hold equally many."""

    clients: int = param(10, "number of clients", ge=1, symbol="N")
    concentration: float = param(
        0.1,
        "Dirichlet parameter per class: 0.1 about one label per client, 1.0 about three",
        gt=0,
        symbol="a",
    )
    replacement: Literal["cycle", "iid"] = param(
        "cycle",
        "cycle = no image repeats until its class is used up, then the class starts again;"
        " iid = every image is drawn afresh from its class",
    )


@dataclass(frozen=True)
class Quantity(Section):
    """All labels everywhere, but sizes from a power law."""

    clients: int = param(10, "number of clients", ge=1, symbol="N")
    exponent: float = param(1.5, "client i holds a share proportional to (i+1)^-exponent", ge=0)
    min_samples: int = param(10, "no client holds fewer", ge=1)


@dataclass(frozen=True)
class Duplicates(Section):
    """The label groups of `lead`, and clients that hold an exact copy of one clean client's samples."""

    groups: list[list[int]] | Auto = param("auto", "labels of each clean client, as in `lead`")
    copies: int = param(3, "how many copies", ge=0)
    source: int = param(0, "the clean client that is copied", ge=0)


@dataclass(frozen=True)
class Mixed(Section):
    """The label groups of `lead`, and one or more bad clients of every kind."""

    groups: list[list[int]] | Auto = param("auto", "labels of each clean client, as in `lead`")
    noisy: int = param(1, "clients with uniformly random labels", ge=0)
    flip_rates: list[float] = param([0.3, 0.6], "a client for each rate: that share of its labels is wrong")
    shuffled: int = param(1, "clients whose pixels are shuffled, by one order per client", ge=0)
    duplicates: int = param(1, "exact copies of the first clean client", ge=0)
    small: int = param(1, "clients with few samples, their labels right", ge=0)
    bad_samples: PositiveInt | Auto = param(
        "auto",
        "samples of each noisy, flipped and shuffled client; auto = 100 below 10,000 training images, else 5000",
    )
    small_samples: int = param(20, "samples of each small client", ge=1)


@dataclass(frozen=True)
class LabelNoise(Section):
    """Equal random parts; client i's labels are replaced, at its own rate, by another label at random."""

    rates: list[float] = param(
        [0.0, 0.0, 0.0, 0.2, 0.2, 0.4, 0.4, 0.6, 0.8, 1.0],
        "share of wrong labels per client, each in [0, 1]; as many clients as rates",
    )


@dataclass(frozen=True)
class Cleaning(Section):
    """Equal random parts with wrong labels everywhere, and a clean validation part for each client."""

    clients: int = param(10, "number of clients", ge=1, symbol="M")
    samples: PositiveInt | Auto = param(
        "auto", "training samples of each client; auto = 100 below 10,000 training images, else 4500"
    )
    rate: float = param(
        0.4, "share of labels that are replaced by one of all labels at random, the true one included", ge=0, le=1
    )
    validation_samples: PositiveInt | Auto = param(
        "auto", "clean validation samples of each client; auto = 10 below 10,000 training images, else 50"
    )
    validation_labels: Literal["iid", "one_class"] = param(
        "iid", "of a client: iid = at random; one_class = all of class (client number) mod (number of classes)"
    )


@dataclass(frozen=True)
class FewShot(Section):
    """Tasks of a few classes with a few samples each; every client has tasks of its own."""

    clients: int = param(10, "number of clients", ge=1, symbol="M")
    ways: int = param(5, "classes of a task", ge=2)
    shots: int = param(1, "training samples of each class, the support set", ge=1)
    queries: int = param(15, "validation samples of each class, the query set", ge=1)
    tasks: PositiveInt | Auto = param(
        "auto", "tasks of each client; auto = as many as the classes allow, no class being in two tasks"
    )


@dataclass(frozen=True)
class Longtail(Section):
    """Class counts that fall geometrically, dealt in equal parts; what is left over is not used."""

    clients: int = param(10, "number of clients", ge=1, symbol="n")
    imbalance: Ratio | Auto = param(
        "auto",
        "samples of the last class per one of the first: class c keeps its first P/C imbalance^(c/(C-1)) of P samples;"
        " auto = 0.1 below 10,000 training images, else 0.01",
    )
    shards_per_client: int = param(0, "0 = random parts; else sorted by label and so many shards each", ge=0)


@dataclass(frozen=True)
class Balanced(Section):
    """Equal parts with the same number of every label, as far as the counts allow; a remainder makes one more."""

    clients: int = param(10, "number of clients", ge=1, symbol="C")


@dataclass(frozen=True)
class Powerlaw(Section):
    """Few labels per client and heavy-tailed sizes: the split of MNIST in the federated averaging literature."""

    clients: int = param(10, "number of clients; 1000 in the literature", ge=1, symbol="N")
    labels_per_client: int = param(2, "client i holds the labels i, i + 1, ... of so many, modulo all labels", ge=1)
    sigma: float = param(
        2.0,
        "the samples of a label beyond min_per_label go in proportion to exp(sigma z), z standard normal; larger"
        " = fewer clients hold most; 0 = equal shares",
        ge=0,
        le=10,
    )
    min_per_label: int = param(5, "no client holds fewer samples of a label of its own", ge=1)


DEALS_VALIDATION = ("cleaning", "few_shot")
"""Partition schemes that deal out the clients' validation parts themselves."""


def require_rates(key: str, rates: list[float]) -> None:
    """UserError for a share of wrong labels that is none."""
    if not all(0.0 <= rate <= 1.0 for rate in rates):
        raise not_allowed(key, rates, "a list of numbers in [0, 1], one per client", f"for example {key}: [0.2, 0.4]")
