"""Small federations for `fit`: arrays, frames and images."""

from __future__ import annotations

import numpy as np
import pandas as pd

import fedbilevel as fb

RULE = np.random.default_rng(0).normal(size=(6, 3))


def samples(seed: int, m: int, *, bad: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Three classes that a linear network can tell apart; bad: labels at random."""
    random = np.random.default_rng(seed)
    X = random.normal(size=(m, 6))
    return X, random.integers(0, 3, m) if bad else (X @ RULE).argmax(1)


def hospitals(bad: str = "Lyon") -> dict[str, tuple[np.ndarray, np.ndarray]]:
    return {name: samples(i, 60, bad=name == bad) for i, name in enumerate(["Ulm", "Lyon", "Graz", "Köln"])}


def fitted(**settings) -> fb.Fit:
    chosen = {"validation": samples(10, 40), "test": samples(11, 200), "rounds": 60, "progress": False} | settings
    return fb.fit(chosen.pop("clients", hospitals()), **chosen)


def frames(pair: tuple[np.ndarray, np.ndarray], **changes: object) -> tuple[pd.DataFrame, np.ndarray]:
    return pd.DataFrame(pair[0], columns=[f"x{i}" for i in range(6)]).assign(**changes), pair[1]


def in_frames(**changes: object) -> dict[str, object]:
    """Arguments of `fit`; the changes are Lyon's."""
    clients = {name: frames(pair, **(changes if name == "Lyon" else {})) for name, pair in hospitals().items()}
    return {"clients": clients, "validation": frames(samples(10, 40)), "test": frames(samples(11, 50)), "rounds": 3}


def pictures(seed: int, m: int = 20, kind: type = np.uint8) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    y = random.integers(0, 2, m)
    return (random.integers(0, 100, (m, 6, 6)) + 120 * y[:, None, None]).astype(kind), y
