"""A data set of a user's own by its dotted path."""

import sys

import pytest

from pipeline.config.spec import override
from pipeline.data.datasets import load, prepare
from pipeline.data.partition import make_partition
from pipeline.errors import UserError
from pipeline.params import Params
from pipeline.params.reading import params_from
from pipeline.params.resolve import resolve
from pipeline.params.rules import check_rules

PATH = "examples.two_rings.TWO_RINGS"


def test_it_is_read_described_and_dealt_like_a_shipped_one(tmp_path):
    params = params_from({"data": {"name": PATH}}, "params.yaml")
    check_rules(params)
    params = resolve(params)
    assert (params.partition.validation_per_label, params.federation.batch_size) == (10, 32)
    assert "600 training and 100 test images" in prepare(PATH, tmp_path / "raw", settings=params.data)
    raw = load(tmp_path / "raw")
    assert raw.train_images.shape == (600, 1, 12, 12)
    params = override(params, {"partition.scheme": "iid"})
    assert make_partition(raw.train_labels, raw.name, raw.classes, params.partition, 0).clients == 10


MODULE = """
from pipeline.data.sets.base import Dataset
NO_SUCH_ARGUMENTS = Dataset(name="mine", summary="", read=lambda: None)
TAKEN = Dataset(name="digits", summary="", read=lambda contents, settings: None)
ODD = Dataset(name="my data", summary="", read=lambda contents, settings: None)
NUMBER = 3
"""


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("my_rings.NO_SUCH_ARGUMENTS", "cannot be called with 2 arguments"),
        ("my_rings.TAKEN", "taken by a shipped one"),
        ("my_rings.ODD", "cannot be a key"),
        ("my_rings.NUMBER", "is of type int, not Dataset"),
        ("my_rings.ABSENT", "has no Dataset 'ABSENT'"),
        ("no_such_module.THING", "importing 'no_such_module' failed"),
    ],
)
def test_every_way_to_get_it_wrong_is_answered_in_a_line(tmp_path, monkeypatch, path, said):
    (tmp_path / "my_rings.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_rings", raising=False)
    with pytest.raises(UserError, match=said) as caught:
        check_rules(override(Params(), {"data.name": path}))
    assert str(caught.value).startswith(f"data.name = {path!r}: ")
    assert "\n" not in str(caught.value)
    assert " Fix: " in str(caught.value)
