"""Euclidean projections onto the sets the server's variables live in."""

from __future__ import annotations

import torch
from torch import Tensor


def simplex(v: Tensor) -> Tensor:
    """argmin ||x - v|| subject to x >= 0, sum x = 1.

    v: [..., N], finite. Returns the same shape. Sort-based: x = max(v - tau, 0) with tau from the largest k for which
    the k-th largest entry stays positive (Held, Wolfe and Crowder, 1974; Duchi et al., 2008). Shifting v by its
    maximum first changes nothing in exact arithmetic and keeps entries of 1e9 exact to the last bit.
    """
    shifted = v - v.amax(dim=-1, keepdim=True)
    ordered = shifted.sort(dim=-1, descending=True).values
    excess = ordered.cumsum(dim=-1) - 1.0
    count = torch.arange(1, v.shape[-1] + 1, device=v.device, dtype=v.dtype)
    support = (ordered * count > excess).sum(dim=-1, keepdim=True)
    tau = excess.gather(-1, support - 1) / support
    return (shifted - tau).clamp_min(0.0)


def ball(v: Tensor, radius: float | Tensor) -> Tensor:
    """argmin ||u - v|| subject to ||u|| <= radius, over the last dimension; v: [..., d].

    NaN where its norm overflows as it is computed: 0 would hide that a run has exploded.
    """
    norm = torch.linalg.vector_norm(v, dim=-1, keepdim=True)
    return v * torch.where(norm.isfinite(), radius / norm.clamp_min(radius), torch.nan)


def clip(v: Tensor, norm: float | Tensor) -> Tensor:
    """v, shortened to that norm over the last dimension where it is longer; 0 = as it is. v: [..., d]."""
    if isinstance(norm, Tensor):  # without a branch, for repetitions with norms of their own
        return torch.where(norm > 0, ball(v, norm), v)
    return ball(v, norm) if norm else v
