"""The per-round record of a run, on disk first.

Rows are buffered and appended to `history.csv` in the resume folder at every save; the full weights go beside it as
raw numbers. A save holds the length and the checksum of both; when a run is resumed they are cut back to it, so an
interrupted run's record equals an uninterrupted one's (but for the seconds).
"""

from __future__ import annotations

import csv
import hashlib
import io
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np

COSTS = ("communication_rounds", "floats_up", "floats_down", "gradients", "hvps")
QUANTILES = {"q05": 0.05, "q25": 0.25, "q50": 0.5, "q75": 0.75, "q95": 0.95}
MANY_CLIENTS = 100

Row = dict[str, float | int | None]


class History:
    """Rows of one run. clean: which clients are clean, [N] bool. measures: what evaluations yield, empty between them.
    reports: names of the method's own scalars."""

    def __init__(
        self, folder: Path, clean: np.ndarray, measures: Sequence[str], reports: Sequence[str], digits: int
    ) -> None:
        self.csv, self.raw = folder / "history.csv", folder / "client_weights.raw"
        self.clean, self.measures, self.digits = clean, tuple(measures), digits
        self.columns = ["round", "seconds", *COSTS, *measures]
        self.columns += [*weight_columns(len(clean)), *reports, "answers_left_out"]
        self._rows: list[Row] = []
        self._weights: list[np.ndarray] = []
        self._written = {path: _Written() for path in (self.csv, self.raw)}

    def start(self) -> None:
        """An empty record."""
        for path in self._written:
            path.write_bytes(b"")
            self._written[path] = _Written()
        self._add(self.csv, self._lines([self.columns]))

    def state(self) -> dict[str, list[int | str]]:
        """For `restore`: of each file how many bytes are written, and their checksum."""
        return {path.name: [each.size, each.digest.hexdigest()] for path, each in self._written.items()}

    def restore(self, state: dict[str, list[int | str]]) -> str:
        """Cut the record back to that state. Returns what is wrong with it, or nothing; if something is, nothing is
        cut."""
        found = {path: _beginning(path, int(state[path.name][0])) for path in self._written}
        for path, each in found.items():
            size, digest = state[path.name]
            if each is None or each.size < int(size):
                return f"{path} does not reach so far"
            if each.digest.hexdigest() != digest:
                return f"{path} is damaged: its checksum is not that of its content"
        for path, each in found.items():
            assert each is not None
            os.truncate(path, each.size)
            self._written[path] = each
        self._rows, self._weights = [], []
        return ""

    def append(self, row: Row, weights: np.ndarray | None) -> None:
        """One round. weights: [N], or None for a method without any."""
        if weights is not None:
            row = row | weight_cells(weights, self.clean)
            self._weights.append(weights.astype("<f4"))
        self._rows.append(row)

    def flush(self) -> list[Row]:
        """Write the buffered rows and return them."""
        rows, self._rows = self._rows, []
        self._add(self.csv, self._lines([[self._text(row.get(name)) for name in self.columns] for row in rows]))
        self._add(self.raw, b"".join(w.tobytes() for w in self._weights))
        self._weights = []
        return rows

    def _add(self, path: Path, content: bytes) -> None:
        with path.open("ab") as file:
            file.write(content)
        self._written[path].add(content)

    @staticmethod
    def _lines(rows: list[list[str]]) -> bytes:
        text = io.StringIO(newline="")
        csv.writer(text).writerows(rows)
        return text.getvalue().encode()

    def export(self, results: Path, replicates: np.ndarray | None = None, pull: np.ndarray | None = None) -> None:
        """history.csv and client_weights_history.npz (round, weights, replicates, pull) into the results folder.

        replicates: the weights of further runs, [R, N]. pull: what moved the weights in the last quarter of the rounds,
        [N], of methods that keep it (`pipeline.methods.client_weighting.common.steps`).
        """
        results.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(self.csv, results / "history.csv")
        weights = np.fromfile(self.raw, dtype="<f4").reshape(-1, len(self.clean))
        further = np.zeros((0, len(self.clean))) if replicates is None else replicates
        np.savez_compressed(
            results / "client_weights_history.npz",
            round=np.arange(len(weights)),
            weights=weights,
            replicates=further,
            pull=np.zeros(0) if pull is None else pull,
        )

    def _text(self, value: float | None) -> str:
        if value is None:
            return ""
        return str(value) if isinstance(value, int) else format(value, f".{self.digits}g")


class _Written:
    """How much of a file is written, and its checksum."""

    def __init__(self) -> None:
        self.size, self.digest = 0, hashlib.sha256()

    def add(self, content: bytes) -> None:
        self.size += len(content)
        self.digest.update(content)


def _beginning(path: Path, size: int) -> _Written | None:
    """The first bytes of a file, or as many as there are; None if it cannot be read."""
    found = _Written()
    try:
        with path.open("rb") as file:
            while part := file.read(min(size - found.size, 2**20)):
                found.add(part)
    except OSError:
        return None
    return found


def weight_columns(clients: int) -> list[str]:
    """One column per client, or a summary for many."""
    if clients <= MANY_CLIENTS:
        return [f"client_weight_{i}" for i in range(clients)]
    return [f"client_weight_{name}" for name in ("min", *QUANTILES, "max", "clean")]


def weight_cells(weights: np.ndarray, clean: np.ndarray) -> Row:
    """The cells of `weight_columns` for one round."""
    if len(weights) <= MANY_CLIENTS:
        return dict(zip(weight_columns(len(weights)), weights.tolist(), strict=True))
    values = [
        weights.min(),
        *np.quantile(weights, list(QUANTILES.values())),
        weights.max(),
        weights[clean].sum(),
    ]
    cells: Row = dict(zip(weight_columns(len(weights)), map(float, values), strict=True))
    return cells if clean.any() else cells | {"client_weight_clean": None}  # it is unknown who is clean
