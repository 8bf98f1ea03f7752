"""Few labels per client: samples sorted by label, cut into shards."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipeline.config.spec import Section, param
from pipeline.data.holdings import Draw, Holding, at_most, clean_holding
from pipeline.data.schemes.base import Scheme
from pipeline.errors import not_allowed


@dataclass(frozen=True)
class Shards(Section):
    """Samples sorted by label, cut into equal shards, dealt at random: few labels per client."""

    clients: int = param(10, "number of clients", ge=1, symbol="N")
    shards_per_client: int = param(2, "shards each client is dealt, about its number of labels", ge=1)


def foresee(settings: Shards, samples: int, classes: int) -> int:
    """The number of clients; UserError for more shards than there are samples."""
    count = settings.clients * settings.shards_per_client
    if count > samples:
        raise not_allowed(
            "partition.shards.clients x shards_per_client",
            count,
            at_most(samples),
            "lower one of the two",
        )
    return settings.clients


def deal(indices: np.ndarray, labels: np.ndarray, classes: int, settings: Shards, draw: Draw) -> list[Holding]:
    """Samples sorted by label, cut into equal shards, dealt at random."""
    count = settings.clients * settings.shards_per_client
    generator = draw("shards")
    mixed = generator.permutation(len(indices))  # which samples of a label share a shard
    cut = np.array_split(mixed[np.argsort(labels[mixed], kind="stable")], count)
    dealt = generator.permutation(count).reshape(settings.clients, settings.shards_per_client)
    hands = [np.concatenate([cut[shard] for shard in hand]) for hand in dealt]
    return [clean_holding(indices[hand], labels[hand]) for hand in hands]


SHARDS = Scheme(
    name="shards",
    summary="few labels per client",
    settings=Shards,
    deal=deal,
    foresee=foresee,
)
