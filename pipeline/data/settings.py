"""The sections `data`, `subset` and `partition` of params.yaml."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pipeline.config.spec import Auto, Fraction, NonNegativeInt, PositiveInt, Section, param, section
from pipeline.data import scheme_settings as partitions


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
class PartitionSettings(Section):
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
    client_validation: Fraction | Auto = param(
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
