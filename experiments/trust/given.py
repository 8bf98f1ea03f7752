"""Twelve federations on digits, breast cancer, wine, heart disease and generated tables.

Random or shifted labels at some clients, parts of unequal size. Equal seeds give equal arrays. Of the samples that the
server holds for its test, the first 40 % are the selection set. Heart disease reads
`$FEDBILEVEL_DATA_MIRROR/heart-disease/heart.csv` (columns hospital, num = the diagnosis, and measurements) and is left
out where there is no such file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from experiments.trust.record import Federation
from pipeline.data.arrays import Samples
from pipeline.errors import UserError

SELECTION = 0.4
Network = tuple[str, dict[str, Any]]


def unit(A: np.ndarray) -> np.ndarray:
    """Columns to [0, 1] by their 1st and 99th percentile."""
    low, high = np.percentile(A, 1, 0), np.percentile(A, 99, 0)
    return np.clip((A - low) / (high - low + 1e-12), 0, 1)


def deal(
    X: np.ndarray,
    y: np.ndarray,
    clients: int,
    bad: Collection[int],
    rng: np.random.Generator,
    validation: int,
    test: int,
    skew: float | None = None,
    wrong: str = "random",
    rate: float = 1.0,
) -> tuple[list[Samples], Samples, Samples]:
    """(clients, validation, test). Unequal random parts (skew: a Dirichlet per class); at bad clients a share `rate` of
    the labels is random, or moved by one."""
    order, classes = rng.permutation(len(y)), int(y.max() + 1)
    v, t, pool = np.split(order, [validation, validation + test])
    if skew is None:
        parts = np.split(pool, (np.cumsum(rng.dirichlet(np.full(clients, 3.0)))[:-1] * len(pool)).astype(int))
    else:
        held: list[list[int]] = [[] for _ in range(clients)]
        for c in range(classes):
            rows = pool[y[pool] == c]
            cuts = (np.cumsum(rng.dirichlet(np.full(clients, skew)))[:-1] * len(rows)).astype(int)
            for k, some in enumerate(np.split(rows, cuts)):
                held[k].extend(some)
        parts = [np.array(each, dtype=int) for each in held]
    dealt = []
    for k, part in enumerate(parts):
        rows = part if len(part) >= 5 else pool[:5]
        labels = y[rows].copy()
        if k in bad:
            hit = rng.random(len(labels)) < rate
            labels[hit] = rng.integers(0, classes, hit.sum()) if wrong == "random" else (labels[hit] + 1) % classes
        dealt.append((X[rows], labels))
    return dealt, (X[v], y[v]), (X[t], y[t])


# ------------------------------------------------------------------------------------------------------ where from


@cache
def digits() -> Samples:
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    return X.reshape(-1, 1, 8, 8) / 16.0, y


@cache
def large_digits() -> Samples:
    """28 x 28: every pixel three times, and a margin."""
    X, y = digits()
    return np.pad(np.kron(X, np.ones((1, 1, 3, 3))), ((0, 0), (0, 0), (2, 2), (2, 2))), y


@cache
def cancer() -> Samples:
    from sklearn.datasets import load_breast_cancer

    X, y = load_breast_cancer(return_X_y=True)
    return unit(X), y


@cache
def wine() -> Samples:
    from sklearn.datasets import load_wine

    X, y = load_wine(return_X_y=True)
    return unit(X), y


@cache
def table(seed: int) -> Samples:
    from sklearn.datasets import make_classification

    X, y = make_classification(4000, 20, n_informative=10, class_sep=1.2, random_state=1 + seed)
    return unit(X), y


def heart_file() -> Path:
    return Path(os.environ.get("FEDBILEVEL_DATA_MIRROR", ".")) / "heart-disease" / "heart.csv"


@cache
def heart(file: Path) -> Samples:
    """Measurements, medians where they are missing; whether the patient is ill."""
    import pandas as pd

    if not file.is_file():
        raise UserError(
            f"{file} does not exist, and the federation heart-2of6 is made of it."
            " Fix: set FEDBILEVEL_DATA_MIRROR to the folder that holds heart-disease/heart.csv."
        )
    read = pd.read_csv(file)
    measured = read.drop(columns=["hospital", "num"])
    return unit(measured.fillna(measured.median()).to_numpy(dtype=float)), (read["num"] > 0).to_numpy().astype(int)


# ------------------------------------------------------------------------------------------------------ who holds what


def _made(
    name: str,
    place: int,
    source: Callable[[int], Samples],
    network: Network,
    clients: int,
    bad: Collection[int],
    validation: int,
    test: int,
    seed: int,
    **options: Any,
) -> Federation:
    """place: distinguishes the federations of a seed. options: of `deal`."""
    X, y = source(seed)
    rng = np.random.default_rng(100 * seed + place)
    dealt, server, (T, t) = deal(X, y, clients, bad, rng, validation, test, **options)
    first = round(SELECTION * test)
    random = options.get("wrong", "random") == "random"
    return Federation(
        name=f"{name}-{seed}",
        clients=dealt,
        kinds=["clean" if k not in bad else "noisy" if random else "moved" for k in range(clients)],
        validation=server,
        selection=(T[:first], t[:first]),
        test=(T[first:], t[first:]),
        classes=int(y.max() + 1),
        network=network,
        wrong="random labels" if random else "labels moved by one",
    )


def _mlp(hidden: int) -> Network:
    return "mlp", {"hidden": [hidden]}


def _once(source: Callable[[], Samples]) -> Callable[[int], Samples]:
    """The same samples for every seed."""
    return lambda seed: source()


def _entry(name: str, *how: Any, **options: Any) -> tuple[str, Callable[[int], Federation]]:
    return name, partial(_made, name, *how, **options)


_LINEAR: Network = ("linear", {})
_LENET: Network = ("lenet5", {})
_DIGITS, _LARGE, _CANCER, _WINE = (_once(source) for source in (digits, large_digits, cancer, wine))
_HALF = {1, 3, 5, 7, 9, 11}
GIVEN: dict[str, Callable[[int], Federation]] = dict(
    [
        _entry("digits-2of8", 0, _DIGITS, _mlp(32), 8, {1, 3}, 80, 300),
        _entry("digits-5of8", 1, _DIGITS, _mlp(64), 8, {1, 3, 4, 5, 7}, 80, 300),
        _entry("digits-linear-2of8", 2, _DIGITS, _LINEAR, 8, {1, 3}, 80, 300),
        _entry("digits-moved-2of6", 3, _DIGITS, _mlp(64), 6, {0, 5}, 60, 300, wrong="moved"),
        _entry("digits-skewed-3of10", 4, _DIGITS, _mlp(64), 10, {2, 6, 7}, 100, 300, skew=0.3),
        _entry("digits28-2of8", 5, _LARGE, _LENET, 8, {1, 3}, 80, 300),
        _entry("cancer-2of6", 6, _CANCER, _mlp(32), 6, {0, 4}, 40, 150),
        _entry("cancer-moved-2of6", 7, _CANCER, _LINEAR, 6, {0, 4}, 40, 150, wrong="moved", rate=0.8),
        _entry("table-2of12", 9, table, _mlp(32), 12, {3, 7}, 100, 700),
        _entry("table-linear-6of12", 10, table, _LINEAR, 12, _HALF, 100, 700),
        _entry("wine-1of4", 11, _WINE, _mlp(16), 4, {2}, 24, 50),
        _entry("heart-2of6", 12, lambda seed: heart(heart_file()), _mlp(16), 6, {1, 4}, 60, 200),
    ]
)
"""Name -> the federation of a seed."""
