"""What must hold for every method of general bilevel learning alike, on quadratics in float64. One without settings
here fails."""

import dataclasses
import math
from pathlib import Path

import pytest
import pytorch_lightning as pl
import torch

from pipeline.config.sections import Train
from pipeline.methods import ALGORITHMS
from pipeline.methods.bilevel.aggitd import AggItd
from pipeline.methods.bilevel.common.bilevel_context import BilevelContext
from pipeline.methods.bilevel.fedbio import FedBio
from pipeline.methods.bilevel.fedbio_local import FedBioAccLocal, FedBioLocal
from pipeline.methods.bilevel.fedbioacc import FedBioAcc
from pipeline.methods.bilevel.fednest_general import FedNestGeneral
from pipeline.methods.bilevel.lfednest import LFedNest
from pipeline.methods.bilevel.simfbo import ShroFbo, SimFbo
from pipeline.methods.registry import heads
from pipeline.oracles.bilevel import BilevelOracle, LoopBilevelOracle
from pipeline.params import Params
from pipeline.training.resume import ResumeFolder
from pipeline.training.run import train
from pipeline.training.tasks import Task
from tests.core.bilevel.helpers import LARGE, close, make_context, run
from tests.core.bilevel.quadratic import random
from tests.registered import unnamed

UNEQUAL = {"local_steps": [1, 3, 2, 1, 2]}
BOTH = {**UNEQUAL, "upper_local_steps": [2, 1, 1, 3, 1]}
VARIANTS = {
    "simfbo": ("simfbo", SimFbo(**UNEQUAL)),
    "simfbo shared batch": ("simfbo", SimFbo(shared_batch=True)),
    "shrofbo": ("shrofbo", ShroFbo(**UNEQUAL, local_coefficients="proximal")),
    "shrofbo random": ("shrofbo", ShroFbo(local_steps="random", local_steps_max=3, local_steps_drawn="every_round")),
    "fednest_general": ("fednest_general", FedNestGeneral(**BOTH, lower_rounds=2)),
    "fednest_general randomised": ("fednest_general", FedNestGeneral(local_steps=2, series="randomised")),
    "fednest_general code": ("fednest_general", FedNestGeneral(local_steps=2, mode="code_global_batch")),
    "fednest_general plain": ("fednest_general", FedNestGeneral(**BOTH, correction="none", client_sets="one")),
    "lfednest": ("lfednest", LFedNest(**BOTH)),
    "lfednest corrected": ("lfednest", LFedNest(**BOTH, correction="svrg")),
    "lfednest local": ("lfednest", LFedNest(**BOTH)),
    "aggitd": ("aggitd", AggItd(**BOTH, series_terms=3)),
    "aggitd deterministic": ("aggitd", AggItd(**BOTH, series_terms=3, series="deterministic")),
    "fedbio": ("fedbio", FedBio(local_steps=3)),
    "fedbio shared batch": ("fedbio", FedBio(local_steps=2, shared_batch=True)),
    "fedbioacc": ("fedbioacc", FedBioAcc(local_steps=3)),
    "fedbioacc averaged": ("fedbioacc", FedBioAcc(local_steps=2, average_initial_momentum=True, initial_batch_size=3)),
    "fedbio_local": ("fedbio_local", FedBioLocal(local_steps=2, series_terms=3)),
    "fedbioacc_local": ("fedbioacc_local", FedBioAccLocal(local_steps=2, series_terms=3)),
}
VARIANTS |= {
    name: (name, ALGORITHMS[name].options())
    for name in unnamed(BilevelContext, {name for name, _ in VARIANTS.values()})
}
LOCAL = ("lfednest local", *(v for v, (name, _) in VARIANTS.items() if heads(ALGORITHMS[name]) == ("local",)))
every_variant = pytest.mark.parametrize("variant", VARIANTS)


def made(variant, **more):
    """(name, settings, problem) of five clients."""
    name, hyper = VARIANTS[variant]
    return name, hyper, random(clients=5, local_lower=variant in LOCAL, **more)


# ------------------------------------------------------------------------------------------------------- fixed points

FLAT = {"alpha_scale": 1e6, "alpha_offset": 1e18}
NEST = {"eta_x": 0.3, "eta_y": 0.4, "eta_h": 0.5, "series_terms": 22}
FIXED = {  # settings and outer iterations; unequal local steps where the specification says that they do no harm
    "simfbo": (SimFbo(gamma_x=0.15, gamma_y=0.4, gamma_v=0.4, adjoint_radius=LARGE), 130),
    "shrofbo": (
        ShroFbo(**UNEQUAL, gamma_x=0.08, gamma_y=0.2, gamma_v=0.2, eta_x=0, eta_y=0, eta_v=0, adjoint_radius=LARGE),
        130,
    ),
    "fednest_general": (FedNestGeneral(**BOTH, **NEST, lower_rounds=3), 20),
    "aggitd": (AggItd(**BOTH, **NEST, series="deterministic"), 15),
    "lfednest": (LFedNest(**(NEST | {"local_steps": 10})), 40),  # local lower levels
    "fedbio": (FedBio(eta_x=0.15, eta_y=0.4, eta_v=0.4, local_steps=1), 130),
    "fedbioacc": (FedBioAcc(eta_x=0.15, eta_y=0.4, eta_v=0.4, local_steps=1, **FLAT), 130),
    "fedbio_local": (FedBioLocal(eta_x=0.2, eta_y=0.5, eta_h=0.5, series_terms=22, local_steps=1), 60),
    "fedbioacc_local": (FedBioAccLocal(eta_x=0.2, eta_y=0.5, eta_h=0.5, series_terms=22, local_steps=1, **FLAT), 60),
}


@pytest.mark.parametrize("name", FIXED)
@pytest.mark.slow
def test_methods_end_at_the_stationary_point(name):
    """Deterministic, different p: where the closed-form hypergradient is 0, with y = y*(x) and v = v*(x)."""
    hyper, rounds = FIXED[name]
    local = name in LOCAL or name == "lfednest"
    problem = random(clients=5, local_lower=local)
    state = run(name, make_context(hyper, problem), rounds)
    x, *rest = problem.local_stationary() if local else problem.stationary()
    close(state.variables["x"], x, atol=1e-5)
    close(state.memory["Y"] if local else state.variables["y"], rest[0], atol=1e-5)
    if "v" in state.variables:
        close(state.variables["v"], rest[1], atol=1e-5)
    assert x.norm() > 0.1


# ---------------------------------------------------------------------------------------- one mathematics, two backends


@every_variant
@pytest.mark.parametrize("participation", [1.0, 0.4])
def test_loop_and_fused_give_the_same_run(variant, participation):
    name, hyper, problem = made(variant, noise=0.3)
    a, b = (run(name, make_context(hyper, problem, participation, o), 3) for o in (BilevelOracle, LoopBilevelOracle))
    for kept in ("variables", "memory"):
        for key, value in getattr(a, kept).items():
            close(getattr(b, kept)[key], value, rtol=1e-9, atol=1e-10)


@every_variant
def test_equal_seeds_give_equal_bits_and_others_do_not(variant):
    name, hyper, problem = made(variant, noise=0.3)
    a, b, c = (run(name, make_context(hyper, problem, 0.4, seed=s), 3).variables for s in (0, 0, 1))
    assert all(torch.equal(a[variable], b[variable]) for variable in a)
    assert not torch.equal(a["x"], c["x"])


@every_variant
def test_relabelling_clients_changes_no_average(variant):
    """P22, and property 19 of SimFBO's specification; without noise and random steps no client has a stream."""
    name, hyper, problem = made(variant)
    order = [3, 0, 4, 1, 2]
    moved = {
        key: [getattr(hyper, key)[i] for i in order]
        for key in ("local_steps", "upper_local_steps")
        if isinstance(getattr(hyper, key, None), list)
    }
    if getattr(hyper, "local_steps", None) == "random":
        hyper, moved = dataclasses.replace(hyper, local_steps=2), {}
    a = run(name, make_context(hyper, problem), 4)
    b = run(name, make_context(dataclasses.replace(hyper, **moved), problem.permuted(order)), 4)
    for variable, value in a.variables.items():
        close(b.variables[variable], value, atol=1e-11)
    for kept, value in a.memory.items():
        close(b.memory[kept], value[order] if len(value) == 5 else value, atol=1e-11)


@every_variant
def test_clients_that_do_not_move_move_no_average(variant):
    """For any active clients: the weights (N/n) p_i of two of five clients do not sum to 1 where p differs."""
    name, hyper, problem = made(variant, noise=0.3)
    steps = [f.name for f in dataclasses.fields(hyper) if f.name[:-1] in ("eta_", "gamma_") and f.name != "eta_h"]
    hyper = dataclasses.replace(hyper, **dict.fromkeys(steps, 1e-290))
    context, start = make_context(hyper, problem, 0.4), {"x": [0.3, -0.2, 0.5]}
    if variant not in LOCAL:
        start["y"] = [1.0, 0.0, -1.0, 0.5]
    start = {u: torch.tensor(value, dtype=torch.float64) for u, value in start.items()}
    state = run(name, context, 3, start=start)
    for variable, value in start.items():
        close(state.variables[variable], value)
    assert abs(float(context.cohort().p.sum()) - 1) > 0.01


@every_variant
def test_the_upper_variable_stays_on_its_set(variant):
    """The server projects after its step; without the set every method leaves it."""
    name, hyper, problem = made(variant, noise=0.3)
    highest = []
    for bound in (0.0, None):
        confined = dataclasses.replace(problem, upper_bound=bound)
        seen = []
        run(name, make_context(hyper, confined, 0.6), 6, each=lambda s, seen=seen: seen.append(s.variables["x"].max()))
        highest.append(float(max(seen)))
    assert highest[0] <= 0.0 < highest[1]


# ------------------------------------------------------------------------------------------------ f held by the server


def held_by_the_server():
    """f_i = f_0, which does not look at x."""
    problem = random(clients=5, uniform=True)
    same = {name: getattr(problem, name)[:1].expand_as(getattr(problem, name)) for name in ("D", "d")}
    nothing = {name: torch.zeros_like(getattr(problem, name)) for name in ("E", "rho", "e")}
    return dataclasses.replace(problem, **same, **nothing)


ONE_STEP = {
    "simfbo": SimFbo(),
    "shrofbo": ShroFbo(),
    "fednest_general": FedNestGeneral(local_steps=[1, 3, 2, 1, 2]),
    "aggitd": AggItd(local_steps=[1, 3, 2, 1, 2]),
    "lfednest": LFedNest(local_steps=[1, 3, 2, 1, 2]),
    "fedbio": FedBio(local_steps=1),
    "fedbioacc": FedBioAcc(local_steps=1),
}


@pytest.mark.parametrize("name", ONE_STEP)
def test_a_server_that_holds_f_computes_what_clients_would(name):
    """With one local step of the adjoint (or none), grad f_0 at the round's start is grad f_0 where it is needed."""
    problem = held_by_the_server()
    a, b = (
        run(name, make_context(ONE_STEP[name], dataclasses.replace(problem, server_upper=held), 0.6), 5)
        for held in (True, False)
    )
    for variable, value in a.variables.items():
        close(b.variables[variable], value)
    for kept, value in a.memory.items():
        close(b.memory[kept], value)


def test_with_more_local_steps_its_gradient_is_frozen_at_the_round_s_start():
    """SimFBO, two local steps, by hand from f's gradient at the start of the round; the clients' own would differ."""
    problem = dataclasses.replace(held_by_the_server(), server_upper=True)
    hyper = SimFbo(gamma_x=0.1, gamma_y=0.1, gamma_v=0.1, eta_x=0.1, eta_y=0.1, eta_v=0.1, local_steps=2)
    x, y, v = torch.zeros(3).double(), torch.zeros(4).double(), torch.zeros(4).double()
    for _ in range(3):
        frozen, ends = problem.upper_gradients(x, y)[1], []
        for A, B, c in zip(problem.A, problem.B, problem.c, strict=True):
            X, Y, V = x, y, v
            for _ in range(2):
                X, Y, V = X - 0.1 * B.T @ V, Y - 0.1 * (A @ Y - B @ X - c), V - 0.1 * (A @ V - frozen)
            ends.append(torch.cat([X, Y, V]))
        x, y, v = torch.stack(ends).mean(0).split([3, 4, 4])
    state = run("simfbo", make_context(hyper, problem), 3)
    close(torch.cat([state.variables[u] for u in "xyv"]), torch.cat([x, y, v]))
    own = run("simfbo", make_context(hyper, dataclasses.replace(problem, server_upper=False)), 3)
    assert (own.variables["v"] - v).norm() > 1e-3


# -------------------------------------------------------------------------------------------------------------- resume


class Interrupt(Exception):
    pass


class StopAt(pl.Callback):
    """Interrupts the training after that round."""

    def __init__(self, round_):
        self.round = round_

    def on_train_batch_end(self, trainer, module, *args):
        if module.round == self.round:
            raise Interrupt


@every_variant
def test_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit(variant, tmp_path, capsys):
    """Through the training loop: six rounds, saves after the third and the last; stopped after the fourth. Also the
    schedule and the loop's optimizers: the whole run is the bare loop under a cosine."""
    name, hyper, problem = made(variant, noise=0.3)
    hyper = dataclasses.replace(hyper, schedule="cosine")
    params = Params()
    params = dataclasses.replace(
        params,
        algorithm=name,
        algorithms=dataclasses.replace(params.algorithms, **{name: hyper}),
        federation=dataclasses.replace(params.federation, sampling="fixed", participation=0.6, batch_size=1),
        train=Train(rounds=6, eval_every=3, checkpoint_every=3, accelerator="cpu"),
    )
    task = Task(problem, ["clean"] * 5, (), lambda variables: {}, 17, torch.device("cpu"))

    def fit(folder: Path, stop=None):
        with ResumeFolder(folder, "run") as place:
            return train(params, task, place, callbacks=(StopAt(stop),) if stop else (), progress=False)[0]

    whole = fit(tmp_path / "whole")
    with pytest.raises(Interrupt):
        fit(tmp_path / "cut", stop=4)
    resumed = fit(tmp_path / "cut")
    assert "afresh" not in capsys.readouterr().err
    for kept in ("variables", "memory"):
        for key, value in getattr(whole.state, kept).items():
            assert torch.equal(getattr(resumed.state, kept)[key], value), key
    assert resumed.cost == whole.cost

    algorithm, context = ALGORITHMS[name], whole.context
    state = algorithm.init(context)
    for t in range(1, 7):
        factor = 0.5 * (1 + math.cos(math.pi * (t - 1) / 6))
        scheduled = dataclasses.replace(context, round=t, schedule=factor)
        sizes = algorithm.step_sizes(hyper)
        for k in range(1, algorithm.inner_steps(hyper) + 1):
            step = algorithm.step(state, scheduled.at(k))
            for variable, direction in step.directions.items():
                size = sizes[variable] * (1.0 if variable in algorithm.assigned else factor)
                value = state.variables[variable] - size * direction
                project = algorithm.projections.get(variable)
                state.variables[variable] = project(value, hyper) if project else value
    for key, value in whole.state.variables.items():
        close(value, state.variables[key], rtol=1e-10, atol=1e-11)
