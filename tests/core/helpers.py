"""The training loop without Lightning, optimizers or schedules: what a method computes, bare."""

import dataclasses

import torch

from pipeline import projections
from pipeline.methods import ALGORITHMS, Algorithm, Cost, Participation, State, StepContext
from pipeline.methods.base import advance
from pipeline.methods.client_weighting.common.weighting_context import WeightingContext
from pipeline.oracles import FusedOracle
from pipeline.problems.toy import Toy

LARGE = 1e9  # a ball radius that never binds
PLAIN = {"weight_step": "plain", "curvature_limit": 0.0}
"""Steps as papers print them."""
PRINTED = PLAIN | {"dual": "printed", "dual_damping": 0.0}
"""The lead method as its paper prints it."""


def make_context(
    hyper, toy, participation=1.0, oracle=FusedOracle, seed=0, sampling="bernoulli", **more
) -> StepContext:
    """A context with the hyper-parameters' step sizes in force."""
    etas = {"w": "eta_w", "lambda": "eta_lambda", "x": "eta_x"}
    sizes = {variable: getattr(hyper, eta) for variable, eta in etas.items() if hasattr(hyper, eta)}
    federation = Participation(sampling, participation, batch_size=1)
    return WeightingContext(oracle(toy), hyper, federation, seed, **{"step_sizes": sizes} | more)


def run(name: str, context: StepContext, rounds: int, frozen: tuple[str, ...] = (), each=lambda state: None) -> State:
    """`rounds` outer iterations with constant plain steps; variables in `frozen` stay as they are."""
    algorithm = ALGORITHMS[name]
    state = algorithm.init(context)
    for t in range(1, rounds + 1):
        one_round(algorithm, state, dataclasses.replace(context, round=t), frozen)
        each(state)
    return state


def one_round(algorithm: Algorithm, state: State, context: StepContext, frozen=()) -> tuple[Cost, dict[str, float]]:
    """`advance` with constant plain steps; the variables are new tensors, so that those of before can be kept."""
    sizes = algorithm.step_sizes(context.hyper)
    state.variables.update({name: value.clone() for name, value in state.variables.items()})

    def move(name: str, direction: torch.Tensor) -> None:
        if name not in frozen:
            state.variables[name].sub_(sizes[name] * direction)

    return advance(algorithm, state, dataclasses.replace(context, step_sizes=sizes), move)


def permuted(toy: Toy, order: list[int]) -> Toy:
    rows = torch.tensor([0, *(i + 1 for i in order)])
    return Toy(toy.A[rows], toy.B[rows], toy.a[rows], toy.b[rows])


def well_conditioned(clients: int = 4, dimension: int = 5, seed: int = 0) -> Toy:
    """A toy whose Hessians have their eigenvalues within 0.85..1.15 (A_i of orthogonal columns, length 0.95..1.05, and
    ||a_i||^2 <= 0.02): K steps of size 1 contract like 0.15^K, so a truncated hypergradient is exact to many digits."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    count = clients + 1
    lengths = 0.95 + 0.1 * torch.rand(count, 1, 1, generator=generator, dtype=torch.float64)
    A = lengths * torch.linalg.qr(normal(count, dimension + 3, dimension)).Q
    a = normal(count, dimension)
    return Toy(A, normal(count, dimension + 3), 0.02**0.5 * a / a.norm(dim=1, keepdim=True), normal(count))


def stationarity(toy: Toy, x: torch.Tensor) -> float:
    """|| x - Proj(x - hypergradient(x)) ||: 0 exactly at the stationary points of the bilevel problem."""
    return float((x - projections.simplex(x - toy.solve(x).hypergradient)).norm())
