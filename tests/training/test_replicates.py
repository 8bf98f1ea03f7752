"""Further runs on other draws: what they draw, that they are runs of the method, and that none is run twice."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from pipeline.config.spec import override
from pipeline.methods import ALGORITHMS
from pipeline.params.resolve import resolve
from pipeline.problems.general_weighting import GeneralImageWeighting
from pipeline.seeds import key
from pipeline.sharing import Share
from pipeline.training import replicates
from pipeline.training.loop import Loop, NotFinite
from pipeline.training.replicates import replicate, replicate_weights, resampled, with_validation
from pipeline.training.resume import ResumeFolder
from pipeline.training.run import train
from pipeline.training.setup import build_context, build_problem
from pipeline.training.tasks import image_task

CPU = torch.device("cpu")


@pytest.fixture
def problem(params, digits, partition):
    return build_problem(params, digits, partition, CPU)


def test_a_validation_set_is_resampled_as_a_whole():
    """Also how many of each label there are: binomial, so that 20 of 40 become 20 +- 3.2."""
    positions = resampled(40, 5, 1)
    assert positions.shape == (40,)
    assert 0 <= positions.min() <= positions.max() < 40
    assert 20 <= len(set(positions)) <= 32  # 1 - 1/e of 40 are about 25: with replacement
    halves = [(resampled(40, 5, b) < 20).sum() for b in range(1, 201)]
    assert np.mean(halves) == pytest.approx(20, abs=0.8)
    assert np.std(halves) == pytest.approx(10**0.5, rel=0.2)
    assert (positions == resampled(40, 5, 1)).all()
    for other in (resampled(40, 5, 2), resampled(40, 6, 1)):
        assert (positions != other).any()


def test_the_server_of_a_replicate_holds_the_resampled_set(params, problem, digits, partition):
    held = problem.data.validation_labels
    positions = np.arange(len(held))[::-1].copy()
    X, y = with_validation(problem, positions).data.validation_batch()
    assert torch.equal(y, held.flip(0))
    assert torch.equal(X, problem.data.validation_images.flip(0))
    general = build_problem(resolve(override(params, {"algorithm": "fedbio"})), digits, partition, CPU)
    assert isinstance(general, GeneralImageWeighting)
    assert torch.equal(with_validation(general, positions).data.validation_labels, held.flip(0))


@pytest.mark.parametrize("settings", [{}, {"algorithm": "fedavg", "problem": "client_weighting"}])
def test_a_replicate_is_a_run_on_other_draws(params, digits, partition, tmp_path, settings):
    """To the last bit the run that has its seed and its validation set."""
    params = resolve(override(params, settings))
    problem = build_problem(params, digits, partition, CPU)
    own = with_validation(problem, resampled(len(problem.data.validation_labels), params.seed, 2))
    with ResumeFolder(tmp_path, "run") as folder:
        other = replace(params, seed=key(params.seed, "replicate", 2))
        module, _ = train(other, image_task(own), folder, progress=False)
    found = replicate(params, problem, 2)
    np.testing.assert_array_equal(found, module.kept.variables["x"].double().numpy())
    assert (found != replicate(params, problem, 1)).any()


def test_a_replicate_that_collapses_is_cut_where_the_run_would_be(params, problem, monkeypatch):
    accuracies = iter([0.1, 0.9, 0.9, 0.5])  # rounds 0, 4, 8, 12
    monkeypatch.setattr(replicates, "selected", lambda *given: next(accuracies))
    found = replicate(params, problem, 1)
    own = with_validation(problem, resampled(len(problem.data.validation_labels), params.seed, 1))
    other = replace(params, seed=key(params.seed, "replicate", 1))
    loop = Loop(ALGORITHMS["primal_dual"], build_context(other, own, Share()), 12)
    for _ in range(8):
        loop.step()
    np.testing.assert_array_equal(found, loop.state.variables["x"].double().numpy())


def test_an_interrupted_stage_goes_on_with_the_next_replicate(params, problem, tmp_path):
    params = override(params, {"train.replicates": 3, "train.rounds": 4})
    rounds = 0

    def beat(last):
        nonlocal rounds
        rounds += 1
        if rounds == last:
            raise KeyboardInterrupt

    with ResumeFolder(tmp_path, "whole") as folder:
        whole = replicate_weights(params, problem, folder)
    assert whole.shape == (3, 10)
    with ResumeFolder(tmp_path, "cut") as folder, pytest.raises(KeyboardInterrupt):
        replicate_weights(params, problem, folder, lambda: beat(10))  # in the third
    rounds = 0
    with ResumeFolder(tmp_path, "cut") as folder:
        folder.note("replicate-1.npy").write_bytes(b"damaged")
        again = replicate_weights(params, problem, folder, lambda: beat(0))
    assert rounds == 8
    np.testing.assert_array_equal(again, whole)


def test_a_replicate_that_diverges_says_so(params, problem, tmp_path):
    params = override(params, {"train.replicates": 2, "algorithms.primal_dual.eta_lambda": float("inf")})
    said = r"replicate 1 of 2: round \d+: the variable .* Fix: lower .* Or set train\.replicates: 0"
    with ResumeFolder(tmp_path, "run") as folder, pytest.raises(NotFinite, match=said):
        replicate_weights(params, problem, folder)
