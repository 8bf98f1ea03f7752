"""One run of one method on one federation, without Lightning, and what came of it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from experiments.results import Row
from experiments.trust.record import Federation
from pipeline.config.spec import override
from pipeline.errors import UserError, not_allowed
from pipeline.methods import ALGORITHMS
from pipeline.methods.base import Participation
from pipeline.methods.registry import family, fitting
from pipeline.params import Algorithms
from pipeline.problems.client_weighting import ClientWeighting
from pipeline.problems.general_weighting import GeneralImageWeighting
from pipeline.problems.images import logits
from pipeline.sharing import Share
from pipeline.training.best import Best
from pipeline.training.loop import Loop, NotFinite

METHODS = tuple(name for name in fitting("client_weighting") if name != "exact_gradient")
"""All methods for client weighting but the toy's."""


def run(
    federation: Federation,
    algorithm: str,
    rounds: int,
    participation: float = 1.0,
    seed: int = 0,
    batch_size: int = 32,
    every: int | None = None,
    **options: Any,
) -> Row:
    """Train, and measure what the server ends with.

    every: rounds between evaluations; none = 25, above 400 rounds 50. options: hyper-parameters of the method that
    differ from the defaults, by dotted name. Raises UserError for a method or option that does not exist.

    | in the row | what |
    |---|---|
    | accuracy, selection | of the served model (`pipeline.training.best`), on the test and the selection set |
    | served | the round it is from; the last one, unless the selection accuracy had fallen |
    | best | the highest test accuracy of all evaluations |
    | curve | test accuracy at each evaluation |
    | auc, bad_weight, worst_bad | `trust`; left out where they make no sense |
    | weights | of the clients, [N] |
    | measures | what the method reports of itself, after the last round |
    | seconds | of training, evaluations aside |
    | failed | where and how it diverged, if it did; accuracy, selection and best are then 0, weights equal |
    """
    weighting = ClientWeighting(federation.model(), federation.data())
    loop = start(weighting, algorithm, rounds, participation, seed, batch_size, **options)
    problem = loop.context.oracle.problem
    data = problem.data
    every = every or (25 if rounds <= 400 else 50)

    def selected(variables: Mapping[str, Tensor]) -> float:
        return share_right(problem, variables, data.selection_images, data.selection_labels)

    curve, best, seconds = [], Best(), 0.0
    try:
        while loop.round < rounds:
            begun = time.perf_counter()
            for _ in range(min(every, rounds - loop.round)):
                loop.step()
            seconds += time.perf_counter() - begun
            curve.append(share_right(problem, loop.state.variables, data.test_images, data.test_labels))
            best.see(loop.round, selected(loop.state.variables), loop.state.variables)
    except NotFinite as error:
        failed = str(error).split(" Fix:")[0]
        equal = np.full(len(federation.clients), 1 / len(federation.clients))
        nothing = {"accuracy": 0.0, "selection": 0.0, "best": 0.0, "curve": [*curve, 0.0]}
        return (
            nothing
            | trust(equal, federation.clean, federation.bad)
            | {"weights": _short(equal), "seconds": seconds, "failed": failed}
        )
    served = best.served(loop.round, loop.state.variables)
    variables = served.variables
    weights = problem.client_weights(variables).double().numpy()
    measures = {name: float(report(variables)) for name, report in loop.algorithm.reports.items()}
    return {
        "accuracy": share_right(problem, variables, data.test_images, data.test_labels),
        "selection": selected(variables),
        "served": served.round,
        "best": max(curve),
        "curve": [round(value, 4) for value in curve],
        **trust(weights, federation.clean, federation.bad),
        "weights": _short(weights),
        "measures": measures | loop.measured,
        "seconds": round(seconds, 3),
    }


def start(
    weighting: ClientWeighting,
    algorithm: str,
    rounds: int,
    participation: float = 1.0,
    seed: int = 0,
    batch_size: int = 32,
    **options: Any,
) -> Loop:
    """The run before its first round."""
    if algorithm not in METHODS:
        raise not_allowed("algorithm", algorithm, f"one of {', '.join(METHODS)}", "name one of them")
    try:
        hyper = override(getattr(Algorithms(), algorithm), options)
    except KeyError as error:
        raise UserError(f"{algorithm}: {error.args[0]}. Fix: rename or remove it.") from None
    problem = weighting if family(algorithm) in ("weighting", "averaging") else GeneralImageWeighting(weighting)
    method = ALGORITHMS[algorithm]
    context = method.context(
        oracle=method.context.oracle_for(problem, "fused", Share()),
        hyper=hyper,
        federation=Participation("bernoulli", participation, batch_size),
        seed=seed,
    )
    return Loop(method, context, rounds)


def share_right(problem: Any, variables: Mapping[str, Tensor], images: Tensor, labels: Tensor) -> float:
    """Accuracy in [0, 1] on images as stored."""
    scores = logits(problem.model, problem.data, problem.network(variables), images)
    return float((scores.argmax(1) == labels).double().mean())


def trust(weights: np.ndarray, clean: np.ndarray, bad: np.ndarray) -> dict[str, float]:
    """auc: the chance that a clean client holds more than a bad one, ties half. bad_weight: what the bad ones hold
    together. worst_bad: the largest weight of one. Left out: all of them where no client is bad, the auc where none is
    clean.

    weights, clean, bad: [N].
    """
    good, ill = weights[clean], weights[bad]
    if not len(ill):
        return {}
    found = {"bad_weight": float(ill.sum()), "worst_bad": float(ill.max())}
    if len(good):
        found["auc"] = float(0.5 + 0.5 * np.sign(good[:, None] - ill).mean())
    return found


def _short(weights: np.ndarray) -> list[float]:
    return [round(value, 6) for value in weights.tolist()]
