"""The floating point of a run, by the names of `train.precision`.

| name | parameters, losses, all that a method computes with | within the network |
|---|---|---|
| 32-true | float32 | float32 |
| tf32 | float32 | float32; in a GPU's products and convolutions rounded to ten bits of mantissa |
| bf16-mixed | float32 | bfloat16 in training, float32 in evaluations |
| 64-true | float64 | float64 |

Runs computed together (`pipeline.repetitions`) agree with each alone up to the order of summation, and in bfloat16 that
order shows: within some tenths of a per cent after a few rounds.
"""

from __future__ import annotations

import torch

from pipeline.models import FlatModel

DTYPES = {"32-true": torch.float32, "tf32": torch.float32, "bf16-mixed": torch.float32, "64-true": torch.float64}


def of_precision(model: FlatModel, precision: str) -> FlatModel:
    """The network as it is trained."""
    return model.mixed if precision == "bf16-mixed" else model


def use_tensor_cores(precision: str) -> None:
    """Whether a GPU may round float32 in products: with tf32 alone. (torch's own default rounds in convolutions.)"""
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
