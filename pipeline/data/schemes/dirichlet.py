"""Label shares from a symmetric Dirichlet distribution, equal sizes."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import Literal

import numpy as np

from pipeline.config.spec import Section, param
from pipeline.data.holdings import Draw, Holding, clean_holding
from pipeline.data.schemes.base import Scheme, require_samples


@dataclass(frozen=True)
class Dirichlet(Section):
    """Label shares of each client from a symmetric Dirichlet distribution; all clients hold equally many."""

    clients: int = param(10, "number of clients", ge=1, symbol="N")
    concentration: float = param(
        0.1,
        "Dirichlet parameter per class: 0.1 about one label per client, 1.0 about three",
        gt=0,
        le=1e6,
        symbol="a",
    )
    replacement: Literal["cycle", "iid"] = param(
        "cycle",
        "cycle = no image repeats until its class is used up, then the class starts again;"
        " iid = every image is drawn afresh from its class",
    )


def foresee(settings: Dirichlet, samples: int, classes: int) -> int:
    """The number of clients; UserError for more than there are samples."""
    return require_samples("partition.dirichlet.clients", settings.clients, samples)


def deal(indices: np.ndarray, labels: np.ndarray, classes: int, settings: Dirichlet, draw: Draw) -> list[Holding]:
    """floor(P / N) samples each; client i's labels follow p_i ~ Dirichlet(a, ..., a), a per class.

    replacement `cycle` is the simulator's procedure (section 4.2 of the a_fedpd specification): until
    all clients are full, pick a client that is not, draw a class from its p_i and take the class's next unused
    image; a class used up starts again. `iid` draws every image afresh from its class. Either way an image
    may lie on several clients.
    """
    clients = settings.clients
    size = len(indices) // clients
    shares = np.stack([draw("dirichlet", i).dirichlet([settings.concentration] * classes) for i in range(clients)])
    of_class = [draw("dirichlet-class", c).permutation(np.flatnonzero(labels == c)) for c in range(classes)]
    if settings.replacement == "iid":
        hands = [_drawn_afresh(share, of_class, size, draw("dirichlet-draws", i)) for i, share in enumerate(shares)]
    else:
        hands = _dealt_in_turn(shares, of_class, size, draw("dirichlet-draws"))
    return [clean_holding(indices[hand], labels[hand]) for hand in hands]


def _drawn_afresh(
    share: np.ndarray, of_class: list[np.ndarray], size: int, generator: np.random.Generator
) -> np.ndarray:
    drawn = generator.choice(len(of_class), size, p=share)
    place = generator.random(size)
    return np.array([of_class[c][int(u * len(of_class[c]))] for c, u in zip(drawn, place, strict=True)], dtype=np.int64)


def _dealt_in_turn(
    shares: np.ndarray, of_class: list[np.ndarray], size: int, generator: np.random.Generator
) -> list[np.ndarray]:
    clients = len(shares)
    cumulated = [row.tolist() for row in np.cumsum(shares, axis=1)]
    last = len(of_class) - 1
    used = [0] * len(of_class)
    hands: list[list[int]] = [[] for _ in range(clients)]
    unfilled = list(range(clients))
    for u_client, u_class in generator.random((clients * size, 2)).tolist():
        place = int(u_client * len(unfilled))
        client = unfilled[place]
        ladder = cumulated[client]
        c = min(bisect_right(ladder, u_class * ladder[-1]), last)
        hands[client].append(int(of_class[c][used[c] % len(of_class[c])]))
        used[c] += 1
        if len(hands[client]) == size:
            unfilled[place] = unfilled[-1]
            unfilled.pop()
    return [np.array(hand, dtype=np.int64) for hand in hands]


DIRICHLET = Scheme(
    name="dirichlet",
    summary="label shares from a Dirichlet distribution",
    settings=Dirichlet,
    deal=deal,
    foresee=foresee,
    repeats=True,
)
