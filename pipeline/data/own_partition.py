"""Who holds what of a user's own data."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import numpy as np

from pipeline.data.held_out import held_out
from pipeline.data.partition import Partition, assembled, make_partition
from pipeline.data.partition_rules import check
from pipeline.data.raw import SELECTION, VALIDATION, RawDataset
from pipeline.data.schemes import SCHEMES
from pipeline.data.schemes.natural import NATURAL, UNKNOWN, holdings
from pipeline.data.settings import Data, PartitionSettings
from pipeline.errors import UserError, not_allowed
from pipeline.seeds import numpy_generator

USUAL = {"test": (0.2, 50_000), "validation": (0.1, 5_000), "selection": (0.05, 5_000)}
"""The server's sets -> what `auto` stands for: a share of the samples, and the most of them."""


def make_own_partition(raw: RawDataset, data: Data, partition_params: PartitionSettings, seed: int) -> Partition:
    """Of a user's own data: the server's sets as they are given, else held out by shares (`pipeline.data.held_out`);
    the clients as they are, or the rest dealt by a scheme. What a scheme deals is of unknown kind, unless it makes some
    clients bad itself. No `auto` is left in the settings.

    Raises UserError naming the key of a setting that the data cannot serve.
    """
    assert raw.owners is not None
    draw, labels, scheme = partial(numpy_generator, seed), raw.train_labels, partition_params.dealing
    if not raw.classes and not scheme.numbers:
        fitting = ", ".join(name for name, each in SCHEMES.items() if each.numbers)
        raise UserError(
            f"partition.scheme: {scheme.name} deals by classes, and the targets of data.name: {raw.name} are numbers."
            f" Fix: one of {fitting}."
        )
    rows = np.flatnonzero(raw.owners >= 0)
    validation, selection = (np.flatnonzero(raw.owners == code) for code in (VALIDATION, SELECTION))
    wanted = {name: _share(getattr(data, f"{name}_share"), name, len(rows)) for name in USUAL}
    shares = {"test": 0.0 if len(raw.test_labels) else wanted["test"]}
    if not len(validation):  # a selection set comes from the same samples
        shares |= {"validation": wanted["validation"], "selection": 0.0 if len(selection) else wanted["selection"]}
    groups = None if raw.groups is None else raw.groups[rows]
    found = held_out(raw.owners[rows], labels[rows], groups, shares, draw)
    held = {name: rows[found.get(name, found["test"][:0])] for name in ("test", "validation", "selection")}
    pool = np.setdiff1d(rows, np.concatenate(list(held.values())))
    test = held["test"]
    if not len(raw.test_labels) and not len(test):
        if round(wanted["test"] * len(rows)):
            raise UserError(
                f"data: no test set is given, and none can be held out of {len(rows)} samples: each client keeps one"
                " (or one group). Fix: give a test set (fit: test=(X, y)), or clients with more samples."
            )
        raise not_allowed(
            "data.test_share",
            data.test_share,
            f"large enough to hold out one of {len(rows)} samples",
            "raise it, or give a test set (fit: test=(X, y))",
        )
    validation = np.concatenate([validation, held["validation"]])
    selection = np.concatenate([selection, held["selection"]])
    if scheme is NATURAL and raw.client_names:
        dealt = holdings(pool, labels[pool], raw.owners[pool], raw.client_names, data.bad)
    else:
        if data.bad:
            raise not_allowed(
                "data.bad",
                data.bad,
                f"empty with partition.scheme: {scheme.name}, which deals clients of its own",
                "set it to [], or take data with clients and partition.scheme: natural",
            )
        settings = getattr(partition_params, scheme.name)
        scheme.foresee(settings, len(pool), raw.classes)
        dealt = scheme.deal(pool, labels[pool], raw.classes, settings, draw)
        if all(share.kind == "clean" for share in dealt):  # the scheme spoils nothing; the samples may be bad
            dealt = [dataclasses.replace(share, kind=UNKNOWN) for share in dealt]
    about: dict[str, Any] = {f"{name}_share": share for name, share in shares.items()}
    about["held_out"] = {
        name: [int((raw.owners[held[each]] == i).sum()) for each in held] for i, name in enumerate(raw.client_names)
    }
    result = assembled(
        raw.name,
        raw.classes,
        labels,
        dealt,
        partition_params,
        seed,
        about,
        validation,
        selection,
        test=test,
        names=raw.client_names if scheme is NATURAL else (),
        class_names=raw.class_names,
        groups=raw.groups,
    )
    check(result, labels, scheme, balanced=False)
    return result


def _share(setting: float | str, name: str, rows: int) -> float:
    """Every round needs the whole validation set, so `auto` bounds it."""
    share, most = USUAL[name]
    return min(share, most / rows) if isinstance(setting, str) else setting


def dealt_anew(raw: RawDataset, partition: Partition) -> list[str]:
    """A note, if a scheme has dealt the samples of named clients to others."""
    if not raw.client_names or partition.scheme == NATURAL.name:
        return []
    return [
        f"partition.scheme: {partition.scheme} deals the samples of the {len(raw.client_names)} clients anew, to"
        f" {partition.clients} clients of its own: the weights are of those. natural keeps the clients as they are"
    ]


def partition_of(raw: RawDataset, data: Data, partition_params: PartitionSettings, seed: int) -> Partition:
    """Who holds what of any data. No `auto` is left in the settings."""
    if raw.own:
        return make_own_partition(raw, data, partition_params, seed)
    return make_partition(raw.train_labels, raw.name, raw.classes, partition_params, seed)
