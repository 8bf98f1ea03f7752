"""Bytes and back."""

from __future__ import annotations

import pytest
import torch

from pipeline.federation.messages import DTYPES, Malformed, Message, decode, encode


@pytest.mark.parametrize("name", DTYPES)
def test_tensors_come_back_as_they_were(name):
    tensors = {"a": torch.arange(6).view(2, 3).to(DTYPES[name]), "none": torch.zeros(0, 3, dtype=DTYPES[name])}
    tensors["number"] = torch.tensor(1).to(DTYPES[name])
    found = decode(encode(Message("ask", {"x": [1, "y", None]}, tensors)))
    assert (found.kind, found.facts) == ("ask", {"x": [1, "y", None]})
    for key, value in tensors.items():
        assert found.tensors[key].dtype == value.dtype
        assert torch.equal(found.tensors[key], value)


def test_a_columns_view_and_bfloat16():
    view = torch.randn(4, 5)[:, 1]
    assert torch.equal(decode(encode(Message("a", {}, {"v": view}))).tensors["v"], view)
    found = decode(encode(Message("a", {}, {"v": view, "n": torch.tensor([7])}), torch.bfloat16))
    assert found.tensors["v"].dtype == torch.bfloat16
    assert found.tensors["n"].dtype == torch.int64
    assert torch.equal(found.cast(torch.float32).tensors["v"], view.bfloat16().float())


GOOD = encode(Message("ask", {}, {"v": torch.ones(3)}))


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"\xff" * 20, GOOD[:-1], GOOD[:20], b"\x02" + bytes(7) + b"[]", GOOD.replace(b"facts", b"faktz")),
        *(GOOD.replace(b"float32", b"float99"), GOOD.replace(b"[3]", b"[9]"), GOOD.replace(b"[3]", b"-33")),
    ],
)
def test_anything_else_is_malformed(content):
    with pytest.raises(Malformed):
        decode(content)
