"""What speaks against a client: by hand, and on a model that is right about all but two clients."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.trust.federations import federation
from experiments.trust.running import start
from pipeline.problems.client_weighting import ClientWeighting
from pipeline.problems.images import logits
from pipeline.report.evidence import disagreements, gather
from pipeline.training.evaluation import classify


def test_ten_points_and_three_standard_errors() -> None:
    # With 400 samples at .9 a standard error is .015, so ten points decide; with 25 it is .06, so three of them do.
    asked, mix = np.array([400, 400, 25, 25]), np.full(4, 0.9)
    agreement = np.array([0.801, 0.799, 0.73, 0.71])
    assert disagreements(agreement, mix, asked).tolist() == [False, True, False, True]
    # Where every test sample is right there is no chance: ten points alone.
    assert disagreements(np.array([0.89]), np.ones(1), np.array([5])).tolist() == [True]


def test_the_model_disagrees_with_the_bad_clients_alone() -> None:
    made = federation("digits-linear-2of8", 0)
    loop = start(ClientWeighting(made.model(), made.data()), "primal_dual", 60)
    for _ in range(60):
        loop.step()
    problem, variables = loop.context.oracle.problem, loop.state.variables
    data = problem.data
    test = classify(problem, variables, data.test_images, data.test_labels)
    found = gather(problem, variables, np.zeros(0), test.recall)
    assert found.pull is None
    assert found.disagrees is not None
    assert found.disagrees.tolist() == made.bad.tolist()

    for client in range(data.clients):
        at = slice(int(data.starts[client]), int(data.starts[client] + data.sizes[client]))
        y = data.labels[at]
        guess = logits(problem.model, data, problem.network(variables), data.images[data.indices[at]]).argmax(1)
        assert found.asked[client] == len(y) < 500
        assert found.agreement[client] == pytest.approx(float((guess == y).double().mean()))
        assert found.mix[client] == pytest.approx(np.mean([test.recall[label] for label in y]))
