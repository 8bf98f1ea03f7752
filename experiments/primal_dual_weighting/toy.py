"""Figures 1 and 2: repetitions of the toy problem, deterministic and noisy, for K inner steps.

All methods get the same constant steps (the specification's trial: Gamma 2, eta_w 0.03, eta_lambda 0.1, eta_x 0.01;
eta_h = eta_w). They aim at the same derivative, but a series cut after K terms is another one and shorter: at K = 1
two to five times too small, so the deterministic setting is run with larger eta_x too. The dual's ball is there in
the noisy settings alone: noise in the Hessians multiplies the dual, and with a radius of 1000 four repetitions of 20
left for good after some 150 rounds (K = 1). "steadied" is the noisy setting with what the library offers against
noise: every method remembers absent clients' answers, and primal_dual's dual is slower (eta_lambda 0.03) and damped
(0.3), found by a few trials on the same repetitions; exact_gradient, lost in that noise, is left out. One cell holds
all repetitions of a method, a K and a setting. The loop is the bare one, without Lightning: a round takes
milliseconds.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import time
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError

from experiments import former, provenance
from experiments.cells import Cell, Result
from experiments.study import Study
from pipeline.config.spec import Section, param
from pipeline.errors import UserError

METHODS = ("exact_gradient", "primal_dual", "rfho", "fednest", "sustain")
SETTINGS = {"deterministic": (1.0, 0.0, "paper"), "noisy": (0.5, 0.5, "paper"), "steadied": (0.5, 0.5, "memory")}
"""Participation, noise level and estimator."""


@dataclass(frozen=True)
class ToySizes(Section):
    """What `more.toy` in a profile of params.yaml may hold."""

    repetitions: int = param(20, "problems drawn, seeds 0, 1, ...", ge=1)
    rounds: int = param(300, "outer iterations", ge=1)
    eval_every: int = param(4, "rounds between measurements", ge=1)
    inner_steps: list[int] = param([1, 5, 10], "K")
    eta_x: list[float] = param([0.01], "step sizes of the weights; the figure shows the smallest")


def sizes(study: Study) -> ToySizes:
    """UserError for what a study cannot hold."""
    try:
        return TypeAdapter(ToySizes).validate_json(json.dumps(study.more.get("toy", {})), strict=True)
    except ValidationError as error:
        lines = [f"{study.profile}.more.toy.{'.'.join(map(str, e['loc']))}: {e['msg'].lower()}" for e in error.errors()]
        raise UserError("\n".join(lines) + ". Fix: see experiments/primal_dual_weighting/toy.py.") from None


def toy_cells(study: Study) -> list[Cell]:
    """One per setting, eta_x, K and method; the noisy settings have the smallest eta_x alone."""
    size = sizes(study)
    cells = []
    for name, eta_x, K, method in itertools.product(SETTINGS, size.eta_x, size.inner_steps, METHODS):
        participation, noise, estimator = SETTINGS[name]
        if (noise and eta_x != min(size.eta_x)) or (name == "steadied" and method == "exact_gradient"):
            continue
        settings = {
            "data.name": "toy",
            "federation.participation": participation,
            "problems.toy.noise": noise,
            "algorithm": method,
            "train.rounds": size.rounds,
            "train.eval_every": size.eval_every,
            f"algorithms.{method}.schedule": "constant",
            f"algorithms.{method}.estimator": estimator,
            f"algorithms.{method}.eta_w": 0.03,
            f"algorithms.{method}.eta_x": eta_x,
        }
        if method == "primal_dual":
            prefix = "algorithms.primal_dual."
            eta_lambda, damping = (0.03, 0.3) if name == "steadied" else (0.1, 0.0)
            settings |= {f"{prefix}gamma": 2.0, f"{prefix}eta_lambda": eta_lambda, f"{prefix}dual_damping": damping}
            settings |= {f"{prefix}clip_norm": 0.0, f"{prefix}dual_radius": 5.0 if noise else 1000.0}
        if method in ("fednest", "sustain"):
            settings[f"algorithms.{method}.eta_h"] = 0.03
        settings[f"algorithms.{method}.{'series_products' if method == 'sustain' else 'inner_steps'}"] = K
        row = f"{method}, K={K}, eta_x={eta_x:g}"
        cells.append(Cell(f"toy/{name}-{size.repetitions}", row, settings))
    return cells


@dataclass(frozen=True)
class Label:
    """What a toy cell is, read from its names."""

    setting: str
    method: str
    K: int
    eta_x: float

    def __str__(self) -> str:
        return f"{self.method}, {self.setting}, K = {self.K}, eta_x {self.eta_x:g}"

    @classmethod
    def of(cls, cell: Cell) -> Label:
        method, K, eta_x = cell.row.split(", ")
        setting = cell.table.split("/")[1].rsplit("-", 1)[0]
        return cls(setting, method, int(K.removeprefix("K=")), float(eta_x.removeprefix("eta_x=")))


def run(cell: Cell, code: str) -> Result:
    """All repetitions of a cell: f_0(w*(x)) and the stationarity at every evaluation, [repetitions, evaluations], with
    nine digits.

    With all clients active, one computation runs all repetitions. With half of the clients active, the repetitions draw
    different ones, so they run one by one.
    """
    from pipeline.methods import ALGORITHMS, Participation
    from pipeline.methods.client_weighting.common.weighting_context import WeightingContext
    from pipeline.oracles import FusedOracle
    from pipeline.problems.toy import Toy

    repetitions = int(cell.table.rsplit("-", 1)[1])
    params = former.parameters(cell.settings)
    algorithm, hyper = ALGORITHMS[params.algorithm], getattr(params.algorithms, params.algorithm)
    federation = Participation("bernoulli", params.federation.participation, 1)
    contexts = []
    for seed in range(repetitions):
        problem = Toy.generate(params.problems.toy.clients, seed, params.problems.toy.noise)
        contexts.append(WeightingContext(FusedOracle(problem), hyper, federation, seed))
    groups = [contexts] if federation.participation >= 1.0 else [[context] for context in contexts]
    start = time.monotonic()
    curves: dict[str, list[list[float]]] = {"upper_value": [], "stationarity": []}
    for group in groups:
        for rows in _curves(algorithm, group, params.train.rounds, params.train.eval_every):
            for name, values in curves.items():
                values.append([float(f"{row[name]:.9g}") for row in rows])
    rounds = list(range(0, params.train.rounds + 1, params.train.eval_every))
    machine = provenance.machine("cpu", code) | {"seconds": round(time.monotonic() - start, 1)}
    return {"cell": dataclasses.asdict(cell), "machine": machine, "round": rounds, **curves}


def _curves(algorithm: Any, contexts: list[Any], rounds: int, every: int) -> list[list[dict[str, float]]]:
    """Of each repetition, what is measured at round 0 and then every so often; infinite once a run has diverged."""
    from pipeline.repetitions import Repetitions

    runs = Repetitions(algorithm, contexts)

    def measured(run: int) -> dict[str, float]:
        if run in runs.broken:
            return {"upper_value": float("inf"), "stationarity": float("inf")}
        return contexts[run].problem.measure(runs.variables(run))

    curves = [[measured(run)] for run in range(len(contexts))]
    for t in range(1, rounds + 1):
        runs.round()
        if t % every == 0:
            for run, curve in enumerate(curves):
                curve.append(measured(run))
    return curves
