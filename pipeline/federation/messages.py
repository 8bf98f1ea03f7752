"""What travels: a JSON header and raw tensors, as bytes. Nothing is ever unpickled.

8 bytes   length of the header, little-endian
header    JSON: {"kind": ..., "facts": {...}, "tensors": [[name, dtype, shape], ...]}
tensors   their bytes, one after another
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

DTYPES = {name: getattr(torch, name) for name in ("float32", "float64", "bfloat16", "int64", "bool", "uint8")}


class Malformed(ValueError):
    """Bytes that are no message."""


@dataclass(frozen=True)
class Message:
    """kind: which question, or the answer to it. facts: JSON. tensors: by name, on the CPU once decoded."""

    kind: str
    facts: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)

    def cast(self, dtype: torch.dtype) -> Message:
        """With real numbers in that dtype."""
        tensors = {
            name: value.to(dtype) if value.is_floating_point() else value for name, value in self.tensors.items()
        }
        return Message(self.kind, self.facts, tensors)

    @property
    def floats(self) -> int:
        """Real numbers in it."""
        return sum(tensor.numel() for tensor in self.tensors.values() if tensor.is_floating_point())


def encode(message: Message, floats: torch.dtype | None = None) -> bytes:
    """floats: the dtype in which real numbers travel; None = their own."""
    listed, parts = [], []
    for name, tensor in message.tensors.items():
        value = tensor.detach().to("cpu", floats if floats and tensor.is_floating_point() else tensor.dtype)
        listed.append([name, str(value.dtype).removeprefix("torch."), list(value.shape)])
        parts.append(value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    header = json.dumps({"kind": message.kind, "facts": message.facts, "tensors": listed}).encode()
    return b"".join([len(header).to_bytes(8, "little"), header, *parts])


def decode(content: bytes) -> Message:
    """Raises Malformed."""
    try:
        start = 8 + int.from_bytes(content[:8], "little")
        header = json.loads(content[8:start])
        tensors = {}
        buffer = bytearray(content[start:])  # writable, as tensors must be
        at = 0
        for name, kind, shape in header["tensors"]:
            dtype = DTYPES[kind]
            size = math.prod(shape) * dtype.itemsize
            if min([0, *shape]) < 0 or at + size > len(buffer):
                raise ValueError("its tensors are longer than the message")
            count = math.prod(shape)
            flat = (
                torch.frombuffer(buffer, dtype=torch.uint8, count=size, offset=at).clone().view(dtype)
                if count
                else None
            )
            tensors[name] = torch.empty(shape, dtype=dtype) if flat is None else flat.view(shape)
            at += size
        return Message(str(header["kind"]), dict(header["facts"]), tensors)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Malformed(f"not a message: {error}") from None
