"""Three small federations of twelve clients, of which a share is bad, and the same without the bad ones.

| data | samples | dealt | network |
|---|---|---|---|
| digits | 8 x 8 pixels, 10 classes | by a Dirichlet(1) per class: clients differ | 32 hidden units |
| table | 20 features, 2 classes | at random, unequal sizes | 32 hidden units |
| clusters | 16 features in units from 0.1 to 1000, 4 classes | at random, unequal sizes | linear |

The server holds 80 validation samples, which only methods with learned weights (and those that say so) use, and 150
selection samples, by which parameters are chosen. Whichever fault, a data set's parts and its bad clients of a seed are
the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial

import numpy as np
import torch
from torch import Tensor

from experiments.trust.given import digits, table
from experiments.trust.own import Recipe, Spoil, made, moved, noisy
from experiments.trust.record import Federation
from pipeline.data.arrays import Samples

CLIENTS = 12
SHARES = {"third": 4, "half": 6}
"""Bad clients."""
HONEST = "none"
"""The fault of a federation without its bad clients."""


@dataclass(frozen=True)
class Fault:
    """What a bad client does. spoil: to its samples. factor: to what it sends."""

    title: str
    spoil: Spoil | None = None
    factor: float = 1.0


FAULTS = {
    "noise": Fault("random labels", noisy),
    "flips": Fault("labels moved by one", moved),
    "scaled": Fault("answers times 10", factor=10.0),
    "signs": Fault("answers times -1", factor=-1.0),
    "huge": Fault("answers times 1000", factor=1000.0),
}


def unspoilt(X: np.ndarray, y: np.ndarray, classes: int, rng: np.random.Generator) -> Samples:
    """The samples as they are."""
    return X, y


def _digits(seed: int) -> Samples:
    return digits()


_MLP = ("mlp", {"hidden": [32]})
_Recipe = partial(Recipe, "", clients=CLIENTS, bad=0, validation=80, selection=150)
DATA: dict[str, Callable[[], Recipe]] = {
    "digits": partial(_Recipe, source=_digits, network=_MLP, test=450, skew=1.0),
    "table": partial(_Recipe, source=table, network=_MLP, test=1000),
    "clusters": partial(_Recipe, source=made, network=("linear", {}), test=1000),
}


@cache
def federation(data: str, fault: str, share: str, seed: int) -> tuple[Federation, Tensor]:
    """The federation, and what each client multiplies its answers by, [N]. fault: of FAULTS, or none: without the
    clients that are bad in the others."""
    what = FAULTS.get(fault, Fault("left out"))
    recipe = replace(DATA[data](), bad=SHARES[share], spoils=(what.spoil or unspoilt,), wrong=what.title)
    found = recipe.federation(f"bad answers {data}", seed)
    if fault == HONEST:
        kept = [i for i, bad in enumerate(found.bad) if not bad]
        found = replace(found, clients=[found.clients[i] for i in kept], kinds=["clean"] * len(kept))
    return found, torch.tensor(np.where(found.bad, what.factor, 1.0), dtype=torch.float32)
