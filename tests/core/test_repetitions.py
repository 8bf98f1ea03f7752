"""Several runs as one computation: each is the run it would be alone (float64)."""

import dataclasses

import pytest
import torch

from pipeline.errors import UserError
from pipeline.methods import ALGORITHMS
from pipeline.methods.client_weighting.afl import Afl
from pipeline.methods.client_weighting.fednest import FedNest
from pipeline.methods.client_weighting.primal_dual import PrimalDual
from pipeline.methods.client_weighting.rfho import Rfho
from pipeline.methods.client_weighting.sustain import Sustain
from pipeline.problems.toy import Toy
from pipeline.repetitions import Repetitions
from tests.core.helpers import PLAIN, make_context, run
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
    contexts = [make_context(hyper, toy, participation, seed=s, sampling=sampling) for s, toy in enumerate(toys(3))]
    runs = Repetitions(algorithm, contexts)
    for _ in range(3):
        runs.round()
    for s, context in enumerate(contexts):
        alone = run(name, context, 3)
        for variable, value in alone.variables.items():
            torch.testing.assert_close(runs.variables(s)[variable], value, rtol=1e-10, atol=1e-12)
        for kept, value in alone.memory.items():
            torch.testing.assert_close(runs.state.memory[kept][s], value, rtol=1e-9, atol=1e-12)
    assert not torch.equal(runs.variables(0)["w"], runs.variables(1)["w"])


SWEEPS = [
    ("primal_dual", [PrimalDual(eta_w=eta, eta_x=0.01, dual_radius=100.0) for eta in (0.01, 0.02, 0.03)]),
    ("primal_dual", [PrimalDual(eta_w=0.02, gamma=g, dual_radius=r) for g, r in ((1.0, 0.1), (2.0, 0.2), (3.0, 9.0))]),
    ("primal_dual", [PrimalDual(eta_w=0.02, dual_damping=rho, dual_init="gradient") for rho in (0.0, 0.1, 0.5)]),
    ("fednest", [FedNest(eta_w=0.02, eta_x=0.1, eta_h=0.02, clip_norm=norm) for norm in (0.0, 0.5, 2.0)]),
    ("rfho", [Rfho(eta_w=eta, eta_x=1.0, inner_steps=2, mode=mode) for mode in ("forward",) for eta in (0.01, 0.02)]),
    ("rfho", [Rfho(eta_w=eta, eta_x=1.0, inner_steps=2) for eta in (0.01, 0.02)]),
    ("fednest", [FedNest(eta_w=0.02, eta_x=0.1, eta_h=eta, inner_steps=2) for eta in (0.01, 0.02)]),
    ("sustain", [Sustain(eta_w=0.02, eta_x=0.1, eta_h=0.02, storm_weight=c) for c in (0.3, 1.0)]),
    ("afl", [Afl(eta_w=0.02, eta_x=0.1, estimator="normalised", active_weight_floor=c) for c in (0.01, 0.9)]),
]


@pytest.mark.parametrize(("name", "hypers"), SWEEPS, ids=[name for name, _ in SWEEPS])
def test_continuous_hyper_parameters_may_differ_from_run_to_run(name, hypers):
    """A sweep: the same seed every time, each run with numbers of its own; all of them matter."""
    (toy,), count = toys(1), len(hypers)
    runs = Repetitions(ALGORITHMS[name], [make_context(h, toy, 0.4, sampling="fixed") for h in hypers])
    for _ in range(5):
        runs.round()
    for i, hyper in enumerate(hypers):
        for variable, value in run(name, make_context(hyper, toy, 0.4, sampling="fixed"), 5).variables.items():
            torch.testing.assert_close(runs.variables(i)[variable], value, rtol=1e-10, atol=1e-12)
    assert all(not torch.equal(runs.variables(i)["w"], runs.variables(0)["w"]) for i in range(1, count))


@pytest.mark.parametrize("count", [1, 2])
def test_a_schedule_reaches_steps_and_method(count):
    """Half the step sizes in the second round, which a rising gamma doubles."""
    algorithm = ALGORITHMS["primal_dual"]
    hyper = PrimalDual(eta_w=0.03, gamma_schedule="rising", dual_init="gradient")
    contexts = [make_context(hyper, toy, seed=s) for s, toy in enumerate(toys(count))]
    runs = Repetitions(algorithm, contexts)
    for factor in (1.0, 0.5):
        runs.round(factor)
    for s, context in enumerate(contexts):
        state = algorithm.init(context)
        for t, factor in ((1, 1.0), (2, 0.5)):
            sizes = {name: factor * size for name, size in algorithm.step_sizes(hyper).items()}
            step = algorithm.step(state, dataclasses.replace(context, round=t, schedule=factor, step_sizes=sizes))
            for variable, direction in step.directions.items():
                moved = state.variables[variable] - sizes[variable] * direction
                project = algorithm.projections.get(variable)
                state.variables[variable] = project(moved, hyper) if project else moved
        for variable, value in state.variables.items():
            torch.testing.assert_close(runs.variables(s)[variable], value, rtol=1e-10, atol=1e-12)


def test_a_run_that_breaks_leaves_the_others_alone():
    (toy,), algorithm = toys(1), ALGORITHMS["primal_dual"]
    hypers = [PrimalDual(**PLAIN, eta_w=eta, eta_x=0.01, gamma=1.0) for eta in (0.02, 1e200)]
    runs = Repetitions(algorithm, [make_context(hyper, toy) for hyper in hypers])
    for _ in range(5):
        runs.round()
    assert list(runs.broken) == [1]
    for variable, value in run("primal_dual", make_context(hypers[0], toy), 5).variables.items():
        torch.testing.assert_close(runs.variables(0)[variable], value, rtol=1e-10, atol=1e-12)


def test_a_single_run_is_the_plain_one_to_the_last_bit():
    hyper, (toy,) = PrimalDual(eta_w=0.03, estimator="memory"), toys(1)
    context, algorithm = make_context(hyper, toy, 0.5), ALGORITHMS["primal_dual"]
    runs = Repetitions(algorithm, [context])
    for _ in range(5):
        runs.round()
    alone = run("primal_dual", context, 5)
    assert all(torch.equal(runs.variables(0)[v], value) for v, value in alone.variables.items())
    assert all(torch.equal(runs.state.memory[m][0], value) for m, value in alone.memory.items())


def test_what_cannot_go_together_is_refused():
    def together(hyper, **settings):
        contexts = [make_context(hyper, toy, seed=s, **settings) for s, toy in enumerate(toys(4))]
        algorithm = ALGORITHMS["fednest" if isinstance(hyper, FedNest) else "primal_dual"]
        runs = Repetitions(algorithm, contexts)
        for _ in range(5):
            runs.round()

    with pytest.raises(UserError, match="different numbers of active clients"):
        together(PrimalDual(), participation=0.5)
    with pytest.raises(UserError, match="draw a different series"):
        together(FedNest(inner_steps=3, series="randomised"))
    with pytest.raises(UserError, match="draw a different hypergradient iterate"):
        together(PrimalDual(inner_steps=3, hypergradient_iterate="random"))
    with pytest.raises(UserError, match="optimizer = 'adam'"):
        together(PrimalDual(optimizer="adam"))
    (toy,) = toys(1)
    with pytest.raises(UserError, match=r"inner_steps = \[1, 2\].*the same in all runs"):
        Repetitions(ALGORITHMS["primal_dual"], [make_context(PrimalDual(inner_steps=K), toy) for K in (1, 2)])
