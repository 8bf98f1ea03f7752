"""What one change decides: the lead method with one thing changed, all else default.

| change of scale | of |
|---|---|
| features x 1,000, x 0.001 | what the network sees: raw |
| standardised; then x 1,000, x 0.001 before it | what the network sees of own data: the readers standardise features |
| width x 8 | hidden layers; a linear network has none |
| eta_w, eta_x x 3, / 3 | the default step size of the model (with the dual's, a multiple of it) or of the weights |

Our additions to the paper's listing are switched off in turn; `weight_step: plain` takes the printed recipe's eta_x,
for its steps have another unit. What concerns absent clients is held against the default at participation 0.5.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from experiments.results import Row, read
from experiments.trust.federations import available
from experiments.trust.given import GIVEN
from experiments.trust.outcomes import about_code, held
from experiments.trust.plan import LEAD
from experiments.trust.record import Federation
from experiments.trust.running import run
from experiments.workers import run_missing
from pipeline.data.arrays import Samples
from pipeline.data.own import columns, features
from pipeline.params import Algorithms

SEEDS, ROUNDS = (0, 1), 400
CONVOLUTIONS = ("digits28-2of8", "patches-2of6")
"""Left out: their network has no width."""
DEFAULTS = getattr(Algorithms(), LEAD)
KEPT = ("accuracy", "best", "served", "auc", "bad_weight", "seconds", "failed")
"""Figures of a run that its row has."""


def each_set(made: Federation, change: Callable[[np.ndarray], np.ndarray]) -> Federation:
    """The federation with other features everywhere. change: of features [m, ...]."""

    def changed(samples: Samples) -> Samples:
        return change(samples[0]).astype(np.float32), samples[1]

    return dataclasses.replace(
        made,
        clients=[changed(client) for client in made.clients],
        validation=changed(made.validation),
        selection=changed(made.selection),
        test=changed(made.test),
    )


def times(made: Federation, factor: float) -> Federation:
    """All features times a factor."""
    return each_set(made, lambda X: X * factor)


def standardised(made: Federation, factor: float = 1.0) -> Federation:
    """Features times a factor, then as the readers of own data scale arrays: by what the clients hold."""
    flat = [X.reshape(len(X), -1).astype(np.float64) * factor for X, _ in made.clients]
    pooled, owners = np.concatenate(flat), np.repeat(np.arange(len(flat)), [len(X) for X in flat])
    mean, deviation = np.array([columns.standard(values, owners) for values in pooled.T]).T

    def scaled(X: np.ndarray) -> np.ndarray:
        Z = (X.reshape(len(X), -1) * factor - mean) / np.where(deviation > 0, deviation, 1.0)
        return np.clip(np.where(deviation > 0, Z, 0.0), -features.LIMIT, features.LIMIT).reshape(X.shape)

    return each_set(made, scaled)


def wider(made: Federation) -> Federation:
    """Eight times the width of the hidden layers."""
    name, options = made.network
    wide = {key: [8 * width for width in value] if key == "hidden" else value for key, value in options.items()}
    return dataclasses.replace(made, network=(name, wide))


@dataclasses.dataclass(frozen=True)
class Variation:
    """against: the change that its accuracy is held against. options: of the method."""

    of: Callable[[Federation], Federation] = lambda made: made
    against: str = "nothing"
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    participation: float = 1.0


SCALES = {
    "nothing": Variation(),
    "features x 1,000": Variation(partial(times, factor=1000.0)),
    "features x 0.001": Variation(partial(times, factor=0.001)),
    "standardised": Variation(standardised),
    "x 1,000, then standardised": Variation(partial(standardised, factor=1000.0), "standardised"),
    "x 0.001, then standardised": Variation(partial(standardised, factor=0.001), "standardised"),
    "width x 8": Variation(wider),
    **{
        f"{name} {said}": Variation(options={name: factor * getattr(DEFAULTS, name)})
        for name, (said, factor) in itertools.product(("eta_w", "eta_x"), (("x 3", 3.0), ("/ 3", 1 / 3)))
    },
}
HALF = "nothing, half of the clients a round"
PRINTED = {
    **{"dual": "printed", "weight_step": "plain", "eta_x": 0.01, "curvature_limit": 0.0, "schedule": "constant"},
    "hypergradient_batch": "gradient",
}
ADDITIONS = {
    "nothing": Variation(),
    "dual: printed": Variation(options={"dual": "printed"}),
    "weight_step: plain": Variation(options={"weight_step": "plain", "eta_x": PRINTED["eta_x"]}),
    "curvature_limit: 0": Variation(options={"curvature_limit": 0.0}),
    "schedule: constant": Variation(options={"schedule": "constant"}),
    "hypergradient_batch: gradient": Variation(options={"hypergradient_batch": "gradient"}),
    "all of these": Variation(options=PRINTED),
    HALF: Variation(participation=0.5),
    "half, estimator: normalised": Variation(lambda made: made, HALF, {"estimator": "normalised"}, 0.5),
    "half, estimator: paper": Variation(lambda made: made, HALF, {"estimator": "paper"}, 0.5),
    "half, all of these and estimator: paper": Variation(
        lambda made: made, HALF, PRINTED | {"estimator": "paper"}, 0.5
    ),
}
CHANGES = SCALES | ADDITIONS


def of_cell(cell: tuple[str, int, str], about: Row) -> Row:
    """The row of a federation, a seed and a change."""
    name, seed, said = cell
    change = CHANGES[said]
    row = run(change.of(held(name, seed)), LEAD, ROUNDS, change.participation, seed, **change.options)
    kept = {figure: row[figure] for figure in KEPT if figure in row}
    return {"federation": name, "seed": seed, "change": said} | kept | about


def run_changes(path: Path, workers: int, names: Iterable[str] = GIVEN, seeds: Iterable[int] = SEEDS) -> None:
    """A row per federation, seed and change that has none."""
    wanted = [name for name in available(names) if name not in CONVOLUTIONS]
    every = itertools.product(wanted, seeds, CHANGES)
    cells = {f"{name} {seed} {ROUNDS} {said} {DEFAULTS}": (name, seed, said) for name, seed, said in every}
    missing = {key: cell for key, cell in cells.items() if key not in read(path)}
    run_missing(missing, len(cells), path, partial(of_cell, about=about_code()), workers)


def table(rows: Sequence[Row], changes: Mapping[str, Variation]) -> str:
    """A line per change: accuracy, the mean difference to what it is held against, the worst run, AUC, drop."""
    known = {(row["change"], row["federation"], row["seed"]): row for row in rows}
    lines = ["| change | runs | accuracy % | difference | worst | AUC | < .9 | drop |", "|--|" + "--:|" * 7]
    for said, change in changes.items():
        own = [row for row in rows if row["change"] == said]
        pairs = [(row, known.get((change.against, row["federation"], row["seed"]))) for row in own]
        moved = [100 * (row["accuracy"] - base["accuracy"]) for row, base in pairs if base]
        if moved:
            aucs = [row["auc"] for row in own if "auc" in row]
            lost = fmean(100 * (row["best"] - row["accuracy"]) for row in own)
            figures = f"{fmean(100 * row['accuracy'] for row in own):.1f} | {fmean(moved):+.1f} | {min(moved):+.1f}"
            low = 100 * fmean(auc < 0.9 for auc in aucs)
            lines.append(f"| {said} | {len(own)} | {figures} | {fmean(aucs):.2f} | {low:.0f} % | {lost:.1f} |")
    return "\n".join(lines)
