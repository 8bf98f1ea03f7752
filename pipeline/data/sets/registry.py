"""Every data set by its name in params.yaml. A new one is a file and a line here."""

from __future__ import annotations

from collections.abc import Callable

from pipeline.config import own_code
from pipeline.config.spec import Named
from pipeline.data.sets.base import Dataset
from pipeline.errors import UserError, not_allowed

DATASETS: dict[str, Dataset] = own_code.registered(
    "pipeline.data.sets",
    "digits.DIGITS",
    "mnist.MNIST",
    "fashion_mnist.FASHION_MNIST",
    "cifar10.CIFAR10",
    "cifar100.CIFAR100",
    "omniglot.OMNIGLOT",
    "glyphs.GLYPHS",
    "folder.FOLDER",
    "table.TABLE",
    "arrays.ARRAYS",
    "toy.TOY_DATA",
)

KINDS: dict[str, Callable[[Dataset], bool]] = {
    "images": lambda dataset: not dataset.problem and not dataset.own,
    "characters, with `partition.scheme: few_shot`": lambda dataset: dataset.problem == "few_shot",
    "your own data (docs/own-data.md)": lambda dataset: dataset.own,
    "closed forms": lambda dataset: dataset.problem == "toy",
}
"""Kinds of data sets: which they are."""
NAMES = Named(
    tuple(DATASETS),
    "a Dataset of your own",
    tuple((title, tuple(name for name, each in DATASETS.items() if of(each))) for title, of in KINDS.items()),
)

TOY = "toy"
"""The data set that is none: the toy problem draws its clients from the seed."""


def dataset_named(name: str) -> Dataset:
    """The data set of that name or dotted path; UserError, in one line, for whatever is wrong with either."""
    if name in DATASETS:
        return DATASETS[name]
    if "." not in name:
        allowed = f"one of {NAMES.listed}; or the dotted path of a Dataset of your own"
        raise not_allowed("data.name", name, allowed, "data.name: digits")
    found: Dataset = own_code.found_at("data.name", name, Dataset, "Dataset", " as a Dataset(...)")
    fault = own_code.fault(found, DATASETS, None, None) or own_code.not_called_with(found.read, 2)
    if fault:
        raise UserError(f"data.name = {name!r}: {fault}.")
    return found


def data_for(problem: str) -> list[str]:
    """The data sets that serve that problem alone."""
    return [name for name, dataset in DATASETS.items() if dataset.problem == problem]
