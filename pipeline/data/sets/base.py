"""What a data set is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.data.originals.fetching import Source
from pipeline.data.raw import RawDataset

Contents = Mapping[str, bytes]
"""Verified original files by name, unpacked; empty for a data set without any."""


@dataclass(frozen=True)
class DatasetInfo:
    """What the images are.

    size: they are size x size pixels. images: number of training images in the files, whatever `subset` keeps of them.
    means, deviations: of each channel, for normalisation. few_shot: the test's classes are not among the training
    classes.
    """

    classes: int
    channels: int
    size: int
    images: int
    means: tuple[float, ...]
    deviations: tuple[float, ...]
    few_shot: bool = False


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """A data set.

    name: in params.yaml and of its folder. summary: what it is, in a few words. read(contents, settings) -> the data in
    memory; settings: the section `data` of params.yaml. info: what is known without reading anything. source: where its
    original files come from; None: it has none. origin: what meta.json says of it then. place: where it comes from
    then, in a word. problem: the one problem that it serves; None: every other one.
    """

    name: str
    summary: str
    read: Callable[[Contents, Any], RawDataset]
    info: DatasetInfo | None = None
    source: Source | None = None
    origin: str = ""
    place: str = ""
    problem: str | None = None
