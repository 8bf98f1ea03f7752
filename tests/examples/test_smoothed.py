"""The example of a problem of one's own: its upper level by hand, and its place in params.yaml."""

from __future__ import annotations

import pytest
import torch

from examples.smoothed import Smoothed
from pipeline.errors import UserError
from pipeline.params.reading import load_params
from pipeline.params.resolve import resolve
from pipeline.params.rules import check_rules
from pipeline.problems.forms import Given
from tests.problems.small import data, network

TEXT = """
problem: examples.smoothed.SMOOTHED
problems:
  smoothed:
    smoothing: 0.3
"""


def read(folder, text):
    (folder / "params.yaml").write_text(text)
    return load_params(folder / "params.yaml")


def test_its_upper_level_is_smoothed(tmp_path):
    params = read(tmp_path, TEXT)
    check_rules(params)
    params = resolve(params)
    problem = params.formulation.build(params.problem_settings, Given(params, network(), data("iid")))
    assert isinstance(problem, Smoothed)
    w, (X, y) = problem.initial(0), problem.draw_validation(0)
    log_p = torch.log_softmax(problem.model.apply(w, X), dim=1)
    picked = log_p.gather(1, y[:, None]).mean()
    expected = -(0.7 * picked + 0.3 * log_p.mean())
    torch.testing.assert_close(problem.validation_loss(w, (X, y)), expected)


@pytest.mark.parametrize(
    ("old", "new", "parts"),
    [
        ("SMOOTHED", "SMOOTH", ["problem = 'examples.smoothed.SMOOTH'", "has no Formulation", "SMOOTHED"]),
        ("smoothed.SMOOTHED", "trimmed.TRIMMED", ["of type Algorithm, not Formulation"]),
        ("smoothing: 0.3", "smoothing: 1", ["problems.smoothed.smoothing = 1", "below 1"]),
    ],
)
def test_mistakes_are_answered_in_a_line(tmp_path, old, new, parts):
    with pytest.raises(UserError) as caught:
        read(tmp_path, TEXT.replace(old, new))
    assert all(part in str(caught.value) for part in parts), str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_method_of_another_form_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"simfbo does not fit problem: examples\.smoothed\.SMOOTHED"):
        check_rules(read(tmp_path, TEXT + "algorithm: simfbo\n"))
