"""What is known of each data set before it is read, and the protocol's numbers for it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from pipeline.params import Params


@dataclass(frozen=True)
class DatasetInfo:
    """Shape of the images and the lead protocol's sizes (design and section 4.2 of the lead specification).

    means, deviations: of each channel, for normalisation; those of colour images are the a_fedpd specification's
    (section 4.1), the others the customary ones of the training images.
    """

    classes: int
    channels: int
    size: int  # images are size x size pixels
    validation_per_label: int
    selection_per_label: int
    noise_samples: int
    batch_size: int
    means: tuple[float, ...]
    deviations: tuple[float, ...]


CATALOG: dict[str, DatasetInfo] = {
    "digits": DatasetInfo(10, 1, 28, 10, 5, 100, 32, (0.3057,), (0.3249,)),
    "mnist": DatasetInfo(10, 1, 28, 20, 20, 5000, 64, (0.1307,), (0.3081,)),
    "fashion-mnist": DatasetInfo(10, 1, 28, 20, 20, 5000, 64, (0.2860,), (0.3530,)),
    "cifar10": DatasetInfo(10, 3, 32, 20, 20, 5000, 64, (0.491, 0.482, 0.447), (0.247, 0.243, 0.262)),
    "cifar100": DatasetInfo(100, 3, 32, 20, 20, 5000, 64, (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)),
}


TOY = "toy"
"""The data set that is none: the toy problem draws its clients from the seed."""


def default_groups(classes: int) -> list[list[int]]:
    """Label groups of the three clean clients: the first half, the next three tenths, the rest."""
    a, b = classes // 2, classes * 8 // 10
    return [list(range(a)), list(range(a, b)), list(range(b, classes))]


def resolve(params: Params) -> Params:
    """Replace every `auto` that depends on the data set by its number; the toy deals out no samples, so none counts."""
    params = replace(params, problem=problem_in_use(params))
    if params.data.name == TOY:
        return replace(params, federation=replace(params.federation, batch_size=1))
    info = CATALOG[params.data.name]
    groups = default_groups(info.classes)
    part = params.partition
    lead, duplicates = part.lead, part.duplicates
    if lead.groups == "auto":
        lead = replace(lead, groups=groups)
    if lead.noise_samples == "auto":
        lead = replace(lead, noise_samples=info.noise_samples)
    if duplicates.groups == "auto":
        duplicates = replace(duplicates, groups=groups)
    mixed = part.mixed
    if mixed.groups == "auto":
        mixed = replace(mixed, groups=groups)
    if mixed.bad_samples == "auto":
        mixed = replace(mixed, bad_samples=info.noise_samples)
    part = replace(part, lead=lead, duplicates=duplicates, mixed=mixed)
    if part.validation_per_label == "auto":
        part = replace(part, validation_per_label=info.validation_per_label)
    if part.selection_per_label == "auto":
        part = replace(part, selection_per_label=info.selection_per_label)
    consensus, colour = params.problems.consensus, info.channels > 1
    if consensus.augment == "auto":
        consensus = replace(consensus, augment=colour)
    if consensus.normalise == "auto":
        consensus = replace(consensus, normalise=colour)
    federation = params.federation
    if federation.batch_size == "auto":
        federation = replace(federation, batch_size=info.batch_size)
    problems = replace(params.problems, consensus=consensus)
    return replace(params, partition=part, problems=problems, federation=federation)


def problem_in_use(params: Params) -> Literal["client_weighting", "consensus", "toy"]:
    """`problem`, with `auto` resolved: the toy on its data set, else what the algorithm is made for."""
    if params.problem != "auto":
        return params.problem
    return "toy" if params.data.name == TOY else getattr(params.algorithms, params.algorithm).problems[0]
