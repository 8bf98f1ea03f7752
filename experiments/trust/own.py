"""More federations, each with something else wrong: what is wrong, with how many clients, of what sizes, and how good
the validation set is. All from scikit-learn's embedded data and generators.

A recipe deals samples in random order: the validation, the selection and the test set, then the clients' parts. Which
clients are bad is drawn too. Equal seeds give equal arrays.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np

from experiments.trust.given import Network, digits, wine
from experiments.trust.record import Federation
from pipeline.data.arrays import Samples
from pipeline.seeds import numpy_generator

SMALLEST = 10
"""Samples of a client, at least."""
Spoil = Callable[[np.ndarray, np.ndarray, int, np.random.Generator], Samples]
"""(X, y, classes, rng) of a bad client -> what it holds instead."""

Source = Callable[[int], Samples]
"""Seed -> all samples."""

# ------------------------------------------------------------------------------------------------------ what is wrong


def noisy(X: np.ndarray, y: np.ndarray, classes: int, rng: np.random.Generator, rate: float = 1.0) -> Samples:
    """Random labels, at a rate."""
    return X, np.where(rng.random(len(y)) < rate, rng.integers(0, classes, len(y)), y)


def moved(X: np.ndarray, y: np.ndarray, classes: int, rng: np.random.Generator) -> Samples:
    """Every label is the next class's."""
    return X, (y + 1) % classes


def flipped(
    X: np.ndarray, y: np.ndarray, classes: int, rng: np.random.Generator, pair: tuple[int, int] = (0, 1)
) -> Samples:
    """Two classes change places."""
    a, b = pair
    return X, np.select([y == a, y == b], [b, a], y)


def shuffled(X: np.ndarray, y: np.ndarray, classes: int, rng: np.random.Generator) -> Samples:
    """Features in another order, the same for all samples."""
    flat = X.reshape(len(X), -1)
    return flat[:, rng.permutation(flat.shape[1])].reshape(X.shape), y


def scaled(X: np.ndarray, y: np.ndarray, classes: int, rng: np.random.Generator, factor: float = 100.0) -> Samples:
    """Features in another unit."""
    return X * factor, y


def free_riding(X: np.ndarray, y: np.ndarray, classes: int, rng: np.random.Generator) -> Samples:
    """One sample and one label throughout."""
    return np.repeat(X.mean(0, keepdims=True), len(X), 0), np.full_like(y, rng.integers(0, classes))


# ------------------------------------------------------------------------------------------------------ where from


@cache
def made(seed: int, count: int = 4000, classes: int = 4, features: int = 16) -> Samples:
    """Clusters on a hypercube's corners, features in units between 1/10 and 1000."""
    from sklearn.datasets import make_classification

    X, y = make_classification(
        count, features, n_informative=10, n_classes=classes, class_sep=1.5, flip_y=0.0, random_state=50 + seed
    )
    return X * np.logspace(-1, 3, features), y


@cache
def moons(seed: int) -> Samples:
    from sklearn.datasets import make_moons

    return make_moons(1200, noise=0.2, random_state=50 + seed)


@cache
def quantiles(seed: int) -> Samples:
    """Shells around the origin, three classes: no linear model separates them."""
    from sklearn.datasets import make_gaussian_quantiles

    return make_gaussian_quantiles(n_samples=3000, n_features=4, n_classes=3, random_state=50 + seed)


@cache
def cancer(seed: int) -> Samples:
    """As measured: features differ by five orders of magnitude."""
    from sklearn.datasets import load_breast_cancer

    return load_breast_cancer(return_X_y=True)


@cache
def iris(seed: int) -> Samples:
    from sklearn.datasets import load_iris

    return load_iris(return_X_y=True)


@cache
def diabetes(seed: int) -> Samples:
    """The disease's progress in thirds: hard, and noisy by itself."""
    from sklearn.datasets import load_diabetes

    X, progress = load_diabetes(return_X_y=True)
    return X, np.searchsorted(np.quantile(progress, [1 / 3, 2 / 3]), progress)


@cache
def patches(seed: int) -> Samples:
    """Colour squares of two photographs, uint8 [m, 3, 16, 16]; classes: which one, and its upper or lower half."""
    from sklearn.datasets import load_sample_images

    squares, labels = [], []
    for image, photograph in enumerate(load_sample_images().images):
        rows, columns = photograph.shape[0] // 16, photograph.shape[1] // 16
        grid = photograph[: 16 * rows, : 16 * columns].reshape(rows, 16, columns, 16, 3)
        squares.append(grid.transpose(0, 2, 4, 1, 3).reshape(-1, 3, 16, 16))
        labels.append(np.repeat(2 * image + (np.arange(rows) >= rows / 2), columns))
    return np.concatenate(squares), np.concatenate(labels).astype(np.int64)


# ------------------------------------------------------------------------------------------------------ who holds what


@dataclass(frozen=True)
class Recipe:
    """clients: N. bad: how many of them are spoilt; spoils: how, in turns. validation, selection, test: samples.

    sizes: of the clients; none = Dirichlet(3) shares of what is left. skew: instead, a Dirichlet per class with this
    parameter. copies: this number of further clients hold what the first clean one holds. dirty: share of the
    validation samples with a random label.
    """

    wrong: str
    source: Source
    network: Network
    clients: int
    bad: int
    spoils: tuple[Spoil, ...] = (noisy,)
    validation: int = 50
    selection: int = 250
    test: int = 450
    sizes: tuple[int, ...] = ()
    skew: float | None = None
    copies: int = 0
    dirty: float = 0.0

    def federation(self, name: str, seed: int) -> Federation:
        """Dealt by the seed."""
        rng = numpy_generator(seed, f"trust {name}")
        X, y = self.source(seed)
        classes = int(y.max()) + 1
        order = rng.permutation(len(y))
        server = np.cumsum([self.validation, self.selection, self.test])
        v, s, t, pool = np.split(order, server)
        parts = self._parts(pool, y, classes, rng)
        bad = np.sort(rng.choice(self.clients, self.bad, replace=False)).tolist()
        clients = [(X[rows], y[rows]) for rows in parts]
        kinds = ["clean"] * self.clients
        for place, k in enumerate(bad):
            spoil = self.spoils[place % len(self.spoils)]
            held, labels = clients[k]
            clients[k] = spoil(held, labels, classes, rng)
            kinds[k] = getattr(spoil, "func", spoil).__name__
        if self.copies:
            clients += [clients[kinds.index("clean")]] * self.copies
            kinds += ["duplicate"] * self.copies
        seen = noisy(X[v], y[v], classes, rng, self.dirty) if self.dirty else (X[v], y[v])
        return Federation(
            name=f"{name}-{seed}",
            clients=clients,
            kinds=kinds,
            validation=seen,
            selection=(X[s], y[s]),
            test=(X[t], y[t]),
            classes=classes,
            network=self.network,
            wrong=self.wrong,
        )

    def _parts(self, pool: np.ndarray, y: np.ndarray, classes: int, rng: np.random.Generator) -> list[np.ndarray]:
        """Rows of each client."""
        if self.sizes:
            return np.split(pool, np.cumsum(self.sizes))[: self.clients]
        if self.skew is None:
            free = len(pool) - SMALLEST * self.clients
            shares = rng.dirichlet(np.full(self.clients, 3.0)) * free
            return np.split(pool, np.cumsum(SMALLEST + shares.astype(int))[:-1])
        held: list[list[int]] = [[] for _ in range(self.clients)]
        for c in range(classes):
            rows = pool[y[pool] == c]
            cuts = (np.cumsum(rng.dirichlet(np.full(self.clients, self.skew)))[:-1] * len(rows)).astype(int)
            for k, some in enumerate(np.split(rows, cuts)):
                held[k].extend(some)
        filled = [[*each, *rng.choice(pool, max(0, SMALLEST - len(each)), replace=False)] for each in held]
        return [np.array(each, dtype=int) for each in filled]


def _mlp(hidden: int) -> tuple[str, dict[str, Any]]:
    return "mlp", {"hidden": [hidden]}


def _digits(seed: int) -> Samples:
    return digits()


def _wine(seed: int) -> Samples:
    return wine()


_LINEAR: Network = ("linear", {})
_RATES = tuple(partial(noisy, rate=rate) for rate in (0.2, 0.4, 0.6, 0.8, 1.0))
_D = Recipe("random labels", _digits, _mlp(32), 9, 3)


def _of(recipe: Recipe, **changes: Any) -> Recipe:
    return dataclasses.replace(recipe, **changes)


RECIPES: dict[str, Recipe] = {
    "digits-1of3": _of(_D, clients=3, bad=1),
    "digits-7of10": _of(_D, clients=10, bad=7, wrong="random labels at the majority"),
    "digits-rate6-5of10": _of(
        _D, clients=10, bad=5, spoils=(partial(noisy, rate=0.6),), wrong="some random labels at some clients"
    ),
    "digits-flips-3of9": _of(
        _D, spoils=(partial(flipped, pair=(3, 8)), partial(flipped, pair=(1, 7))), wrong="two classes flipped"
    ),
    "digits-shuffled-3of9": _of(_D, spoils=(shuffled,), wrong="shuffled features"),
    "digits-riders-3of9": _of(_D, spoils=(free_riding,), wrong="free riders"),
    "digits-copies-2of11": _of(_D, clients=8, bad=2, copies=3, wrong="copies of a clean client"),
    "digits-iid-0of10": _of(_D, clients=10, bad=0, wrong="nothing"),
    "digits-skewed-0of10": _of(_D, clients=10, bad=0, skew=0.3, wrong="nothing"),
    "digits-v10-2of8": _of(_D, clients=8, bad=2, validation=10, wrong="few validation samples"),
    "digits-dirty-3of9": _of(_D, validation=60, dirty=0.1, wrong="wrong labels in validation"),
    "patches-2of6": _of(_D, source=patches, network=("lenet5", {}), clients=6, bad=2),
    "many-100of300": _of(
        _D, source=partial(made, count=12000), network=_LINEAR, clients=300, bad=100, wrong="a hundred bad clients"
    ),
    "sizes-2of8": _of(
        _D,
        source=partial(made, count=16000),
        clients=8,
        bad=2,
        sizes=(10, 20, 50, 100, 300, 1000, 3000, 10000),
        wrong="sizes from 10 to 10,000",
    ),
    "rates-5of10": _of(_D, source=made, clients=10, bad=5, spoils=_RATES, wrong="some random labels at some clients"),
    "scaled-3of9": _of(_D, source=made, spoils=(scaled,), wrong="features in another unit"),
    "cancer-iid-0of6": _of(
        _D, source=cancer, network=_mlp(16), clients=6, bad=0, validation=20, selection=80, test=150, wrong="nothing"
    ),
    "wine-flips-1of4": _of(
        _D,
        source=_wine,
        network=_mlp(16),
        clients=4,
        bad=1,
        spoils=(flipped,),
        validation=20,
        selection=30,
        test=40,
        wrong="two classes flipped",
    ),
    "moons-4of6": _of(
        _D,
        source=moons,
        network=_mlp(16),
        clients=6,
        bad=4,
        validation=20,
        wrong="random labels at the majority",
    ),
    "quantiles-3of9": _of(_D, source=quantiles, spoils=(moved,), wrong="labels moved by one"),
    "diabetes-2of6": _of(
        _D, source=diabetes, network=_LINEAR, clients=6, bad=2, spoils=(moved,), selection=80, test=120,
        wrong="labels moved by one",
    ),
    "iris-1of3": _of(
        _D, source=iris, network=_LINEAR, clients=3, bad=1, validation=15, selection=30, test=45,
        wrong="few validation samples",
    ),
}  # fmt: skip
OWN: dict[str, Callable[[int], Federation]] = {
    name: partial(recipe.federation, name) for name, recipe in RECIPES.items()
}
"""Name -> the federation of a seed."""
