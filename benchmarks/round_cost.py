"""What a round of the train stage costs over a bare loop with the same mathematics, and over a per-client loop.

Digits, lead partition (10 clients x 32), LeNet-5, full participation. The train stage has everything on: Lightning,
sampling from counter-based streams, history, saves, a live MLflow run in a temporary store. The bare loop has the
four derivative passes, plain torch sampling and plain steps, nothing else. Both run in turn, several times; the quoted
figure is the median of the paired ratios, because the machine's speed drifts.
"""

from __future__ import annotations

import csv
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch
import torch.autograd.forward_ad as forward_ad
import torch.nn.functional as F
from torch import Tensor
from torch.func import jvp, vjp

from pipeline import projections
from pipeline.data.catalog import resolve
from pipeline.data.datasets import load, prepare
from pipeline.data.partition import make_partition
from pipeline.params import Params, Tracking
from pipeline.params.loading import dotted
from pipeline.problems.client_weighting import ClientWeighting
from pipeline.tracking.session import describe, live_run
from pipeline.training.resume import ResumeFolder
from pipeline.training.run import train
from pipeline.training.setup import build_problem
from pipeline.training.tasks import image_task

ROUNDS, FIRST, REPETITIONS = 60, 10, 5
LOOP_ROUNDS = 20


def measure() -> dict[str, float]:
    """Milliseconds per round (medians) and the median ratios."""
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        params = resolve(Params())
        settings = replace(params.train, rounds=ROUNDS, eval_every=10**6, accelerator="cpu")
        params = replace(params, train=settings)
        prepare("digits", root / "raw")
        raw = load(root / "raw")
        partition = make_partition(raw.train_labels, "digits", 10, params.partition, seed=0)
        problem = build_problem(params, raw, partition, torch.device("cpu"))
        stage_times, bare_times, loop_times = [], [], []
        for repetition in range(REPETITIONS + 1):
            stage = seconds_per_round(params, problem, root / f"run{repetition}", ROUNDS)
            bare = _bare_loop(problem, int(params.federation.batch_size), ROUNDS)
            per_client = replace(params, train=replace(settings, backend="loop", rounds=LOOP_ROUNDS))
            loop = seconds_per_round(per_client, problem, root / f"loop{repetition}", LOOP_ROUNDS)
            if repetition:  # the first warms up
                stage_times.append(stage)
                bare_times.append(bare)
                loop_times.append(loop)
    return {
        "stage_ms": 1e3 * statistics.median(stage_times),
        "bare_fused_loop_ms": 1e3 * statistics.median(bare_times),
        "per_client_loop_ms": 1e3 * statistics.median(loop_times),
        "stage_over_bare": _ratio(stage_times, bare_times),
        "stage_over_per_client": _ratio(stage_times, loop_times),
    }


def _ratio(a: list[float], b: list[float]) -> float:
    return statistics.median(x / y for x, y in zip(a, b, strict=True))


def seconds_per_round(params: Params, problem: ClientWeighting, root: Path, rounds: int) -> float:
    """Seconds per round between round FIRST and the last but one, from the run's own history."""
    record = describe(dotted(params), "data", "partition", "cpu")
    with (
        ResumeFolder(root, "run") as folder,
        live_run(Tracking(uri=f"sqlite:///{root}/mlflow.db"), root, record, folder.note("run.json")) as live,
    ):
        _, history = train(params, image_task(problem), folder, on_rows=live.report, progress=False)
        history.export(root)
    with (root / "history.csv").open(newline="") as file:
        seconds = [float(row["seconds"]) for row in csv.DictReader(file)]
    return (seconds[rounds - 1] - seconds[FIRST]) / (rounds - 1 - FIRST)


def _bare_loop(problem: ClientWeighting, batch: int, rounds: int) -> float:
    """Seconds per round of the same four passes and three steps, written out."""
    data, model = problem.data, problem.model
    generator = torch.Generator().manual_seed(0)
    w, x = problem.initial(0), torch.full((data.clients,), 1 / data.clients)
    lam = torch.zeros_like(w)
    clients, top = torch.arange(data.clients), int(data.sizes.min())
    X_0, y_0 = data.validation_batch()

    def draw() -> tuple[Tensor, Tensor]:
        return data.batch(clients, torch.randint(top, (data.clients, batch), generator=generator))

    def losses(v: Tensor, X: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model.apply(v, X.flatten(0, 1)), y.flatten(), reduction="none").view(y.shape).mean(1)

    start = 0.0
    for t in range(rounds):
        if t == FIRST:
            start = time.perf_counter()
        batch_g, batch_h = draw(), draw()
        v = w.detach().requires_grad_()
        with forward_ad.dual_level():
            primal, inner = forward_ad.unpack_dual(losses(forward_ad.make_dual(v, lam), *batch_g))
            g_x = inner.detach().clone()
        sum_g = torch.autograd.grad(x @ primal, v)[0]
        g_0 = torch.autograd.grad(F.cross_entropy(model.apply(v, X_0), y_0), v)[0]
        with torch.no_grad():

            def gradient(u: Tensor) -> Tensor:
                return vjp(lambda z: losses(z, *batch_h), u)[1](x)[0]  # noqa: B023 - used at once

            sum_h = jvp(gradient, (w,), (lam,))[1]
            w = w - 0.1 * (g_0 + sum_h + 2.0 * sum_g)
            lam = projections.ball(lam + 0.1 * sum_g, 5.0)
            x = projections.simplex(x - 0.01 * g_x)
    return (time.perf_counter() - start) / (rounds - FIRST)
