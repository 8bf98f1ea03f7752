"""What a partition scheme is, and what schemes share.

A scheme deals the training pool to the clients:

    deal(indices, labels, classes, settings, draw) -> one Holding per client

| argument | what | shape |
|---|---|---|
| indices, labels | the pool: rows of the training images and their true labels | [P] int64 |
| classes | number of labels C | |
| settings | the scheme's section of params.yaml, without `auto` | |
| draw | draw(purpose, *ids) -> the generator of that purpose: no draw depends on another one | |

It raises UserError, naming the key, for settings that the pool's labels cannot serve; `foresee` checks what
their number alone decides. It draws at random wherever rows of the same label are distinguished, so the order of rows
in the data set biases nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.data.holdings import Draw, Holding
from pipeline.data.sizes import Sizes, require_memory
from pipeline.errors import not_allowed

Deal = Callable[[np.ndarray, np.ndarray, int, Any, Draw], list[Holding]]

MOST_CLIENTS = 1_000_000
"""Of clients that share their samples with others, whose number the data do not bound."""


def as_they_are(settings: Any, classes: int, sizes: Sizes) -> Any:
    """Settings without any `auto`."""
    return settings


def anything_goes(key: str, settings: Any) -> None:
    """The check of a scheme whose settings go together whatever they are."""


def unforeseen(settings: Any, samples: int, classes: int) -> int | None:
    """Of a scheme that says nothing before it deals."""
    return None


@dataclass(frozen=True, kw_only=True)
class Scheme:
    """A partition scheme.

    name: in params.yaml. summary: what it is, in a line. settings: the record of its section, `partition.<name>`.
    resolve(settings, classes, sizes) -> settings without `auto`. check(key, settings): UserError for settings that
    serve no data; key: of the section. foresee(settings, samples, classes) -> how many clients there will be, if that
    is known; UserError for settings that no pool of that many samples can serve, or that no memory holds.

    validation_size: the setting that says how large the clients' validation parts are, where the scheme deals them out
    itself. clean_validation: their labels are right. wrong_labels: those of parts that are set aside from a client's
    samples are not. repeats: an image may lie on several clients, all of them clean. own_problem: the one problem that
    the scheme serves, if there is one. numbers: it also deals out samples whose targets are numbers.
    """

    name: str
    summary: str
    settings: type[Any]
    deal: Deal
    resolve: Callable[[Any, int, Sizes], Any] = as_they_are
    check: Callable[[str, Any], None] = anything_goes
    foresee: Callable[[Any, int, int], int | None] = unforeseen
    validation_size: str | None = None
    clean_validation: bool = False
    wrong_labels: bool = False
    repeats: bool = False
    own_problem: str | None = None
    numbers: bool = False


def settled(value: Any, auto: Any) -> Any:
    """A setting, or what its `auto` stands for."""
    return auto if value == "auto" else value


def noisy_holding(indices: np.ndarray, classes: int, samples: int, generator: np.random.Generator) -> Holding:
    """Images of the whole pool without repeats, uniformly random labels."""
    images = indices[generator.choice(len(indices), samples, replace=False)]
    return Holding(images, generator.integers(0, classes, samples), "noisy", list(range(classes)))


def with_wrong_labels(labels: np.ndarray, rate: float, classes: int, generator: np.random.Generator) -> np.ndarray:
    """A copy with round(rate n) labels turned into another one, uniformly among the others."""
    held = labels.copy()
    wrong = generator.choice(len(held), round(rate * len(held)), replace=False)
    held[wrong] = (held[wrong] + generator.integers(1, classes, len(wrong))) % classes
    return held


def require_groups(key: str, groups: list[list[int]] | str, classes: int) -> int:
    """How many there are; UserError unless they are disjoint sets of labels."""
    if isinstance(groups, str):
        raise ValueError("groups are still auto: resolve the settings first")
    allowed = f"lists of labels 0 to {classes - 1}, none empty, no label twice"
    fix = f"{key}: auto"
    if not groups or not all(groups):
        raise not_allowed(key, groups, f"{allowed} (there is an empty list)", fix)
    flat = [label for group in groups for label in group]
    outside = sorted({label for label in flat if not 0 <= label < classes})
    if outside:
        raise not_allowed(key, groups, f"{allowed} (no such label: {_words(outside)})", fix)
    twice = sorted({label for label in flat if flat.count(label) > 1})
    if twice:
        raise not_allowed(key, groups, f"{allowed} (twice: {_words(twice)})", fix)
    return len(groups)


def label_groups(indices: np.ndarray, labels: np.ndarray, groups: Any) -> list[Holding]:
    """All pool samples of each group's labels."""
    shares = []
    for group in groups:
        held = np.isin(labels, group)
        shares.append(Holding(indices[held], labels[held], "clean", sorted(group)))
    return shares


def equal_parts(count: int, clients: int, generator: np.random.Generator) -> list[np.ndarray]:
    return np.array_split(generator.permutation(count), clients)


def require_samples(key: str, clients: int, samples: int) -> int:
    """The number of clients; UserError unless each can hold a sample."""
    if not 1 <= clients <= samples:
        raise not_allowed(
            key,
            clients,
            f"1 to {samples}, the samples there are to deal",
            "fewer clients, or a larger data set",
        )
    return clients


def require_room(key: str, held: int) -> None:
    """UserError for clients that together hold more samples than fit into memory; key: the setting to lower."""
    require_memory(
        f"{key}: clients with {held:,} samples together", 2.0 * 16 * held, "fewer clients, or samples of each"
    )


def _words(labels: list[int]) -> str:
    return ", ".join(map(str, labels))


def require_rates(key: str, rates: list[float]) -> None:
    """UserError for a share of wrong labels that is none."""
    if not all(0.0 <= rate <= 1.0 for rate in rates):
        raise not_allowed(key, rates, "a list of numbers in [0, 1], one per client", f"for example {key}: [0.2, 0.4]")


def default_groups(classes: int) -> list[list[int]]:
    """Label groups of the clean clients: the first half, the next three tenths, the rest; of two labels, two groups."""
    a, b = classes // 2, classes * 8 // 10
    return [group for group in (list(range(a)), list(range(a, b)), list(range(b, classes))) if group]


def shuffled_by_label(labels: np.ndarray, classes: int, draw: Draw, purpose: str) -> list[np.ndarray]:
    """The positions of each label, in random order."""
    return [draw(purpose, c).permutation(np.flatnonzero(labels == c)) for c in range(classes)]
