"""How far a run's client weights depend on chance: further runs of the same method on other random draws.

Replicate b = 1, ..., R differs from the run in what it draws, each draw a pure function of (seed, "replicate", b):

| drawn again | how |
|---|---|
| initial model, minibatches, active clients | by another seed |
| the server's validation set | with replacement, as many samples as before: how many of each label is drawn too |

The clients and their samples, the selection set and all settings stay. A replicate picks its model as the run does
(`pipeline.training.best`), and its weights are what is kept of it: no record, no saves, one process. The interval that
R replicates make of a weight, and what it covers, is `pipeline.training.evaluation.weight_interval`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from pipeline.params import Resolved
from pipeline.problems.client_weighting import ClientWeighting
from pipeline.problems.general_weighting import GeneralImageWeighting
from pipeline.seeds import key, numpy_generator
from pipeline.sharing import Share
from pipeline.training import saves
from pipeline.training.best import Best
from pipeline.training.evaluation import selected
from pipeline.training.loop import Loop, NotFinite, evaluates
from pipeline.training.resume import ResumeFolder
from pipeline.training.setup import build_context

Weighting = ClientWeighting | GeneralImageWeighting


def replicate_weights(
    params: Resolved, problem: Weighting, folder: ResumeFolder, beat: Callable[[], None] = lambda: None
) -> np.ndarray:
    """The client weights of `train.replicates` further runs, [R, N]; those that the folder holds already are not run
    again. beat: called after every round.

    Raises NotFinite (a UserError) when a replicate diverges; the run itself can then still be resumed.
    """
    count = params.train.replicates
    found = np.zeros((count, problem.clients))
    for b in range(1, count + 1):
        note = folder.note(f"replicate-{b}.npy")
        stored = _stored(note, problem.clients)
        if stored is None:
            try:
                stored = replicate(params, problem, b, beat)
            except NotFinite as error:
                raise NotFinite(
                    f"replicate {b} of {count}: {error} Or set train.replicates: 0, which keeps the finished run."
                ) from None
            saves.write(note, partial(np.save, arr=stored))
            print(f"train: replicate {b} of {count} is done", file=sys.stderr)
        found[b - 1] = stored
    return found


def replicate(params: Resolved, problem: Weighting, b: int, beat: Callable[[], None] = lambda: None) -> np.ndarray:
    """The client weights of the b-th further run, [N]."""
    problem = with_validation(problem, resampled(len(problem.data.validation_labels), params.seed, b))
    params = replace(params, seed=key(params.seed, "replicate", b))
    loop = Loop(params.method, build_context(params, problem, Share()), params.train.rounds)
    best = Best()
    for t in range(loop.rounds + 1):
        if t:
            loop.step()
            beat()
        if evaluates(loop, params.train.eval_every):
            best.see(t, selected(problem, loop.state.variables), loop.state.variables)
    weights = problem.client_weights(best.served(loop.round, loop.state.variables).variables)
    assert weights is not None
    return weights.double().cpu().numpy()


def resampled(size: int, seed: int, b: int) -> np.ndarray:
    """Positions in the b-th resampled validation set, [size]: as many as it has samples, drawn with replacement.

    Resampling within each label would leave out that another set has another share of each: with clients of unequal
    labels that is the larger part of a weight's spread (`experiments/trust/coverage.py`, digits-5of8, clean clients:
    deviations of .18, .11 and .16 equal shares over redraws, of .16, .13 and .17 by this; within labels they were .09,
    .07 and .08)."""
    return numpy_generator(seed, "replicate", b).integers(0, size, size)


def with_validation(problem: Weighting, positions: np.ndarray) -> Weighting:
    """The same problem whose server holds those of its validation samples, [V] positions."""
    if isinstance(problem, GeneralImageWeighting):
        inner = with_validation(problem.problem, positions)
        assert isinstance(inner, ClientWeighting)
        return replace(problem, problem=inner)
    data = problem.data
    X, y = data.validation_batch(torch.as_tensor(positions, device=data.device))
    return replace(problem, data=replace(data, validation_images=X, validation_labels=y))


def _stored(path: Path, clients: int) -> np.ndarray | None:
    """A finished replicate's weights; None if there is nothing, or something damaged."""
    if not path.exists():
        return None
    try:
        saves.check(path)
        weights: np.ndarray = np.load(path)
        return weights if weights.shape == (clients,) else None
    except (saves.Damaged, ValueError) as error:
        print(f"train: {error}; that replicate runs again", file=sys.stderr)
        return None
