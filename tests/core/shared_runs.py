"""One of several processes that simulate the same runs; the first saves what came out. Started by test_sharing."""

from __future__ import annotations

import dataclasses
import sys

import torch
import torch.distributed as dist

from pipeline.algorithms import ALGORITHMS
from pipeline.oracles.shared import SharedOracle
from pipeline.oracles.weighting import FusedOracle
from pipeline.problems.toy import Toy
from pipeline.sharing import Share
from tests.core.helpers import make_turn, run
from tests.core.test_methods import VARIANTS

ESTIMATORS = ("paper", "normalised", "memory")
ROUNDS = 3


def every_run(share: Share) -> dict[str, dict[str, torch.Tensor]]:
    """Variant and estimator -> variables and memory after a few rounds with about half of the clients in each."""
    toy, found = dataclasses.replace(Toy.generate(clients=5, seed=0), noise=0.5), {}
    for variant, (name, hyper) in VARIANTS.items():
        for estimator in ESTIMATORS:
            turn = make_turn(dataclasses.replace(hyper, estimator=estimator), toy, participation=0.5)
            if share.ranks > 1:
                turn = dataclasses.replace(turn, oracle=SharedOracle(FusedOracle(toy), share))
            state = run(name, turn, ROUNDS)
            rows = ALGORITHMS[name].client_rows
            memory = {k: share.total(v)[0] if k in rows else v for k, v in state.memory.items()}
            found[f"{variant}, {estimator}"] = dict(state.variables) | memory
    return found


if __name__ == "__main__":
    rank, ranks, store, out = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    runs = every_run(Share(rank, ranks))
    if rank == 0:
        torch.save(runs, out)
    dist.destroy_process_group()
