"""Small tables, folders and arrays of a user's own, and what is made of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from PIL import Image

from pipeline.config.spec import override
from pipeline.data.datasets import load, prepare
from pipeline.data.own_partition import partition_of
from pipeline.data.partition import Partition
from pipeline.data.raw import RawDataset
from pipeline.params import Params
from pipeline.params.reading import params_from
from pipeline.params.resolve import resolve
from pipeline.params.rules import check_rules

CLIENTS = ("Köln Süd", "Graz", "Bern 2")


def table(rows: int = 300, seed: int = 0) -> pd.DataFrame:
    """Numbers, texts, missing values, a constant column; the label follows from them, but not in Graz."""
    random = np.random.default_rng(seed)
    place, age = random.choice(CLIENTS, rows), random.integers(18, 90, rows).astype(float)
    job = random.choice(["clerk", "self-employed", "none"], rows)
    score = 0.05 * (age - 50) + 1.5 * (job == "none") + random.normal(0, 0.3, rows)
    label = np.where(score > 0.4, "ja", "nein")
    label = np.where(place == "Graz", random.choice(["ja", "nein"], rows), label)
    age[random.random(rows) < 0.1] = np.nan
    return pd.DataFrame(
        {
            "place": place,
            "age": age,
            "job": pd.Series(job).where(random.random(rows) > 0.1),
            "country": "DE",
            "person": random.integers(0, rows // 2, rows),
            "score": score,
            "label": label,
        }
    )


def folder(path: Path, each: int = 12, sizes: tuple[tuple[int, int], ...] = ((16, 16), (16, 12))) -> Path:
    """Bright or dark images of mixed sizes for each client, in classes whose names hold a space and an umlaut."""
    random = np.random.default_rng(0)
    for client in CLIENTS:
        for i in range(each):
            label = "große Zelle" if i % 2 else "leer"
            place = path / "clients" / client / label
            place.mkdir(parents=True, exist_ok=True)
            size = sizes[i % len(sizes)]
            pixels = random.integers(0, 100, size) + (120 if i % 2 else 0)
            Image.fromarray(pixels.astype(np.uint8)).save(place / f"{i}.png")
    return path


def settings(**keys: Any) -> Params:
    """As from a params.yaml with these dotted keys."""
    tree: dict[str, Any] = {}
    for name, value in keys.items():
        place = tree
        *rooms, last = name.split("__")
        for room in rooms:
            place = place.setdefault(room, {})
        place[last] = value
    params = params_from(tree, "params.yaml")
    check_rules(params)
    return params


def made(scratch: Path, **keys: Any) -> tuple[Params, RawDataset, Partition]:
    """Read, written, read back and dealt."""
    params = settings(**keys)
    prepare(params.data.name, scratch / "raw", settings=params.data)
    raw = load(scratch / "raw").first(params.subset)
    params = resolve(params, raw.info)
    return params, raw, partition_of(raw, params.data, params.partition, params.seed)


CPU = torch.device("cpu")
__all__ = ["CLIENTS", "CPU", "folder", "made", "override", "settings", "table"]
