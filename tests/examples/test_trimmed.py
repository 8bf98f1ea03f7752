"""The example of a method of one's own: its mean by hand, and that it is ready for params.yaml."""

from __future__ import annotations

import torch

from examples.trimmed import TRIMMED, Trimmed, step
from pipeline.methods.registry import algorithm_named
from pipeline.oracles import FusedOracle, LoopOracle
from pipeline.problems.toy import Toy
from tests.core.helpers import make_context


def test_the_extremes_of_every_coordinate_are_left_out():
    toy = Toy.generate(clients=7, seed=0)
    for oracle in (FusedOracle, LoopOracle):
        context = make_context(Trimmed(trim=0.3), toy, oracle=oracle)
        state = TRIMMED.init(context)
        G = toy.gradients(state.variables["w"])[1:]
        expected = torch.stack([column.sort().values[2:5].mean() for column in G.T])
        found = step(state, context)
        torch.testing.assert_close(found.directions["w"], expected)
        assert (found.cost.gradients, found.cost.floats_up) == (7, 7 * toy.dimension)


def test_it_is_found_by_its_path():
    assert algorithm_named("examples.trimmed.TRIMMED") is TRIMMED
