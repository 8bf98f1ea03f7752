"""The training loop without Lightning, optimizers or schedules, for methods of this family."""

import dataclasses

import torch

from pipeline.methods import ALGORITHMS, Cost, Participation, State
from pipeline.methods.bilevel.common.bilevel_context import BilevelContext
from pipeline.oracles.bilevel import BilevelOracle
from tests.core import helpers

LARGE = 1e9  # a ball radius that never binds
FLAT = {"alpha_scale": 1e6, "alpha_offset": 1e18}  # alpha_t = 1 to 15 digits


def make_context(
    hyper, problem, participation=1.0, oracle=BilevelOracle, seed=0, sampling="fixed", **more
) -> BilevelContext:
    return BilevelContext(oracle(problem), hyper, Participation(sampling, participation, batch_size=1), seed, **more)


def from_point(problem, x, y=None, v=None):
    """A start for `run`: the given server variables."""
    tensor = lambda u: torch.as_tensor(u, dtype=torch.float64).clone()  # noqa: E731
    return {name: tensor(u) for name, u in {"x": x, "y": y, "v": v}.items() if u is not None}


def run(name, context, rounds, start=None, frozen=(), each=lambda state: None) -> State:
    """`rounds` outer iterations with constant plain steps. start: server variables other than the method's own start;
    those in `frozen` stay as they are."""
    algorithm = ALGORITHMS[name]
    state = algorithm.init(context)
    state.variables.update(start or {})
    for t in range(1, rounds + 1):
        one_round(algorithm, state, dataclasses.replace(context, round=t), frozen)
        each(state)
    return state


def one_round(algorithm, state, context, frozen=()) -> Cost:
    """Moves the state's variables; returns what the round cost."""
    return helpers.one_round(algorithm, state, context, frozen)[0]


def close(got, expected, **tolerances):
    """assert_close with room for rounding only, unless given otherwise."""
    expected = torch.as_tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(
        got.double().squeeze(), expected.squeeze(), **({"rtol": 1e-12, "atol": 1e-12} | tolerances)
    )
