"""What a data set is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.data.originals.fetching import Source
from pipeline.data.raw import DatasetInfo, RawDataset

__all__ = ["Contents", "Dataset", "DatasetInfo"]

Contents = Mapping[str, bytes]
"""Verified original files by name, unpacked; empty for a data set without any."""


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """A data set.

    name: in params.yaml and of its folder. summary: what it is, in a few words. read(contents, settings) -> the data in
    memory; settings: the section `data` of params.yaml. info: what is known without reading anything. source: where its
    original files come from; None: it has none. origin: what meta.json says of it then. place: where it comes from
    then, in a word. problem: the one problem that it serves; None: every other one. reads: further keys of the section
    `data` that it reads; `path` among them: a user's own data, of which DVC watches what lies
    there. check(settings): UserError for settings that cannot work whatever the data hold.
    """

    name: str
    summary: str
    read: Callable[[Contents, Any], RawDataset]
    info: DatasetInfo | None = None
    source: Source | None = None
    origin: str = ""
    place: str = ""
    problem: str | None = None
    reads: tuple[str, ...] = ()
    check: Callable[[Any], None] = lambda settings: None

    @property
    def own(self) -> bool:
        """Whether it is a user's own, described in params.yaml."""
        return "path" in self.reads
