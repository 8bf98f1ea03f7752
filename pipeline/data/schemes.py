"""How the training pool is dealt to clients: one function per scheme, all behind one signature.

    (indices, labels, classes, settings, draw) -> one Share per client

| argument | what | shape |
|---|---|---|
| indices, labels | the pool: rows of the training images and their true labels | [P] int64 |
| classes | number of labels C | |
| settings | the scheme's section of params.yaml, without `auto` | |
| draw | draw(purpose, *ids) -> the generator of that purpose: nobody's draws depend on anybody else's | |

A scheme raises UserError, naming the key, for settings that the pool cannot serve. It draws at random
wherever rows of the same label are told apart, so the order of rows in the data set biases nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import Any

import numpy as np

from pipeline.data.cleaning import cleaning
from pipeline.data.few_shot import few_shot
from pipeline.data.longtail import longtail
from pipeline.data.per_label import balanced, powerlaw
from pipeline.data.scheme_settings import (
    Dirichlet,
    Duplicates,
    Iid,
    LabelNoise,
    Lead,
    Mixed,
    Quantity,
    Shards,
    require_rates,
)
from pipeline.data.shares import Draw, Share, at_most, clean_share
from pipeline.errors import not_allowed

# ---------------------------------------------------------------------------------- label groups


def lead(indices: np.ndarray, labels: np.ndarray, classes: int, settings: Lead, draw: Draw) -> list[Share]:
    """The lead protocol: each group of labels to one clean client, and clients whose labels are noise.

    A noise client draws images from the whole pool, without repeats within itself, and labels uniformly.
    """
    clean = _groups(indices, labels, classes, settings.groups, "partition.lead.groups")
    samples = settings.noise_samples
    if isinstance(samples, str):
        raise ValueError("noise_samples is still auto: resolve the settings first")
    if settings.noise_clients and samples > len(indices):
        raise not_allowed(
            "partition.lead.noise_samples",
            samples,
            at_most(len(indices)),
            "lower it, or take a larger data set",
        )
    clients = range(len(clean), len(clean) + settings.noise_clients)
    return clean + [_noisy(indices, classes, samples, draw("noise", client)) for client in clients]


def _noisy(indices: np.ndarray, classes: int, samples: int, generator: np.random.Generator) -> Share:
    """Images of the whole pool without repeats, uniformly random labels."""
    images = indices[generator.choice(len(indices), samples, replace=False)]
    return Share(images, generator.integers(0, classes, samples), "noisy", list(range(classes)))


def mixed(indices: np.ndarray, labels: np.ndarray, classes: int, settings: Mixed, draw: Draw) -> list[Share]:
    """The label groups, and bad clients of every kind, in this order: noisy, flipped, shuffled, duplicate, small.

    The images of a bad client come from the whole pool, without repeats within itself; those of a duplicate are the
    first clean client's. Shuffled pixels are the reader's work (`pipeline.data.federated`); the labels are true.
    """
    shares = _groups(indices, labels, classes, settings.groups, "partition.mixed.groups")
    samples, source, key = settings.bad_samples, shares[0], "partition.mixed"
    if isinstance(samples, str):
        raise ValueError("bad_samples is still auto: resolve the settings first")
    require_rates(f"{key}.flip_rates", settings.flip_rates)
    for name, value in (("bad_samples", samples), ("small_samples", settings.small_samples)):
        if value > len(indices):
            raise not_allowed(f"{key}.{name}", value, at_most(len(indices)), "lower it, or take a larger data set")

    def drawn(kind: str, count: int, rate: float = 0.0) -> Share:
        generator = draw("bad", len(shares))
        rows = generator.choice(len(indices), count, replace=False)
        held = _with_wrong(labels[rows], rate, classes, generator)
        return Share(indices[rows], held, kind, np.unique(labels[rows]).tolist())

    for _ in range(settings.noisy):
        shares.append(_noisy(indices, classes, samples, draw("noise", len(shares))))
    for rate in settings.flip_rates:
        shares.append(drawn("flipped", samples, rate))
    for _ in range(settings.shuffled):
        shares.append(drawn("shuffled", samples))
    shares += [Share(source.indices, source.labels, "duplicate", source.client_labels, copy_of=0)] * settings.duplicates
    for _ in range(settings.small):
        shares.append(drawn("small", settings.small_samples))
    return shares


def _with_wrong(labels: np.ndarray, rate: float, classes: int, generator: np.random.Generator) -> np.ndarray:
    """A copy with round(rate n) labels turned into another one, uniformly among the others."""
    held = labels.copy()
    wrong = generator.choice(len(held), round(rate * len(held)), replace=False)
    held[wrong] = (held[wrong] + generator.integers(1, classes, len(wrong))) % classes
    return held


def duplicates(indices: np.ndarray, labels: np.ndarray, classes: int, settings: Duplicates, draw: Draw) -> list[Share]:
    """The label groups, and clients that hold an exact copy of one of them."""
    clean = _groups(indices, labels, classes, settings.groups, "partition.duplicates.groups")
    if not 0 <= settings.source < len(clean):
        raise not_allowed(
            "partition.duplicates.source",
            settings.source,
            f"the number of a clean client, 0 to {len(clean) - 1}",
            "partition.duplicates.source: 0",
        )
    source = clean[settings.source]
    copy = Share(source.indices, source.labels, "duplicate", source.client_labels, copy_of=settings.source)
    return clean + [copy] * settings.copies


def _groups(
    indices: np.ndarray, labels: np.ndarray, classes: int, groups: list[list[int]] | str, key: str
) -> list[Share]:
    """All pool samples of each group's labels; UserError unless the groups are disjoint sets of labels."""
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
    shares = []
    for group in groups:
        held = np.isin(labels, group)
        shares.append(Share(indices[held], labels[held], "clean", sorted(group)))
    return shares


# ------------------------------------------------------------------------------- disjoint splits


def iid(indices: np.ndarray, labels: np.ndarray, classes: int, settings: Iid, draw: Draw) -> list[Share]:
    """Equal random parts (sizes differ by one at most)."""
    _enough("partition.iid.clients", settings.clients, len(indices))
    return [
        clean_share(indices[part], labels[part]) for part in _equal_parts(len(indices), settings.clients, draw("iid"))
    ]


def shards(indices: np.ndarray, labels: np.ndarray, classes: int, settings: Shards, draw: Draw) -> list[Share]:
    """Samples sorted by label, cut into equal shards, dealt at random."""
    count = settings.clients * settings.shards_per_client
    if count > len(indices):
        raise not_allowed(
            "partition.shards.clients x shards_per_client",
            count,
            at_most(len(indices)),
            "lower one of the two",
        )
    generator = draw("shards")
    mixed = generator.permutation(len(indices))  # which samples of a label share a shard
    cut = np.array_split(mixed[np.argsort(labels[mixed], kind="stable")], count)
    dealt = generator.permutation(count).reshape(settings.clients, settings.shards_per_client)
    hands = [np.concatenate([cut[shard] for shard in hand]) for hand in dealt]
    return [clean_share(indices[hand], labels[hand]) for hand in hands]


def quantity(indices: np.ndarray, labels: np.ndarray, classes: int, settings: Quantity, draw: Draw) -> list[Share]:
    """Random parts of sizes proportional to (i+1)^-exponent, but none below min_samples."""
    _enough("partition.quantity.clients", settings.clients, len(indices))
    if settings.clients * settings.min_samples > len(indices):
        raise not_allowed(
            "partition.quantity.min_samples",
            settings.min_samples,
            f"{at_most(len(indices) // settings.clients)} for {settings.clients} clients",
            "lower it, or partition.quantity.clients",
        )
    sizes = power_law_sizes(len(indices), settings.clients, settings.exponent, settings.min_samples)
    parts = np.split(draw("quantity").permutation(len(indices)), np.cumsum(sizes)[:-1])
    return [clean_share(indices[part], labels[part]) for part in parts]


def power_law_sizes(total: int, clients: int, exponent: float, least: int) -> np.ndarray:
    """[clients] int64 with sum `total`: client i in proportion to (i+1)^-exponent; whoever would fall below
    `least` gets `least`, and the others share the rest in the same proportions.

    Needs clients * least <= total.
    """
    share = np.arange(1, clients + 1, dtype=np.float64) ** -exponent
    above = clients  # clients 0..above-1 hold more than `least`: shares fall with i
    while above > 1 and (total - (clients - above) * least) * share[above - 1] < least * share[:above].sum():
        above -= 1
    sizes = np.full(clients, least, dtype=np.int64)
    exact = (total - (clients - above) * least) * (share[:above] / share[:above].sum())
    sizes[:above] = np.maximum(np.floor(exact), least)
    rest = total - int(sizes.sum())  # fewer than `above`: one each to the largest fractions
    sizes[np.argsort(np.floor(exact) - exact, kind="stable")[:rest]] += 1
    return sizes


def label_noise(indices: np.ndarray, labels: np.ndarray, classes: int, settings: LabelNoise, draw: Draw) -> list[Share]:
    """Equal random parts; round(rate n) labels of a client become another one, uniformly among the others."""
    rates, key = settings.rates, "partition.label_noise.rates"
    if not rates:
        raise not_allowed(key, rates, "a list of one number in [0, 1] per client", f"{key}: [0.0, 0.2, 0.4]")
    require_rates(key, rates)
    _enough(f"length of {key}", len(rates), len(indices))
    shares = []
    parts = _equal_parts(len(indices), len(rates), draw("iid"))
    for client, (rate, part) in enumerate(zip(rates, parts, strict=True)):
        held = _with_wrong(labels[part], rate, classes, draw("label-noise", client))
        kind = "flipped" if rate else "clean"
        shares.append(Share(indices[part], held, kind, np.unique(labels[part]).tolist()))
    return shares


def _equal_parts(count: int, clients: int, generator: np.random.Generator) -> list[np.ndarray]:
    return np.array_split(generator.permutation(count), clients)


# ------------------------------------------------------------------------------------- Dirichlet


def dirichlet(indices: np.ndarray, labels: np.ndarray, classes: int, settings: Dirichlet, draw: Draw) -> list[Share]:
    """floor(P / N) samples each; client i's labels follow p_i ~ Dirichlet(a, ..., a), a per class.

    replacement `cycle` is the simulator's procedure (section 4.2 of the a_fedpd specification): until
    everybody is full, pick a client that is not, draw a class from its p_i and take the class's next unused
    image; a class used up starts again. `iid` draws every image afresh from its class. Either way an image
    may lie on several clients.
    """
    clients = settings.clients
    _enough("partition.dirichlet.clients", clients, len(indices))
    size = len(indices) // clients
    shares = np.stack([draw("dirichlet", i).dirichlet([settings.concentration] * classes) for i in range(clients)])
    of_class = [draw("dirichlet-class", c).permutation(np.flatnonzero(labels == c)) for c in range(classes)]
    if settings.replacement == "iid":
        hands = [_drawn_afresh(share, of_class, size, draw("dirichlet-draws", i)) for i, share in enumerate(shares)]
    else:
        hands = _dealt_in_turn(shares, of_class, size, draw("dirichlet-draws"))
    return [clean_share(indices[hand], labels[hand]) for hand in hands]


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


# --------------------------------------------------------------------------------------- complaints


def _words(labels: list[int]) -> str:
    return ", ".join(map(str, labels))


def _enough(key: str, clients: int, samples: int) -> None:
    if not 1 <= clients <= samples:
        raise not_allowed(
            key,
            clients,
            f"1 to {samples}, the samples there are to deal",
            "fewer clients, or a larger data set",
        )


SCHEMES: dict[str, Callable[[np.ndarray, np.ndarray, int, Any, Draw], list[Share]]] = {
    "lead": lead,
    "iid": iid,
    "shards": shards,
    "dirichlet": dirichlet,
    "quantity": quantity,
    "duplicates": duplicates,
    "label_noise": label_noise,
    "mixed": mixed,
    "cleaning": cleaning,
    "longtail": longtail,
    "balanced": balanced,
    "powerlaw": powerlaw,
    "few_shot": few_shot,
}
