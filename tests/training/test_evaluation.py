"""How well weights separate good clients from bad: by hand."""

import numpy as np
import pytest

from pipeline.training.evaluation import below_half, detection, rounds_to, weight_interval, weight_quality


def test_detection_by_hand():
    """Pairs (clean, bad): 0.4 beats 0.1, 0.3, 0.0; 0.2 beats 0.1 and 0.0 and loses to 0.3: 5 of 6."""
    kinds = ["clean", "clean", "noisy", "flipped", "noisy"]
    found = detection(np.array([0.4, 0.2, 0.1, 0.3, 0.0]), kinds, [1.0, 1.0, 0.1, 0.7, 0.0])
    assert found["detection_auc"] == pytest.approx(5 / 6)
    assert found["detection_auc_noisy"] == 1.0
    assert found["detection_auc_flipped"] == 0.5
    # ranks of the weights 5 3 2 4 1, of the quality 4.5 4.5 2 3 1: Pearson's correlation of these
    a, b = np.array([5, 3, 2, 4, 1.0]), np.array([4.5, 4.5, 2, 3, 1])
    assert found["quality_correlation"] == pytest.approx(np.corrcoef(a, b)[0, 1], abs=1e-6)


def test_equal_weights_tell_nothing():
    found = detection(np.full(4, 0.25), ["clean", "clean", "noisy", "noisy"], [1.0, 1.0, 0.1, 0.1])
    assert found == {"detection_auc": 0.5}
    assert detection(np.array([0.5, 0.5]), ["clean", "clean"], [1.0, 1.0]) == {}


def test_weight_quality_by_hand():
    found = weight_quality(np.array([0.5, 0.3, 0.2]), np.array([0.6, 0.4, 0.0]), np.array([True, True, False]))
    assert found == pytest.approx({"clean_weight": 0.8, "max_noise_weight": 0.2, "weight_error": 0.4})


def test_rounds_to_a_target_by_hand():
    """Rounds 0, 20, 40, 60 were evaluated; a later fall does not count, nor do rounds without an evaluation."""
    accuracy = {0: 0.1, 20: 0.5, 40: 0.7, 60: 0.6}
    rows = [{"round": float(t), "test_accuracy": accuracy.get(t)} for t in range(0, 61, 10)]
    assert rounds_to(rows, [0.1, 0.5, 0.55, 0.7, 0.71]) == {0.1: 0, 0.5: 20, 0.55: 40, 0.7: 40, 0.71: None}
    assert rounds_to([], [0.5]) == {0.5: None}


def test_the_interval_of_a_weight_by_hand():
    """Three replicates: t(2; .95) = 2.91999. Of client 0 .4, .5, .6: sd .1; the others' are cut, or as narrow as 1 % of
    an equal share."""
    replicates = np.array([[0.4, 0.1, 0.2, 0.25], [0.5, 0.0, 0.2, 0.25], [0.6, 0.05, 0.2, 0.25]])
    low, high = weight_interval(np.array([0.55, 0.05, 0.25, 0.0]), replicates)
    assert low == pytest.approx([0.55 - 0.291999, 0.0, 0.2475, 0.0], abs=1e-6)
    assert high == pytest.approx([0.55 + 0.291999, 0.05 + 2.91999 * 0.05, 0.2525, 0.0025], abs=1e-5)
    low, high = weight_interval(np.array([0.9]), np.array([[0.9], [0.8]]))  # t(1; .95) = 6.31375, sd .1 / sqrt(2)
    assert (low[0], high[0]) == (pytest.approx(0.9 - 6.31375 * 0.0707107, abs=1e-5), 1.0)


def test_who_is_suspicious():
    """Half of an equal share of four is .125."""
    weights = np.array([0.5, 0.375, 0.12, 0.005])
    assert below_half(weights, None) == [2, 3]
    assert below_half(weights, np.array([weights - 0.1, weights + 0.01])) == [3]
    assert below_half(np.full(4, 0.125), None) == []
