"""From stored numbers to network inputs, by what the server's validation samples show and nothing else.

The validation set is trusted; statistics over clients would let a single bad client decide what every other one's
samples look like. With v over the validation samples and x any stored sample,

| stored | input | |
|---|---|---|
| images, uint8 | x / 255 | |
| images, float | x / max abs(v), within +-LIMIT | the maximum over all pixels |
| vectors | (x - mean v) / std v, within +-LIMIT | feature by feature; std of the V samples, divided by V |
| vectors, a feature where all v are equal | -1, 0 or 1: the sign of x - v | |

So a feature (or all pixels) times any positive factor gives the same inputs, up to rounding.

A feature that does not vary in validation shows no scale, and any invented one, 1 for instance, would make its unit
matter and let a client send inputs of any size. Its sign keeps what can be known: whether a sample has the usual value.
That is all there is to a rare 0/1 column which happens to be 0 throughout a small validation set.

The limit does for sizes what the simplex does for weights: a client that stores metres as millimetres, or a feature
that a small validation set hardly shows, moves the model by bounded gradients. A 0/1 column keeps its two values.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from pipeline.errors import not_allowed

LIMIT = 10.0
"""Largest input, in standard deviations (vectors) or in the brightest validation pixel (images)."""
_NEXT_TO_NOTHING = 1e-300
"""Spread of a feature without one: every deviation exceeds the limit."""


@dataclass(frozen=True, eq=False)
class Scaling:
    """(x - shift) / spread, within +-limit. Each float64, [C, 1, 1] or [1, 1, 1]."""

    shift: Tensor = field(repr=False)
    spread: Tensor = field(repr=False)
    limit: Tensor = field(repr=False)

    def to(self, device: torch.device) -> Scaling:
        return Scaling(self.shift.to(device), self.spread.to(device), self.limit.to(device))

    def __call__(self, stored: Tensor) -> Tensor:
        """Inputs, float64, of stored samples [..., C, H, W]."""
        return ((stored - self.shift) / self.spread).clamp(-self.limit, self.limit)


def of_vectors(validation: Tensor) -> Scaling:
    """From the server's validation features [V, f], stored as [V, f, 1, 1]."""
    v = validation.double()
    spread, shift = torch.std_mean(v, dim=0, correction=0)
    constant = v.amin(0) == v.amax(0)
    # The mean of equal numbers need not be one of them.
    shift, spread = torch.where(constant, v[0], shift), torch.where(constant, _NEXT_TO_NOTHING, spread)
    return Scaling(shift, spread, torch.where(constant, 1.0, torch.full_like(spread, LIMIT)))


def of_images(validation: Tensor) -> Scaling:
    """From the server's validation images [V, C, H, W], floats. Raises UserError if they are all 0."""
    largest = validation.double().abs().amax()
    if largest == 0:
        fix = "give the server validation images that show something"
        raise not_allowed("validation: largest absolute pixel", 0.0, "above 0, for it is the unit of all images", fix)
    one = largest.new_ones(1, 1, 1)
    return Scaling(0 * one, largest * one, LIMIT * one)
