"""How many rounds SimFBO needs for what the others reach; and what unequal local steps do to SimFBO and ShroFBO, on a
problem that is solved by hand.

The specification's Example B: two clients with equal weights and scalars x, y,

    g_i = h_i / 2 (y - b_i x - c_i)^2,    f_i = 1/2 (y - d_i)^2 + 1/2 x^2,
    h = (1, 3), b = (1, 2), c = (2, 0), d = (0, 2),

of which the first takes one local step and the second three. Exact gradients, both active. With p = (1/2, 1/2) the
stationary point is (x, y, v) = (14, 57, -4) / 65 and with SimFBO's weights (1/4, 3/4) it is (0.5358, 1.2180, -0.1128).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from experiments.report import Row, curves, save_picture
from experiments.study import Study
from pipeline.methods import ALGORITHMS, Participation
from pipeline.methods.base import advance
from pipeline.methods.bilevel.common.bilevel_context import BilevelContext
from pipeline.methods.bilevel.simfbo import ShroFbo, SimFbo
from pipeline.oracles.bilevel import BilevelOracle
from pipeline.report.figures import canvas_style, new_figure

H, B, C, D = torch.tensor([[1, 3], [1, 2], [2, 0], [0, 2]], dtype=torch.float64)[..., None]
STEPS = [1, 3]
SIZES = (0.0, 0.00625, 0.0125, 0.025, 0.05)
SERVER_STEP, ROUNDS = 0.05, 2000


@dataclass(frozen=True)
class ExampleB:
    """The problem, as the library's methods want it."""

    clients: int = 2
    upper_dimension: int = 1
    lower_dimension: int = 1
    local_lower: bool = False

    @property
    def client_probabilities(self) -> Tensor:
        return torch.full((2,), 0.5, dtype=torch.float64)

    def client_weights(self, variables: object) -> None:
        return None

    def initial_upper(self, seed: int) -> Tensor:
        return torch.zeros(1, dtype=torch.float64)

    initial_lower = initial_upper

    def project_upper(self, x: Tensor) -> Tensor:
        return x

    def draw_upper(self, stream: int, clients: Tensor, size: int) -> tuple[Tensor]:
        return (clients,)

    draw_lower = draw_upper

    def upper_losses(self, X: Tensor, Y: Tensor, batch: tuple[Tensor]) -> Tensor:
        (i,) = batch
        return ((Y - D[i]).square() + X.square()).sum(1) / 2

    def lower_losses(self, X: Tensor, Y: Tensor, batch: tuple[Tensor]) -> Tensor:
        (i,) = batch
        return (H[i] * (Y - B[i] * X - C[i]).square()).sum(1) / 2

    def select(self, batch: tuple[Tensor], i: int) -> tuple[Tensor]:
        return (batch[0][i : i + 1],)


def stationary(p: Sequence[float]) -> Tensor:
    """(x, y, v) with the lower and upper losses weighted by p: y = s x + t with s = sum p h b / sum p h and t likewise
    of c; v = (y - sum p d) / sum p h; x + (sum p h b) v = 0."""
    weights = torch.tensor(p, dtype=torch.float64)
    h, hb, hc, d = (float(weights @ values[:, 0]) for values in (H, H * B, H * C, D))
    x = -(hb / h) * (hc / h - d) / (1 + (hb / h) ** 2)
    y = (hb * x + hc) / h
    return torch.tensor([x, y, (y - d) / h], dtype=torch.float64)


def limit(method: str, client_step: float) -> Tensor:
    """Where the method ends."""
    record = {"simfbo": SimFbo, "shrofbo": ShroFbo}[method]
    sizes: dict[str, Any] = {f"gamma_{u}": SERVER_STEP for u in "xyv"} | {f"eta_{u}": client_step for u in "xyv"}
    hyper = record(local_steps=STEPS, adjoint_radius=1e6, schedule="constant", **sizes)
    context = BilevelContext(BilevelOracle(ExampleB()), hyper, Participation("bernoulli", 1.0, batch_size=1), 0)  # type: ignore[arg-type]
    algorithm = ALGORITHMS[method]
    state = algorithm.init(context)

    def move(name: str, direction: Tensor) -> None:
        state.variables[name].sub_(SERVER_STEP * direction)

    for t in range(1, ROUNDS + 1):
        advance(algorithm, state, replace(context, round=t, step_sizes=algorithm.step_sizes(hyper)), move)
    return torch.cat([state.variables[u] for u in "xyv"])


def sections(study: Study) -> list[str]:
    """For the page, beside the runs' own tables."""
    part = "hyper_representation"
    rows = curves(list(study.table(part)), study.results, study.parts[part])
    return [*rounds_needed(rows), *unequal_steps(study.page)]


def rounds_needed(rows: Iterable[Row]) -> list[str]:
    """SimFBO's communication rounds over a baseline's, for whatever test accuracy the baseline has reached: the largest
    of all its evaluations, and of all but the first, since SimFBO's own are too far apart to see how early it was."""
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for row in rows:
        found.setdefault((row["panel"], row["method"]), []).append((row["communication_rounds"], row["test_accuracy"]))
    lines = []
    for (panel, method), curve in found.items():
        ours = found.get((panel, "SimFBO" + ", searched" * method.endswith("searched")))
        if ours and not method.startswith("SimFBO"):
            shares = shares_of_rounds(ours, curve)
            lines.append(f"| {panel} | {method} | {_share(*shares)} | {_share(*shares[1:])} |")
    if not lines:
        return []
    head = "| data | against | at most, of its rounds | from its second evaluation on |\n|--|--|--|--|\n"
    return [
        "## Rounds to the same test accuracy",
        "SimFBO's communication rounds over a method's, at every test accuracy which that method reaches.",
        head + "\n".join(lines),
    ]


def shares_of_rounds(ours: Sequence[tuple[float, float]], theirs: Sequence[tuple[float, float]]) -> list[float]:
    """For each evaluation (rounds, accuracy) of theirs that is better than all before it and than ours at the start:
    our rounds to that accuracy over theirs; infinite if we never reach it."""
    found, best = [], ours[0][1]
    for spent, accuracy in theirs:
        if spent and accuracy > best:
            best = accuracy
            found.append(next((t for t, value in ours if value >= accuracy), float("inf")) / spent)
    return found


def _share(*values: float) -> str:
    """The largest; nothing if there is none."""
    largest = max(values, default=None)
    return "" if largest is None else "never reached" if largest == float("inf") else f"{largest:.2f}"


def unequal_steps(out: Path) -> list[str]:
    """A table and a figure of the distance to the stationary point against the clients' step."""
    truth, reweighted = stationary([0.5, 0.5]), stationary([0.25, 0.75])
    limits = {(method, size): limit(method, size) for method in ("simfbo", "shrofbo") for size in SIZES}
    found = {pair: float((point - truth).norm()) for pair, point in limits.items()}
    own = {size: float((limits["simfbo", size] - reweighted).norm()) for size in SIZES}
    between = float((reweighted - truth).norm())
    with canvas_style():
        figure = new_figure(6.4, 4.0)
        panel = figure.subplots()
        for method, label, colour in (("simfbo", "SimFBO", "#0072B2"), ("shrofbo", "ShroFBO", "#D55E00")):
            panel.plot(SIZES, [found[method, size] for size in SIZES], marker="o", color=colour, label=label)
        panel.axhline(between, color="#999999", ls="--", lw=1.2, label="stationary point under SimFBO's weights")
        panel.set(xlabel="client step", ylabel="distance to the stationary point")
        panel.legend(loc="center right", fontsize=9)
        save_picture(figure, out / "drift.png")
    lines = [
        "| client step | ShroFBO to the true point | SimFBO to it | SimFBO to the reweighted point |",
        "|--|--|--|--|",
    ]
    lines += [
        f"| {size:g} | {found['shrofbo', size]:.2e} | {found['simfbo', size]:.4f} | {own[size]:.2e} |" for size in SIZES
    ]
    return [
        "## Unequal local steps, solved by hand",
        "Two clients with quadratic losses, one local step of the first and three of the second (the specification's"
        " Example B, exact gradients). Distance of the limit (x, y, v) to the true stationary point (14, 57, -4)/65:"
        " with client step 0 ShroFBO reaches it and SimFBO that of the losses weighted by local steps, which is"
        f" {between:.4f} away; with a positive step both drift from there in proportion to it.",
        "![Distance to the stationary point against the clients' step](drift.png)",
        "\n".join(lines),
    ]
