"""What is known of each data set before it is read, and the protocol's numbers for it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from pipeline.params import Params, Partition, Problems
from pipeline.params.methods import Algorithms
from pipeline.params.pairs import DEALS_VALIDATION, HEADS, ProblemName, family, in_use, meant, upper_on_clients


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
    cleaning_samples: int = 4500  # of each client under the scheme `cleaning`
    cleaning_validation: int = 50
    imbalance: float = 0.01  # of the scheme `longtail`
    clip_norm: float = 0.0  # of primal_dual, where clients may be absent
    gamma_schedule: Literal["rising", "constant"] = "constant"  # of primal_dual


CATALOG: dict[str, DatasetInfo] = {
    "digits": DatasetInfo(10, 1, 28, 10, 5, 100, 32, (0.3057,), (0.3249,), 100, 10, 0.1, clip_norm=15.0),
    "mnist": DatasetInfo(10, 1, 28, 20, 20, 5000, 64, (0.1307,), (0.3081,)),
    "fashion-mnist": DatasetInfo(10, 1, 28, 20, 20, 5000, 64, (0.2860,), (0.3530,), gamma_schedule="rising"),
    "cifar10": DatasetInfo(10, 3, 32, 20, 20, 5000, 64, (0.491, 0.482, 0.447), (0.247, 0.243, 0.262)),
    "cifar100": DatasetInfo(100, 3, 32, 20, 20, 5000, 64, (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)),
    # For few-shot learning: nothing is set aside for the server, and pixels stay as they are.
    "omniglot": DatasetInfo(1623, 1, 28, 0, 0, 0, 64, (0.0,), (1.0,)),
    "glyphs": DatasetInfo(260, 1, 28, 0, 0, 0, 64, (0.0,), (1.0,)),
}


CLIENT_VALIDATION = 0.2
"""Share of a client's samples in its own validation part, where the upper level lies there."""

TOY = "toy"
"""The data set that is none: the toy problem draws its clients from the seed."""


def default_groups(classes: int) -> list[list[int]]:
    """Label groups of the three clean clients: the first half, the next three tenths, the rest."""
    a, b = classes // 2, classes * 8 // 10
    return [list(range(a)), list(range(a, b)), list(range(b, classes))]


def resolve(params: Params) -> Params:
    """Replace every `auto` that depends on the data set, the problem or the method by its value; the toy deals out no
    samples, so none counts."""
    problem = problem_in_use(params)
    params = replace(params, problem=problem, algorithm=in_use(params.algorithm, problem))
    params = replace(params, algorithms=_algorithms(params))
    if params.data.name == TOY:
        part = replace(params.partition, client_validation=0.0)
        return replace(params, partition=part, federation=replace(params.federation, batch_size=1))
    info = CATALOG[params.data.name]
    federation = params.federation
    if federation.batch_size == "auto":
        federation = replace(federation, batch_size=info.batch_size)
    params = replace(params, problems=_problems(params), federation=federation)
    part = _partition(params.partition, info)
    if part.client_validation == "auto":
        cleaning = params.problems.data_cleaning.validation
        needed = part.scheme not in DEALS_VALIDATION and upper_on_clients(params.problem, cleaning, part.scheme)
        part = replace(part, client_validation=CLIENT_VALIDATION if needed else 0.0)
    return replace(params, partition=part)


def _algorithms(params: Params) -> Algorithms:
    """Of the lead method, as trials on each data set found it best. `clip_norm`: only where clients may be absent, and
    so some answers be of an earlier model."""
    lead = params.algorithms.primal_dual
    info = None if params.data.name == TOY else CATALOG[params.data.name]
    if lead.clip_norm == "auto":
        absent = params.federation.participation < 1.0
        lead = replace(lead, clip_norm=info.clip_norm if info and absent else 0.0)
    if lead.gamma_schedule == "auto":
        lead = replace(lead, gamma_schedule=info.gamma_schedule if info else "constant")
    return replace(params.algorithms, primal_dual=lead)


def _problems(params: Params) -> Problems:
    heads, cleaning = params.problems.hyper_representation, params.problems.data_cleaning
    if heads.heads == "auto":
        heads = replace(heads, heads=HEADS.get(family(params.algorithm), ("shared",))[0])
    if cleaning.validation == "auto":
        on_clients = upper_on_clients("data_cleaning", "auto", params.partition.scheme)
        cleaning = replace(cleaning, validation="clients" if on_clients else "server")
    consensus, colour = params.problems.consensus, CATALOG[params.data.name].channels > 1
    if consensus.augment == "auto":
        consensus = replace(consensus, augment=colour)
    if consensus.normalise == "auto":
        consensus = replace(consensus, normalise=colour)
    return replace(params.problems, hyper_representation=heads, data_cleaning=cleaning, consensus=consensus)


def _partition(part: Partition, info: DatasetInfo) -> Partition:
    groups = default_groups(info.classes)
    lead, duplicates, mixed = part.lead, part.duplicates, part.mixed
    cleaning, longtail = part.cleaning, part.longtail
    if lead.groups == "auto":
        lead = replace(lead, groups=groups)
    if lead.noise_samples == "auto":
        lead = replace(lead, noise_samples=info.noise_samples)
    if duplicates.groups == "auto":
        duplicates = replace(duplicates, groups=groups)
    if mixed.groups == "auto":
        mixed = replace(mixed, groups=groups)
    if mixed.bad_samples == "auto":
        mixed = replace(mixed, bad_samples=info.noise_samples)
    if cleaning.samples == "auto":
        cleaning = replace(cleaning, samples=info.cleaning_samples)
    if cleaning.validation_samples == "auto":
        cleaning = replace(cleaning, validation_samples=info.cleaning_validation)
    if longtail.imbalance == "auto":
        longtail = replace(longtail, imbalance=info.imbalance)
    part = replace(part, lead=lead, duplicates=duplicates, mixed=mixed, cleaning=cleaning, longtail=longtail)
    if part.validation_per_label == "auto":
        part = replace(part, validation_per_label=info.validation_per_label)
    if part.selection_per_label == "auto":
        part = replace(part, selection_per_label=info.selection_per_label)
    return part


def problem_in_use(params: Params) -> ProblemName:
    """`problem`, with `auto` resolved."""
    return meant(params.problem, params.algorithm, params.data.name)
