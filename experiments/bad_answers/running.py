"""One run, and what came of it."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

from experiments.bad_answers.federations import federation
from experiments.bad_answers.lying import Lying, oracle
from experiments.bad_answers.plan import AnswersRun, settings
from experiments.results import Row
from experiments.trust.running import share_right
from pipeline.config.sections import Screening
from pipeline.config.spec import override
from pipeline.methods import ALGORITHMS
from pipeline.methods.base import Participation
from pipeline.methods.consensus import robust
from pipeline.oracles.screening import Screen
from pipeline.training.loop import Loop, NotFinite


def outcome(cell: AnswersRun, about: dict[str, Any]) -> Row:
    """accuracy, selection: of the last model; of one that is no longer finite, those of guessing, and `failed`. bad:
    what the bad clients weigh. left_out: of the bad clients, and of the others, the share of rounds without them."""
    made, factors = federation(cell.data, cell.fault, cell.share, cell.seed)
    algorithm, hyper, rule = settings(dict(cell.options))
    most = max(0, (len(made.clients) - 3) // 2)  # bad clients that Krum bears
    rule = override(rule, {"krum.bad": most / len(made.clients)})
    problem = Lying(made.model(), made.data(), factors=factors)
    method = ALGORITHMS[algorithm]
    # A run without half of its clients goes on here: that it stops by default is no accuracy.
    factor = Screening().factor if cell.screening is True else cell.screening
    screen = Screen(factor, 1.0, problem.clients) if factor else None
    context = method.context(
        oracle=oracle(method.context, problem, screen),
        hyper=hyper,
        federation=Participation("bernoulli", 1.0, cell.batch_size, robust=robust.chosen(rule)),
        seed=cell.seed,
        screen=screen,
    )
    row = dataclasses.asdict(cell) | {"options": dict(cell.options)}
    loop, begun = Loop(method, context, cell.rounds), time.perf_counter()
    try:
        while loop.round < cell.rounds:
            loop.step()
    except NotFinite as error:
        guess = 1 / made.classes
        return row | {"accuracy": guess, "selection": guess, "failed": str(error).split(" Fix:")[0]} | about
    variables, asked = loop.state.variables, loop.context.problem
    data = problem.data
    weights = asked.client_weights(variables)
    rounds = [screen.rounds_left_out.get(i, 0) if screen else 0 for i in range(problem.clients)]
    out = {
        side: sum(n for n, bad in zip(rounds, made.bad, strict=True) if bad == which)
        / max(1, cell.rounds * int((made.bad == which).sum()))
        for side, which in (("bad", True), ("good", False))
    }
    return (
        row
        | {
            "accuracy": share_right(asked, variables, data.test_images, data.test_labels),
            "selection": share_right(asked, variables, data.selection_images, data.selection_labels),
            "bad": None if weights is None else round(float(weights[made.bad].sum()), 4),
            "left_out": {side: round(share, 4) for side, share in out.items()},
            "seconds": round(time.perf_counter() - begun, 3),
        }
        | about
    )
