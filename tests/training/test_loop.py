"""The loop without Lightning: the module's numbers to the last bit, and its complaints."""

from dataclasses import replace

import pytest
import torch

from pipeline.config.spec import override
from pipeline.methods import ALGORITHMS
from pipeline.params.resolve import resolve
from pipeline.sharing import Share
from pipeline.training.loop import Loop, NotFinite
from pipeline.training.resume import ResumeFolder
from pipeline.training.run import train
from pipeline.training.setup import build_context, build_problem
from pipeline.training.tasks import image_task

CPU = torch.device("cpu")
SETTINGS = {
    "plain steps": {"algorithm": "primal_dual", "algorithms.primal_dual.inner_steps": 2},
    "momentum": {"algorithm": "sustain", "algorithms.sustain.optimizer": "momentum"},
    "adam": {"algorithm": "primal_dual", "algorithms.primal_dual.optimizer": "adam", "federation.participation": 0.5},
    "general": {"algorithm": "simfbo", "problem": "client_weighting"},
    "measures": {"algorithm": "fedcm", "problem": "client_weighting"},
    "assigned": {"algorithm": "fedbio", "problem": "client_weighting"},
}


def loop_of(params, problem) -> Loop:
    params = resolve(params)
    return Loop(ALGORITHMS[params.algorithm], build_context(params, problem, Share()), params.train.rounds)


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_the_numbers_are_the_module_s(params, digits, partition, tmp_path, settings):
    params = override(params, settings)
    problem = build_problem(params, digits, partition, CPU)
    with ResumeFolder(tmp_path, "run") as folder:
        module, _ = train(params, image_task(problem), folder, progress=False)
    loop = loop_of(params, problem)
    for _ in range(params.train.rounds):
        loop.step()
    for name, value in module.state.variables.items():
        assert torch.equal(loop.state.variables[name], value)
    assert (loop.round, loop.cost, loop.measured) == (module.round, module.cost, module.measured)


def test_a_run_that_diverges_says_when_and_what(params, digits, partition):
    loop = loop_of(params, build_problem(params, digits, partition, CPU))
    loop.context = replace(loop.context, hyper=replace(loop.context.hyper, gamma=float("inf")))
    with pytest.raises(NotFinite, match=r"round 1: the variable w is no longer finite.* Fix: lower"):
        loop.step()
