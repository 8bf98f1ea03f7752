"""The fused passes as pure functions of torch.func, so that `vmap` can put a dimension of repetitions in front.

Slower for a single run than `FusedOracle`, which is why that one is used there.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import grad, jvp, vjp

from pipeline.oracles.weighting import FusedOracle, client_by_client, forward_over_reverse, validation_product
from pipeline.problems.base import Batch


class FunctionalOracle(FusedOracle):
    """Derivatives under `torch.func.vmap`."""

    def weighted_gradient(self, w: Tensor, batch: Batch, c: Tensor) -> Tensor:
        return grad(lambda v: c @ self.problem.losses(v, batch))(w)

    def gradient_and_product(self, w: Tensor, lam: Tensor, batch: Batch, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return forward_over_reverse(self.problem, w, lam, batch, c)

    def gradient_with_inner(self, w: Tensor, lam: Tensor, batch: Batch, c: Tensor) -> tuple[Tensor, Tensor]:
        pull = vjp(lambda v: self.problem.losses(v, batch), w)[1]
        return pull(c)[0], self.inner_products(w, lam, batch)

    def gradients(self, w: Tensor, batch: Batch) -> Tensor:
        if not self._one_by_one:
            return client_by_client(lambda one: self._alone(w, one), batch)
        return torch.stack([self._alone(w, self.problem.select(batch, i)) for i in range(self._count(batch))])

    def inner_products(self, w: Tensor, lam: Tensor, batch: Batch) -> Tensor:
        return jvp(lambda v: self.problem.losses(v, batch), (w,), (lam,))[1]

    def losses(self, w: Tensor, batch: Batch) -> Tensor:
        return self.problem.losses(w, batch)

    def validation_gradient(self, w: Tensor, batch: Batch) -> Tensor:
        return grad(lambda v: self.problem.validation_loss(v, batch))(w)

    def validation_product(self, w: Tensor, v: Tensor, batch: Batch) -> Tensor:
        return validation_product(self.problem, w, v, batch)
