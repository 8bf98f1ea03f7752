"""Several runs as one computation: each is the run it would be alone (float64)."""

import dataclasses

import pytest
import torch

from pipeline.algorithms import ALGORITHMS
from pipeline.errors import UserError
from pipeline.params import FedNest, PrimalDual
from pipeline.problems.toy import Toy
from pipeline.repetitions import Repetitions
from tests.core.helpers import make_turn, run
from tests.core.test_methods import VARIANTS

DETERMINISTIC = {v: settings for v, settings in VARIANTS.items() if "randomised" not in v}


def toys(count):
    return [dataclasses.replace(Toy.generate(clients=5, seed=s), noise=0.5) for s in range(count)]


@pytest.mark.parametrize(("name", "hyper"), DETERMINISTIC.values(), ids=DETERMINISTIC)
@pytest.mark.parametrize(("participation", "sampling"), [(1.0, "bernoulli"), (0.4, "fixed")])
@pytest.mark.parametrize("estimator", ["paper", "memory"])
def test_every_method_gives_each_seed_its_own_run(name, hyper, participation, sampling, estimator):
    """Other problems, other noise, other clients drawn; variables, memory and costs."""
    hyper, algorithm = dataclasses.replace(hyper, estimator=estimator), ALGORITHMS[name]
    turns = [make_turn(hyper, toy, participation, seed=s, sampling=sampling) for s, toy in enumerate(toys(3))]
    runs = Repetitions(algorithm, turns, {v: [size] * 3 for v, size in algorithm.step_sizes(hyper).items()})
    for t in range(1, 4):
        runs.round(t)
    for s, turn in enumerate(turns):
        alone = run(name, turn, 3)
        for variable, value in alone.variables.items():
            torch.testing.assert_close(runs.variables(s)[variable], value, rtol=1e-10, atol=1e-12)
        for kept, value in alone.memory.items():
            torch.testing.assert_close(runs.state.memory[kept][s], value, rtol=1e-9, atol=1e-12)
    assert not torch.equal(runs.variables(0)["w"], runs.variables(1)["w"])


def test_step_sizes_may_differ_from_run_to_run():
    """A sweep: the same seed three times, each with an eta_w of its own."""
    algorithm, (toy,) = ALGORITHMS["primal_dual"], toys(1)
    hypers = [PrimalDual(eta_w=eta, eta_x=0.01, dual_radius=100.0) for eta in (0.01, 0.02, 0.03)]
    sizes = [algorithm.step_sizes(hyper) for hyper in hypers]
    runs = Repetitions(algorithm, [make_turn(hypers[0], toy)] * 3, {v: [s[v] for s in sizes] for v in sizes[0]})
    for t in range(1, 6):
        runs.round(t)
    for i, hyper in enumerate(hypers):
        for variable, value in run("primal_dual", make_turn(hyper, toy), 5).variables.items():
            torch.testing.assert_close(runs.variables(i)[variable], value, rtol=1e-10, atol=1e-12)


def test_a_single_run_is_the_plain_one_to_the_last_bit():
    hyper, (toy,) = PrimalDual(eta_w=0.03, estimator="memory"), toys(1)
    turn, algorithm = make_turn(hyper, toy, 0.5), ALGORITHMS["primal_dual"]
    runs = Repetitions(algorithm, [turn], {v: [s] for v, s in algorithm.step_sizes(hyper).items()})
    for t in range(1, 6):
        runs.round(t)
    alone = run("primal_dual", turn, 5)
    assert all(torch.equal(runs.variables(0)[v], value) for v, value in alone.variables.items())
    assert all(torch.equal(runs.state.memory[m][0], value) for m, value in alone.memory.items())


def test_what_cannot_go_together_is_refused():
    def together(hyper, **settings):
        turns = [make_turn(hyper, toy, seed=s, **settings) for s, toy in enumerate(toys(4))]
        algorithm = ALGORITHMS["fednest" if isinstance(hyper, FedNest) else "primal_dual"]
        runs = Repetitions(algorithm, turns, {v: [s] * 4 for v, s in algorithm.step_sizes(hyper).items()})
        for t in range(1, 6):
            runs.round(t)

    with pytest.raises(UserError, match="different numbers of active clients"):
        together(PrimalDual(), participation=0.5)
    with pytest.raises(UserError, match="draw a different series"):
        together(FedNest(inner_steps=3, series="randomised"))
    with pytest.raises(UserError, match="optimizer = 'adam'"):
        together(PrimalDual(optimizer="adam"))
