"""The example of a partition scheme of one's own: what it deals, with its settings from params.yaml."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.data.partition import make_partition
from pipeline.errors import UserError
from pipeline.params.reading import load_params
from pipeline.params.resolve import resolve
from pipeline.params.rules import check_rules

LABELS = np.repeat(np.arange(4), 20)
TEXT = """
partition:
  scheme: examples.one_label.ONE_LABEL
  validation_per_label: 2
  selection_per_label: 1
  one_label:
    share: 0.5
"""


def test_every_client_holds_one_label(tmp_path):
    (tmp_path / "params.yaml").write_text(TEXT)
    params = load_params(tmp_path / "params.yaml")
    check_rules(params)
    partition = make_partition(LABELS, "some", 4, resolve(params).partition, seed=0)
    assert partition.scheme == "one_label"
    assert partition.client_labels == [[0], [1], [2], [3]]
    assert partition.sizes.tolist() == [8, 8, 8, 8]  # half of 20 - 3, rounded


@pytest.mark.parametrize(
    ("old", "new", "parts"),
    [
        (
            "ONE_LABEL",
            "TWO_LABELS",
            ["has no Scheme 'TWO_LABELS'", "write examples.one_label.ONE_LABEL"],
        ),
        ("one_label.ONE_LABEL", "two.TWO", ["importing 'examples.two' failed"]),
        ("one_label.ONE_LABEL", "trimmed.TRIMMED", ["of type Algorithm, not Scheme"]),
        ("share: 0.5", "share: 1.5", ["partition.one_label.share = 1.5", "at most 1"]),
        ("share: 0.5", "chare: 0.5", ["partition.one_label.chare is not a known key", "Did you mean"]),
    ],
)
def test_mistakes_are_answered_in_a_line(tmp_path, old, new, parts):
    (tmp_path / "params.yaml").write_text(TEXT.replace(old, new))
    with pytest.raises(UserError) as caught:
        load_params(tmp_path / "params.yaml")
    assert all(part in str(caught.value) for part in parts), str(caught.value)
    assert "\n" not in str(caught.value)
