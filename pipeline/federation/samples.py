"""What participants hold. The server: its own sets of samples. A site: its samples, and those that it sets aside where
a problem needs some of its own.

| part | for what | where it comes from |
|---|---|---|
| training | every problem | `data.path`, but for what is set aside |
| validation | an upper level that lies with the sites: f_i | `data.validation`: a share of `data.path`, or a file |
| test | local heads: the test of the body with the site's own head | `data.test`, likewise |

A share is drawn as the simulator draws a client's validation part: from (seed, "client-validation", client).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.data.arrays import Samples
from pipeline.errors import UserError
from pipeline.federation.readers import reading
from pipeline.federation.settings import Server, SiteData
from pipeline.seeds import numpy_generator

TEST, VALIDATION = "test", "validation"


@dataclass(frozen=True)
class ServerSamples:
    """The server's own samples. columns: their names, if the reader gives any."""

    validation: Samples
    test: Samples | None
    selection: Samples | None
    columns: list[str]

    @classmethod
    def read(cls, settings: Server, folder: Path) -> ServerSamples:
        data = settings.data
        read = reading(data)
        named = {"validation": data.validation, "test": data.test, "selection": data.selection}
        tables = {name: read(folder / path) for name, path in named.items() if path}
        if len({(tuple(table[2]), table[0].shape[1:]) for table in tables.values()}) > 1:
            raise UserError(f"{folder}: the server's files have different columns. Fix: give them the same.")
        for name, (_, labels, _) in tables.items():
            if labels.max(initial=0) >= settings.classes:
                raise UserError(
                    f"federation.yaml: classes = {settings.classes}, and {named[name]} has the label {labels.max():g}."
                    " Fix: as many classes as there are, with labels from 0 on; or data.options: label."
                )
        samples = {name: (table[0], table[1]) for name, table in tables.items()}
        return cls(samples["validation"], samples.get("test"), samples.get("selection"), tables["validation"][2])

    @property
    def hash(self) -> str:
        sets = [part for part in (self.validation, self.test, self.selection) if part]
        return hashlib.sha256(
            b"".join(np.ascontiguousarray(array).tobytes() for part in sets for array in part)
        ).hexdigest()


@dataclass(frozen=True, eq=False)
class SiteSamples:
    """A site's. samples: all of `data.path`. files: of parts that have one of their own. shares: of the others."""

    samples: Samples
    columns: list[str]
    files: dict[str, Samples] = field(default_factory=dict)
    shares: dict[str, float] = field(default_factory=dict)

    @classmethod
    def read(cls, settings: SiteData, folder: Path) -> SiteSamples:
        """UserError for what is wrong with the files."""
        read = reading(settings)
        X, y, columns = read(folder / settings.path)
        asked = {VALIDATION: settings.validation, TEST: settings.test}
        tables = {part: read(folder / place) for part, place in asked.items() if isinstance(place, str)}
        for part, (other, _, names) in tables.items():
            if names != columns or other.shape[1:] != X.shape[1:]:
                raise UserError(
                    f"site.yaml: data.{part} = {asked[part]!r} has {names or list(other.shape[1:])}, data.path has"
                    f" {columns or list(X.shape[1:])}. Fix: the same columns in the same order."
                )
        shares = {part: share for part, share in asked.items() if not isinstance(share, str)}
        return cls((X, y), columns, {part: table[:2] for part, table in tables.items()}, shares)

    def dealt(self, apart: Sequence[str], seed: int = 0, client: int = 0) -> dict[str, Samples]:
        """ "training", and each part that is set aside."""
        X, y = self.samples
        left, found = np.arange(len(y)), {}
        for part in apart:
            if part in self.files:
                found[part] = self.files[part]
                continue
            count = min(round(self.shares[part] * len(left)), len(left) - 1)
            chosen = np.zeros(len(left), dtype=bool)
            chosen[numpy_generator(seed, f"client-{part}", client).permutation(len(left))[:count]] = True
            found[part] = (X[left[chosen]], y[left[chosen]])
            left = left[~chosen]
        return {"training": (X[left], y[left])} | found

    def describe(self, apart: Sequence[str]) -> dict[str, Any]:
        """What the server learns before a run: how many training samples, of what form, and how many are apart."""
        sizes = {part: len(y) for part, (_, y) in self.dealt(apart).items()}
        shape = list(self.samples[0].shape[1:])
        return {"samples": sizes.pop("training"), "shape": shape, "columns": self.columns, "apart": sizes}
