"""What it costs in test accuracy that sites round, clip or blur their answers.

primal_dual, a linear model, 50 rounds, four sites in this process; scikit-learn's breast cancer and digits, dealt
evenly. Of each site's rows a twentieth are the server's validation set and a quarter its test set. The mean over seeds.
"""

from __future__ import annotations

import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pipeline.config.spec import override
from pipeline.federation import problems
from pipeline.federation.hospital import site_of
from pipeline.federation.hub import Hub
from pipeline.federation.rounds import remote
from pipeline.federation.samples import ServerSamples
from pipeline.federation.server import Sites
from pipeline.federation.settings import PrivacySettings, Server, SiteData, SiteSettings
from pipeline.federation.transports import InProcess
from pipeline.params import Params
from pipeline.training.evaluation import outcome
from pipeline.training.loop import Loop

REPETITIONS = 3
ROUNDS, SITES = 50, 4
READER = "pipeline.federation.readers.npz_file"


@dataclass(frozen=True)
class Answers:
    """How they leave a site."""

    payload: Any = "exact"
    clip: float | None = None
    noise: float = 0.0


KINDS = {
    "exact": Answers(),
    "bfloat16": Answers("bfloat16"),
    "clipped": Answers(clip=1.0),
    **{f"noise_{noise:g}": Answers(clip=1.0, noise=noise) for noise in (0.3, 1.0, 3.0, 10.0)},
}


def measure() -> dict[str, float]:
    """Test accuracy of each data set and kind of answer, and the epsilon spent."""
    from sklearn import datasets

    found: dict[str, float] = {}
    for name, held in (("cancer", datasets.load_breast_cancer()), ("digits", datasets.load_digits())):
        groups = np.random.default_rng(0).permutation(np.arange(len(held.target)) % SITES)
        found |= {f"{name}_{key}": value for key, value in costs(held.data, held.target, groups).items()}
    return found


def costs(X: np.ndarray, y: np.ndarray, groups: np.ndarray) -> dict[str, float]:
    """groups: whose each row is."""
    found: dict[str, float] = {}
    for kind, answers in KINDS.items():
        runs = [_run(X, y, groups, answers, seed) for seed in range(REPETITIONS)]
        found[f"{kind}_accuracy"] = statistics.mean(accuracy for accuracy, _ in runs)
        if runs[0][1] is not None:
            found[f"{kind}_epsilon"] = runs[0][1]
    return found


def _run(X: np.ndarray, y: np.ndarray, groups: np.ndarray, answers: Answers, seed: int) -> tuple[float, float | None]:
    """(test accuracy, the largest epsilon that a site has spent)"""
    names, classes, rng = [str(name) for name in np.unique(groups)], int(y.max()) + 1, np.random.default_rng(seed)
    validation, test, there, sizes = [], [], {}, []
    with tempfile.TemporaryDirectory() as scratch:
        for name in names:
            rows = rng.permutation(np.flatnonzero(groups.astype(str) == name))
            apart, tested = max(6, len(rows) // 20), len(rows) // 4
            validation.append(rows[:apart])
            test.append(rows[apart : apart + tested])
            own = rows[apart + tested :]
            sizes.append(len(own))
            np.savez(Path(scratch) / f"{name}.npz", X=X[own].astype(np.float32), y=y[own])
            data = SiteData(reader=READER, path=f"{name}.npz")
            privacy = PrivacySettings(clip=answers.clip, noise=answers.noise)
            settings = SiteSettings(name=name, data=data, privacy=privacy, store=f"store {name}")
            there[name] = site_of(settings, Path(scratch)).answer
        held = [(X[rows].astype(np.float32), y[rows]) for rows in map(np.concatenate, (validation, test))]
        chosen = {"model.name": "linear", "train.rounds": ROUNDS, "train.accelerator": "cpu", "seed": seed}
        params = problems.settled(override(Params(), chosen), sum(sizes), X.shape[1], 1, classes)
        settings_ = Server(sites=names, classes=classes, payload=answers.payload)
        sites = Sites(settings_, ServerSamples(held[0], held[1], None, []), ())
        members = {name: [number] for number, name in enumerate(names)}
        floats = torch.bfloat16 if answers.payload == "bfloat16" else None
        hub = sites.hub = Hub(InProcess(there), members, needed=len(names), welcome=sites.welcome, floats=floats)
        at_server = problems.server_data(held[0], held[1], None, classes, sizes, hub.dtype)
        problem = problems.problem_of(params, at_server)
        sites.begin(params, at_server)
        loop = Loop(*remote(params.method, problems.context_of(params, problem), hub), ROUNDS)
        for _ in range(ROUNDS):
            loop.step()
    spent = [each["epsilon"] for each in hub.privacy.values() if each["epsilon"] is not None]
    tested_: Any = outcome(problem, loop.state.variables).test
    return float(tested_.accuracy), max(spent, default=None)
