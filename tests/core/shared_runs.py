"""Runs of every method, for comparison: in one process, and in several that share out the clients. As a program it is
one of these processes; the first saves what came out. Started by test_sharing."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
import torch.distributed as dist

from pipeline.config.sections import Train
from pipeline.methods import ALGORITHMS, Cost, StepContext
from pipeline.methods.bilevel.fedbio_local import FedBioAccLocal
from pipeline.methods.consensus.common.weights import LearnedWeights
from pipeline.methods.consensus.robust import RULES
from pipeline.methods.consensus.robust.base import Chosen
from pipeline.methods.registry import FAMILIES
from pipeline.params import Params
from pipeline.problems.toy import Toy
from pipeline.sharing import Share
from pipeline.training.module import FederatedBilevel
from pipeline.training.resume import ResumeFolder
from pipeline.training.run import train
from pipeline.training.tasks import Task
from tests.core.bilevel import test_family as bilevel
from tests.core.bilevel.helpers import make_context as bilevel_context
from tests.core.bilevel.quadratic import random
from tests.core.consensus import test_family as consensus
from tests.core.consensus.quadratics import Quadratics, context_for, options
from tests.core.consensus.test_weights import WeightedQuadratics
from tests.core.helpers import make_context, one_round
from tests.core.test_methods import VARIANTS

Run = tuple[str, StepContext]
Found = dict[str, torch.Tensor]

ROUNDS = 4
CLIENTS = 5
HALF = {"sampling": "bernoulli", "participation": 0.5}
FULL_PARTICIPATION = {"participation": 1.0}


def weighting() -> Iterator[tuple[str, Run]]:
    """Methods at one shared model, with every estimator."""
    toy = dataclasses.replace(Toy.generate(clients=CLIENTS, seed=0), noise=0.5)
    for variant, (name, hyper) in VARIANTS.items():
        for estimator in ("paper", "normalised", "memory"):
            context = make_context(dataclasses.replace(hyper, estimator=estimator), toy, participation=0.5)
            yield f"{variant}, {estimator}", (name, context)


def quadratics() -> Quadratics:
    start = torch.full((3,), 0.3, dtype=torch.float64)
    return dataclasses.replace(Quadratics.generate(CLIENTS, 3, noise=0.5), start=start)


def consensus_run(variant: str, problem: Quadratics, **more: Any) -> Run:
    name = consensus.method(variant)
    hyper = options(name, **{**consensus.settings(variant), "weight_decay": 0.1, "clip_norm": 1.5, **more})
    return name, context_for(problem, hyper, **(FULL_PARTICIPATION if name == "fedpd" else HALF))


def local_steps() -> Iterator[tuple[str, Run]]:
    """Methods with local steps: minibatches, passes over clients of unequal size, and fixed and learned weights."""
    noisy = quadratics()
    counts = torch.tensor([3, 7, 5, 1, 4])
    offsets = torch.randn(CLIENTS, 7, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    sampled = dataclasses.replace(noisy, counts=counts, offsets=offsets)
    weighted = WeightedQuadratics(noisy.A, noisy.b, noise=0.5, target=torch.ones(3, dtype=torch.float64))
    for variant in consensus.VARIANTS:
        yield variant, consensus_run(variant, noisy)
        yield f"{variant}, epochs", consensus_run(variant, sampled, local_epochs=2)
        if consensus.method(variant) in FAMILIES["averaging"]:
            for mode in ("learned", "plain", "oracle"):
                weights = LearnedWeights(mode, eta_x=0.1)
                yield f"{variant}, {mode}", consensus_run(variant, weighted, weights=weights)
    for rule, settings in Params().robust.__dict__.items():
        if rule in RULES:
            hyper = options("fedcm", alpha=0.5, local_epochs=2)
            federation = FULL_PARTICIPATION | {"robust": Chosen(RULES[rule], settings)}
            yield f"fedcm, {rule}", ("fedcm", context_for(sampled, hyper, **federation))


def points() -> Iterator[tuple[str, Run]]:
    """Methods of general bilevel learning; where it matters, also with an upper level that the server holds, and with
    momenta that are averaged at the start."""
    for variant, (name, hyper) in bilevel.VARIANTS.items():
        problem = random(CLIENTS, local_lower=variant in bilevel.LOCAL, noise=0.3)
        yield variant, (name, bilevel_context(hyper, problem, 0.5, sampling="bernoulli"))
        if not problem.local_lower:
            held = dataclasses.replace(problem, server_upper=True, upper_bound=0.2)
            yield f"{variant}, server", (name, bilevel_context(hyper, held, 0.5, sampling="bernoulli"))
    hyper = FedBioAccLocal(local_steps=2, series_terms=3, average_initial_momentum=True)
    problem = random(CLIENTS, local_lower=True, noise=0.3)
    yield "fedbioacc_local, averaged", ("fedbioacc_local", bilevel_context(hyper, problem, 0.5, sampling="bernoulli"))


def every_run() -> dict[str, Run]:
    return dict([*weighting(), *local_steps(), *points()])


def follow(name: str, context: StepContext, share: Share) -> Found:
    """Variables, memory, cost and measures after a few rounds of the bare loop."""
    algorithm, cost, measured = ALGORITHMS[name], Cost(), {}
    context = dataclasses.replace(context, oracle=context.oracle_for(context.problem, "fused", share), share=share)
    state = algorithm.init(context)
    rows = algorithm.client_rows & state.memory.keys()
    for row in rows:
        share.keep_own(state.memory[row])
    for t in range(1, ROUNDS + 1):
        spent, found = one_round(algorithm, state, dataclasses.replace(context, round=t))
        cost += spent
        measured |= {f"{key}, round {t}": torch.tensor(value, dtype=torch.float64) for key, value in found.items()}
    memory = {key: share.total(value)[0] if key in rows else value for key, value in state.memory.items()}
    return dict(state.variables) | memory | measured | {"cost": torch.tensor(dataclasses.astuple(cost))}


# --------------------------------------------------------------------------- through the training loop, with its saves

WHOLE = 6
DAMAGED = "scaffold, damaged"


def continued() -> dict[str, Run]:
    noisy = quadratics()
    runs = {variant: consensus_run(variant, noisy) for variant in ("a_fedpd", "a_fedpd reference", "scaffold")}
    own = dict(points())["fedbioacc_local"]
    return runs | {DAMAGED: runs["scaffold"], "fedbioacc_local": own}


class Interrupt(Exception):
    pass


class StopAfter(pl.Callback):
    def __init__(self, round_: int) -> None:
        self.round = round_

    def on_train_batch_end(self, trainer: pl.Trainer, module: pl.LightningModule, *args: Any) -> None:
        if isinstance(module, FederatedBilevel) and module.round == self.round:
            raise Interrupt


def go_on(folder: Path, name: str, context: StepContext, share: Share, until: int = WHOLE) -> Found:
    """The run from its last save, if any, to the end of round `until`; saves after each round."""
    params, federation = Params(), context.federation
    params = dataclasses.replace(
        params,
        algorithm=name,
        algorithms=dataclasses.replace(params.algorithms, **{name: context.hyper}),
        federation=dataclasses.replace(
            params.federation, sampling=federation.sampling, participation=federation.participation, batch_size=1
        ),
        train=Train(
            rounds=WHOLE,
            eval_every=3,
            checkpoint_every=1,
            accelerator="cpu",
            precision="64-true",
            devices=share.ranks,
        ),
    )
    task = Task(context.problem, ["clean"] * CLIENTS, (), lambda variables: {}, 17, torch.device("cpu"))
    place = ResumeFolder(folder, "run")
    callbacks = (StopAfter(until),) if until < WHOLE else ()
    try:
        if share.rank:
            module = train(params, task, place, callbacks=callbacks, share=share)[0]
        else:
            with place:
                module = train(params, task, place, callbacks=callbacks, progress=False, share=share)[0]
    except Interrupt:
        return {}
    cost = {"cost": torch.tensor(dataclasses.astuple(module.cost))}
    return (
        module.state.variables | module.state.memory | cost | {k: torch.tensor(v) for k, v in module.measured.items()}
    )


def main(rank: int, ranks: int, folder: Path) -> None:
    """All runs of the bare loop, then the rounds 3 and 4 of those that another process has begun."""
    dist.init_process_group("gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=ranks)
    os.environ |= {"LOCAL_RANK": str(rank), "RANK": str(rank), "WORLD_SIZE": str(ranks), "NODE_RANK": "0"}
    share = Share(rank, ranks)
    found = {variant: follow(*run, share) for variant, run in every_run().items()}
    for variant, run in continued().items():
        go_on(folder / variant, *run, share, until=4)
    if rank == 0:
        torch.save(found, folder / "runs.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
