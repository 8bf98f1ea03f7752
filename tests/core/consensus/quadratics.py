"""Heterogeneous quadratics with closed forms, and the bare loop on them (float64)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pipeline import randomness
from pipeline.methods import ALGORITHMS, Participation, State
from pipeline.methods import ALGORITHMS as METHODS
from pipeline.methods.consensus.common.local_context import LocalContext
from pipeline.oracles import FusedLocal
from pipeline.params import Algorithms
from tests.core.helpers import one_round

C, RHO = 8, 0.7
SETTING = {"eta": 0.05, "local_steps": 6}
DUAL = {**SETTING, "rho": RHO}
ALIGNED = [("a_fedpd", {"form": "reference"}), ("a_fedpd", {"form": "low_memory"})]
SAM = {"radius": 0.3, "sam_eps": 1e-12}
"""The setting of the specification's section 7, both forms of A-FedPD, and sharp steps."""
EXACT = {"weight_decay": 0.0, "clip_norm": 0.0, "eta_decay": 1.0}
"""As in the specification's section 7."""


@dataclass(frozen=True)
class Quadratics:
    """f_i(w) = w^T A_i w / 2 - b_i^T w; on a minibatch the gradient gains noise keyed by (round, client, step).

    ids: of the clients, for their noise. counts: samples of each client, for local epochs: sample j of client i is the
    loss f_i(w) + offsets[i, j]^T w, offsets summing to zero over the client's samples.
    """

    A: Tensor
    b: Tensor
    noise: float = 0.0
    start: Tensor | None = None
    ids: Tensor | None = None
    offsets: Tensor | None = None
    counts: Tensor | None = None
    one_by_one: bool = False

    @classmethod
    def generate(cls, clients: int = 8, dimension: int = 5, seed: int = 0, noise: float = 0.0, scale: float = 1.0):
        """A_i = M M^T / d + I/2, b_i standard normal times scale."""
        g = torch.Generator().manual_seed(seed)
        M = torch.randn(clients, dimension, dimension, generator=g, dtype=torch.float64)
        b = scale * torch.randn(clients, dimension, generator=g, dtype=torch.float64)
        return cls(M @ M.mT / dimension + 0.5 * torch.eye(dimension, dtype=torch.float64), b, noise)

    @property
    def clients(self) -> int:
        return len(self.b)

    @property
    def dimension(self) -> int:
        return self.b.shape[1]

    @property
    def samples(self) -> Tensor:
        return torch.ones(self.clients, dtype=torch.int64) if self.counts is None else self.counts

    def client_weights(self, variables):
        return None

    def initial(self, seed: int) -> Tensor:
        return torch.zeros(self.dimension, dtype=torch.float64) if self.start is None else self.start.clone()

    def draw(self, stream, clients, size):
        ids = clients if self.ids is None else self.ids[clients]
        return clients, self.noise * randomness.normal(stream, ids, self.dimension)

    def take(self, stream, clients, positions, present=None):
        present = torch.ones_like(positions) if present is None else present.long()
        drawn = self.offsets[clients[:, None], positions * present] * present[..., None]
        return clients, drawn.sum(1) / present.sum(1, keepdim=True)

    def losses(self, w, batch):
        return self.losses_each(w.expand(len(batch[0]), -1), batch)

    def losses_each(self, W, batch):
        clients, e = batch
        return 0.5 * torch.einsum("ik,ikl,il->i", W, self.A[clients], W) - ((self.b[clients] - e) * W).sum(1)

    def select(self, batch, i):
        return self.part(batch, slice(i, i + 1))

    def part(self, batch, rows):
        return tuple(tensor[rows] for tensor in batch)

    # ------------------------------------------------------------------------------------------ closed forms

    def gradients(self, W: Tensor) -> Tensor:
        """grad f_i(W_i), [C, d]; W [d] or [C, d]."""
        return torch.einsum("ikl,il->ik", self.A, W.expand(self.clients, -1)) - self.b

    @property
    def optimum(self) -> Tensor:
        return torch.linalg.solve(self.A.mean(0), self.b.mean(0))

    def argmin(self, theta: Tensor, lam: Tensor, rho: float) -> Tensor:
        """argmin_x f_i(x) + lambda_i^T (x - theta) + rho/2 ||x - theta||^2 for every client, [C, d]."""
        eye = torch.eye(self.dimension, dtype=torch.float64)
        return torch.linalg.solve(self.A + rho * eye, self.b - lam + rho * theta)


class Closed(FusedLocal):
    """Gradients by hand, for long runs."""

    def gradients_each(self, W, batch, at_once=None):
        clients, e = batch
        return torch.einsum("ikl,il->ik", self.local.A[clients], W) - self.local.b[clients] + e


Sets = Callable[[int], Sequence[int]]


@dataclass(frozen=True)
class Chosen(LocalContext):
    """A round whose active clients the test names."""

    sets: Sets | None = None

    def active(self, *exchange: int) -> Tensor:
        return super().active(*exchange) if self.sets is None else torch.tensor(self.sets(self.round))


RECORDS = {name: type(getattr(Algorithms(), name)) for name in METHODS}


def options(name: str, **settings):
    """The method's record as the specification's tests have it: no decay, no weight decay, no clipping."""
    return RECORDS[name](**{**EXACT, **settings})


def context_for(problem, hyper, sets: Sets | None = None, oracle=Closed, seed: int = 0, **federation) -> Chosen:
    federation = {"sampling": "fixed", "participation": 1.0, "batch_size": 1, **federation}
    return Chosen(oracle(problem), hyper, Participation(**federation), seed, sets=sets)


def run(
    name: str,
    problem,
    rounds: int,
    sets: Sets | None = None,
    state: State | None = None,
    each: Callable[[State], None] = lambda state: None,
    first: int = 1,
    oracle=Closed,
    seed: int = 0,
    federation: dict | None = None,
    **settings,
) -> State:
    """`rounds` rounds with plain steps; `each` sees the state after every one."""
    hyper = options(name, **settings)
    context = context_for(problem, hyper, sets, oracle, seed, **(federation or {}))
    state = state or ALGORITHMS[name].init(context)
    for t in range(first, first + rounds):
        state = advance(name, state, dataclasses.replace(context, round=t))
        each(state)
    return state


def advance(name: str, state: State, context: LocalContext) -> State:
    """One round, in place of the training loop."""
    one_round(ALGORITHMS[name], state, context)
    return state


def subsets(m: int, clients: int, seed: int = 0) -> Sets:
    """A uniform set of m clients for every round."""

    def drawn(t: int) -> Sequence[int]:
        g = torch.Generator().manual_seed(1000 * seed + t)
        return sorted(torch.randperm(clients, generator=g)[:m].tolist())

    return drawn


def bernoulli(clients: int, p: float = 0.4, seed: int = 0) -> Sets:
    """Sets of random sizes, never empty."""

    def drawn(t: int) -> Sequence[int]:
        g = torch.Generator().manual_seed(77 + 1000 * seed + t)
        return (torch.rand(clients, generator=g) < p).nonzero()[:, 0].tolist() or [t % clients]

    return drawn


def theta(state: State) -> Tensor:
    return state.variables["w"]


def duals(state: State, rho: float) -> Tensor:
    """lambda_i of any primal-dual method, [C, d]."""
    if "duals" in state.memory:
        return state.memory["duals"]
    return rho * (state.memory["deviations"] + state.variables["w"] - state.variables["w_bar"])


def close(a: Tensor, b: Tensor, atol: float = 1e-10) -> None:
    torch.testing.assert_close(a, b, rtol=0, atol=atol)
