"""Facts of each data set, known before it is read, and what `auto` stands for: a rule on numbers, never on a name."""

from __future__ import annotations

from dataclasses import dataclass


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


def own_problem(name: str) -> str | None:
    """The one problem that the data set serves; None: every other one."""
    if name == TOY:
        return "toy"
    return "few_shot" if CATALOG[name].few_shot else None


def data_for(problem: str) -> list[str]:
    """The data sets that serve that problem alone."""
    return [name for name in (*CATALOG, TOY) if own_problem(name) == problem]
