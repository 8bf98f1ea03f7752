"""What a round of the train stage costs over a bare loop with the same mathematics, over a per-client loop, and over
the time of its floating-point operations alone.

Digits, lead partition (10 clients x 32), LeNet-5, full participation. The train stage has everything on: Lightning,
sampling from counter-based streams, history, saves, a live MLflow run in a temporary store (where MLflow is at hand).
What the tracker's thread does in the background, above all opening the run in the first rounds, is given by itself: on
two cores it goes beside the training. The bare loop has the four derivative passes, plain torch sampling and plain
steps, nothing else. The floor is the operations of the products and convolutions that a round needs (`flops`), at the
rate a 2048 x 2048 float32 product reaches on the same machine and threads. All run in turn, several times; the quoted
figure is the median of the paired ratios, because the machine's speed drifts.
"""

from __future__ import annotations

import statistics
import tempfile
from dataclasses import replace
from pathlib import Path

import torch
import torch.autograd.forward_ad as forward_ad
import torch.nn.functional as F
from torch import Tensor
from torch.func import jvp, vjp
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.timing import Stopwatch, case, clock, device, digits, matmul_rate, median_ratio
from pipeline import projections
from pipeline.config.sections import Tracking
from pipeline.config.spec import dotted
from pipeline.params import Params
from pipeline.problems.client_weighting import ClientWeighting
from pipeline.report.record import describe
from pipeline.tracking.live import live_run
from pipeline.training.resume import ResumeFolder
from pipeline.training.run import train
from pipeline.training.tasks import image_task

ROUNDS, FIRST, REPETITIONS = 60, 10, 5
LOOP_ROUNDS = 20


def measure() -> dict[str, float]:
    """Milliseconds per round (medians) and the median ratios."""
    params, problem = case(digits(), {"train.rounds": ROUNDS})
    per_client = replace(params, train=replace(params.train, backend="loop", rounds=LOOP_ROUNDS))
    assert isinstance(problem, ClientWeighting)
    batch = int(params.federation.batch_size)
    flops = BareLoop(problem, batch).flops()
    stage, bare, loop, floor, background = [], [], [], [], []
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        for repetition in range(REPETITIONS + 1):
            watch = timed(params, problem, root / f"run{repetition}")
            found = (
                watch.per_round(FIRST),
                BareLoop(problem, batch).seconds_per_round(ROUNDS),
                timed(per_client, problem, root / f"loop{repetition}").per_round(FIRST),
                flops / matmul_rate(),
                watch.others_per_round(FIRST),
            )
            if repetition:  # the first warms up
                for kept, seconds in zip((stage, bare, loop, floor, background), found, strict=True):
                    kept.append(seconds)
    return {
        "stage_ms": 1e3 * statistics.median(stage),
        "bare_fused_loop_ms": 1e3 * statistics.median(bare),
        "per_client_loop_ms": 1e3 * statistics.median(loop),
        "floor_ms": 1e3 * statistics.median(floor),
        "background_ms": 1e3 * statistics.median(background),
        "stage_over_bare": median_ratio(stage, bare),
        "stage_over_per_client": median_ratio(stage, loop),
        "floor_share": median_ratio(floor, stage),
        "gflop_per_round": flops / 1e9,
        "matmul_gflop_per_s": flops / statistics.median(floor) / 1e9,
    }


def timed(params: Params, problem: ClientWeighting, root: Path) -> Stopwatch:
    """The train stage with a watch on it."""
    record, watch = describe(dotted(params), "data", "partition", str(device())), Stopwatch()
    with (
        ResumeFolder(root, "run") as folder,
        live_run(Tracking(uri=f"sqlite:///{root}/mlflow.db"), root, record, folder.note("run.json")) as live,
    ):
        train(params, image_task(problem), folder, on_rows=live.report, callbacks=(watch,), progress=False)
    return watch


class BareLoop:
    """The same four passes and three steps, written out."""

    def __init__(self, problem: ClientWeighting, batch: int) -> None:
        data = problem.data
        self.data, self.model, self.batch = data, problem.model, batch
        self.generator = torch.Generator(data.device).manual_seed(0)
        self.w = problem.initial(0)
        self.lam, self.x = torch.zeros_like(self.w), torch.full_like(data.oracle_weights, 1 / data.clients)
        self.clients, self.top = torch.arange(data.clients, device=data.device), int(data.sizes.min())

    def seconds_per_round(self, rounds: int) -> float:
        """From round FIRST on."""
        for t in range(rounds):
            if t == FIRST:
                start = clock()
            self.round()
        return (clock() - start) / (rounds - FIRST)

    def flops(self) -> int:
        """Floating-point operations of the products and convolutions that one round needs.

        In units of a layer's forward pass, on the clients' samples: value 1, tangent 2 (of its input and of its
        weights), gradient 2 (by both), tangent of the gradient 4; gradient with inner products 1 + 2 + 2, product
        1 + 2 + 2 + 4. Nothing differentiates by the images, so the first layer needs 1 + 1 + 1 and 1 + 1 + 1 + 1. On
        the server's samples 1 + 2, the first layer 1 + 1. (Torch's count of a round has three products more in the
        first layer, with tangents that are zero.)
        """
        first, others = self._forward(self.data.clients * self.batch)
        server_first, server_others = self._forward(len(self.data.validation_labels))
        return 7 * first + 14 * others + 2 * server_first + 3 * server_others

    def _forward(self, samples: int) -> tuple[int, int]:
        """Operations of the first layer's forward pass, and of all others'."""
        with FlopCounterMode(display=False) as counter:
            self.model.module_with(self.w)(self.data.scaled(self.data.images[:1]).expand(samples, -1, -1, -1))
        counts = [sum(found.values()) for name, found in counter.get_flop_counts().items() if "." in name]
        layers = [count for count in counts if count]
        return layers[0], sum(layers[1:])

    def round(self) -> None:
        w, lam, x, batch_g, batch_h = self.w, self.lam, self.x, self._draw(), self._draw()
        X_0, y_0 = self.data.validation_batch()
        v = w.detach().requires_grad_()
        with forward_ad.dual_level():
            primal, inner = forward_ad.unpack_dual(self._losses(forward_ad.make_dual(v, lam), *batch_g))
            g_x = inner.detach().clone()
        sum_g = torch.autograd.grad(x @ primal, v)[0]
        g_0 = torch.autograd.grad(F.cross_entropy(self.model.apply(v, X_0), y_0), v)[0]
        with torch.no_grad():

            def gradient(u: Tensor) -> Tensor:
                return vjp(lambda z: self._losses(z, *batch_h), u)[1](x)[0]

            sum_h = jvp(gradient, (w,), (lam,))[1]
            self.w = w - 0.1 * (g_0 + sum_h + 2.0 * sum_g)
            self.lam = projections.ball(lam + 0.1 * sum_g, 5.0)
            self.x = projections.simplex(x - 0.01 * g_x)

    def _draw(self) -> tuple[Tensor, Tensor]:
        shape, device = (self.data.clients, self.batch), self.data.device
        return self.data.batch(self.clients, torch.randint(self.top, shape, generator=self.generator, device=device))

    def _losses(self, v: Tensor, X: Tensor, y: Tensor) -> Tensor:
        logits = self.model.apply(v, X.flatten(0, 1))
        return F.cross_entropy(logits, y.flatten(), reduction="none").view(y.shape).mean(1)
