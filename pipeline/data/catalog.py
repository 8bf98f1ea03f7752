"""Facts of each data set, known before it is read, and what `auto` stands for: a rule on numbers, never on a name."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

from pipeline.params import Params, Partition, Problems
from pipeline.params.pairs import DEALS_VALIDATION, HEADS, ProblemName, family, in_use, made_for, upper_on_clients
from pipeline.params.spec import Auto

Value = TypeVar("Value")


@dataclass(frozen=True)
class DatasetInfo:
    """What the images are.

    size: they are size x size pixels. images: number of training images in the files, whatever `subset` keeps of them.
    means, deviations: of each channel, for normalisation; those of colour images are the a_fedpd specification's
    (section 4.1), the others the customary ones of the training images. few_shot: the test's classes are not among the
    training classes.
    """

    classes: int
    channels: int
    size: int
    images: int
    means: tuple[float, ...]
    deviations: tuple[float, ...]
    few_shot: bool = False


CATALOG: dict[str, DatasetInfo] = {
    "digits": DatasetInfo(10, 1, 28, 1438, (0.3057,), (0.3249,)),
    "mnist": DatasetInfo(10, 1, 28, 60_000, (0.1307,), (0.3081,)),
    "fashion-mnist": DatasetInfo(10, 1, 28, 60_000, (0.2860,), (0.3530,)),
    "cifar10": DatasetInfo(10, 3, 32, 50_000, (0.491, 0.482, 0.447), (0.247, 0.243, 0.262)),
    "cifar100": DatasetInfo(100, 3, 32, 50_000, (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)),
    # Pixels of characters stay as they are; 964 and 200 training classes of twenty images.
    "omniglot": DatasetInfo(1623, 1, 28, 19_280, (0.0,), (1.0,), few_shot=True),
    "glyphs": DatasetInfo(260, 1, 28, 4000, (0.0,), (1.0,), few_shot=True),
}

TOY = "toy"
"""The data set that is none: the toy problem draws its clients from the seed."""


@dataclass(frozen=True)
class Sizes:
    """What `auto` stands for where it depends on how much data there is."""

    validation_per_label: int
    selection_per_label: int
    bad_samples: int  # of each noisy client, under `lead` and `mixed`
    batch_size: int
    cleaning_samples: int  # of each client, under `cleaning`
    cleaning_validation: int
    imbalance: float  # under `longtail`


SMALL = Sizes(10, 5, 100, 32, 100, 10, 0.1)
LARGE = Sizes(20, 20, 5000, 64, 4500, 50, 0.01)
FEW_SHOT = replace(LARGE, validation_per_label=0, selection_per_label=0, bad_samples=0)
LARGE_FROM = 10_000


def sizes(images: int, few_shot: bool = False) -> Sizes:
    """The lead protocol's sizes for that many training images (design and section 4.2 of the lead specification). Where
    the test has other classes the server holds nothing and no client is bad, whatever the number of images."""
    if few_shot:
        return FEW_SHOT
    return LARGE if images >= LARGE_FROM else SMALL


CLIENT_VALIDATION = 0.2
"""Share of a client's samples in its own validation part, where the upper level lies there."""


def default_groups(classes: int) -> list[list[int]]:
    """Label groups of the three clean clients: the first half, the next three tenths, the rest."""
    a, b = classes // 2, classes * 8 // 10
    return [list(range(a)), list(range(a, b)), list(range(b, classes))]


def resolve(params: Params) -> Params:
    """Replace every `auto` that depends on the data, the problem or the method by its value; the toy deals out no
    samples, so none counts."""
    problem = problem_in_use(params)
    params = replace(params, problem=problem, algorithm=in_use(params.algorithm, problem))
    if params.data.name == TOY:
        part = replace(params.partition, client_validation=0.0)
        return replace(params, partition=part, federation=replace(params.federation, batch_size=1))
    info = CATALOG[params.data.name]
    size = sizes(info.images, info.few_shot)
    federation = replace(params.federation, batch_size=_settled(params.federation.batch_size, size.batch_size))
    params = replace(params, problems=_problems(params, info), federation=federation)
    return replace(params, partition=_partition(params, info, size))


def _settled(value: Value | Auto, auto: Value) -> Value:
    """A setting, or what its `auto` stands for."""
    return auto if value == "auto" else value


def _problems(params: Params, info: DatasetInfo) -> Problems:
    problems, colour = params.problems, info.channels > 1
    heads, cleaning, consensus = problems.hyper_representation, problems.data_cleaning, problems.consensus
    own_heads = HEADS.get(family(params.algorithm), ("shared",))[0]
    on_clients = upper_on_clients("data_cleaning", "auto", params.partition.scheme)
    augment, normalise = _settled(consensus.augment, colour), _settled(consensus.normalise, colour)
    return replace(
        problems,
        hyper_representation=replace(heads, heads=_settled(heads.heads, own_heads)),
        data_cleaning=replace(
            cleaning, validation=_settled(cleaning.validation, "clients" if on_clients else "server")
        ),
        consensus=replace(consensus, augment=augment, normalise=normalise),
    )


def _partition(params: Params, info: DatasetInfo, size: Sizes) -> Partition:
    """params: with the problems' settings resolved."""
    part, groups = params.partition, default_groups(info.classes)
    lead, mixed, cleaning = part.lead, part.mixed, part.cleaning
    validates = part.scheme not in DEALS_VALIDATION and upper_on_clients(
        params.problem, params.problems.data_cleaning.validation, part.scheme
    )
    return replace(
        part,
        validation_per_label=_settled(part.validation_per_label, size.validation_per_label),
        selection_per_label=_settled(part.selection_per_label, size.selection_per_label),
        client_validation=_settled(part.client_validation, CLIENT_VALIDATION if validates else 0.0),
        lead=replace(
            lead, groups=_settled(lead.groups, groups), noise_samples=_settled(lead.noise_samples, size.bad_samples)
        ),
        duplicates=replace(part.duplicates, groups=_settled(part.duplicates.groups, groups)),
        mixed=replace(
            mixed, groups=_settled(mixed.groups, groups), bad_samples=_settled(mixed.bad_samples, size.bad_samples)
        ),
        cleaning=replace(
            cleaning,
            samples=_settled(cleaning.samples, size.cleaning_samples),
            validation_samples=_settled(cleaning.validation_samples, size.cleaning_validation),
        ),
        longtail=replace(part.longtail, imbalance=_settled(part.longtail.imbalance, size.imbalance)),
    )


def problem_in_use(params: Params) -> ProblemName:
    """`problem`, with `auto` resolved: what the data are made for, else what the method is."""
    if params.problem != "auto":
        return params.problem
    return own_problem(params.data.name) or made_for(params.algorithm)


def own_problem(name: str) -> ProblemName | None:
    """The one problem that the data set serves; None: every other one."""
    if name == TOY:
        return "toy"
    return "few_shot" if CATALOG[name].few_shot else None


def data_for(problem: ProblemName) -> list[str]:
    """The data sets that serve that problem alone."""
    return [name for name in (*CATALOG, TOY) if own_problem(name) == problem]
