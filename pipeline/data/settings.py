"""The sections `data`, `subset` and `partition` of params.yaml."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pipeline.config import own_code
from pipeline.config.spec import (
    Auto,
    Fraction,
    Named,
    NonNegativeInt,
    OpenSection,
    PositiveInt,
    Section,
    Within,
    one_section_each,
    param,
)
from pipeline.data.schemes import SCHEMES, Scheme
from pipeline.data.sets.base import Dataset
from pipeline.data.sets.registry import DATASETS, NAMES, dataset_named
from pipeline.errors import UserError

Share = Annotated[float, Within(ge=0, le=0.5)]


@dataclass(frozen=True)
class Data(Section):
    """Which samples: a known data set, your own, or the toy."""

    name: Annotated[str, NAMES] = param(
        "digits", "data set: " + "; ".join(f"{name} = {dataset.summary}" for name, dataset in DATASETS.items())
    )
    mirror: str | None = param(
        None,
        "folder or base URL holding <name>/<original file names>, tried before the public sources;"
        " the environment variable FEDBILEVEL_DATA_MIRROR wins over it",
        secret=True,
    )

    path: str | None = param(
        None, "your own data: the folder of images, the table or folder of tables, the .npz file", secret=True
    )
    label: str | None = param(None, "of a table: the column to predict")
    client: str | None = param(None, "of a table: the column that says whose row it is; null = dealt by a scheme")
    features: list[str] | Auto = param("auto", "of a table: the columns to predict from; auto = all others")
    task: Literal["auto", "classification", "regression"] = param(
        "auto", "of a table or arrays; auto = classification for texts, true/false and at most 20 whole numbers"
    )
    group: str | None = param(
        None, "of a table: a column; rows of one group (a person, a day) never lie on both sides of a split"
    )
    image_size: PositiveInt | Auto = param(
        "auto", "of a folder: all images are brought to that many pixels square; auto = the commonest longer side"
    )
    channels: Literal["auto", 1, 3] = param("auto", "of a folder: 1 = grey | 3 = colour | auto = 3 if any has colours")
    validation_share: Share | Auto = param(
        "auto", "of your own data without a validation set: held out for the server; auto = 0.1, at most 5000 samples"
    )
    selection_share: Share | Auto = param(
        "auto", "likewise without a selection set, which no method sees; auto = 0.05, at most 5000 samples"
    )
    test_share: Share | Auto = param("auto", "likewise without a test set; auto = 0.2, at most 50,000 samples")
    bad: list[str] = param([], "names of clients known to be bad; none = it is unknown which are")
    skip_unreadable: bool = param(False, "of a folder: leave out images that cannot be read, and name them")

    @property
    def dataset(self) -> Dataset:
        """What `name` names."""
        return dataset_named(self.name)


@dataclass(frozen=True)
class Subset(Section):
    """The first images only, in the order of the data set's files; for small experiments."""

    train: PositiveInt | Literal["all"] = param("all", "number of training images")
    test: PositiveInt | Literal["all"] = param("all", "number of test images")


@one_section_each({name: (scheme.settings, scheme.summary) for name, scheme in SCHEMES.items()})
@dataclass(frozen=True)
class PartitionSettings(OpenSection):
    """Who holds what."""

    scheme: Annotated[str, Named(("auto", *SCHEMES), "a Scheme of your own")] = param(
        "auto",
        "how training samples are dealt to clients; the section of that name holds its settings; auto = natural for"
        " your own data with clients, iid for those without, few_shot for characters, else lead",
    )
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

    @property
    def dealing(self) -> Scheme:
        """What `scheme` names; ValueError while it is auto."""
        if self.scheme == "auto":
            raise ValueError("partition.scheme is still auto: resolve the settings first")
        return scheme_named(self.scheme)


def scheme_named(name: str) -> Scheme:
    """The scheme of that name or dotted path; UserError, in one line, for whatever is wrong with either."""
    if name in SCHEMES:
        return SCHEMES[name]
    found: Scheme = own_code.found_at("partition.scheme", name, Scheme, "Scheme", " as a Scheme(...)")
    fault = own_code.fault(found, SCHEMES, found.settings, Section) or own_code.not_called_with(found.deal, 5)
    if fault:
        raise UserError(f"partition.scheme = {name!r}: {fault}.")
    return found
