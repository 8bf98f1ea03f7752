"""The same derivatives with the clients spread over several processes (`pipeline.sharing`).

Every process calls the same functions in the same order with the same arguments. A minibatch holds the clients that are
simulated here; sums over clients are reduced, per-client numbers are put together, and per-client vectors stay where
they are: those rows are zero elsewhere, so that `total` completes whatever is contracted from them.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from pipeline.oracles.local import LocalOracle
from pipeline.oracles.weighting import Oracle
from pipeline.problems.base import Batch, WeightingProblem
from pipeline.sharing import Share


@dataclass(frozen=True)
class OwnBatch:
    """own: positions of the clients simulated here among the n of the exchange; batch: theirs, None without any."""

    own: Tensor
    n: int
    batch: Batch


class SharedOracle:
    """An oracle whose clients live in several processes."""

    def __init__(self, oracle: Oracle, share: Share) -> None:
        self.problem: WeightingProblem = oracle.problem
        self._oracle, self._share = oracle, share

    def draw(self, stream: int, clients: Tensor, size: int) -> OwnBatch:
        own = self._share.own(clients)
        return OwnBatch(own, len(clients), self._oracle.draw(stream, clients[own], size) if len(own) else None)

    def total(self, part: Tensor) -> Tensor:
        return self._share.total(part)[0]

    def weighted_gradient(self, w: Tensor, batch: OwnBatch, c: Tensor) -> Tensor:
        found = self._oracle.weighted_gradient(w, batch.batch, c[batch.own]) if len(batch.own) else w.new_zeros(w.shape)
        return self.total(found)

    def weighted_product(self, w: Tensor, lam: Tensor, batch: OwnBatch, c: Tensor) -> tuple[Tensor, Tensor]:
        product, inner = w.new_zeros(w.shape), w.new_zeros(batch.n)
        if len(batch.own):
            product, inner[batch.own] = self._oracle.weighted_product(w, lam, batch.batch, c[batch.own])
        product, inner = self._share.total(product, inner)
        return product, inner

    def gradient_with_inner(self, w: Tensor, lam: Tensor, batch: OwnBatch, c: Tensor) -> tuple[Tensor, Tensor]:
        gradient, inner = w.new_zeros(w.shape), w.new_zeros(batch.n)
        if len(batch.own):
            gradient, inner[batch.own] = self._oracle.gradient_with_inner(w, lam, batch.batch, c[batch.own])
        gradient, inner = self._share.total(gradient, inner)
        return gradient, inner

    def gradient_and_product(self, w: Tensor, lam: Tensor, batch: OwnBatch, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        gradient, product, inner = w.new_zeros(w.shape), w.new_zeros(w.shape), w.new_zeros(batch.n)
        if len(batch.own):
            found = self._oracle.gradient_and_product(w, lam, batch.batch, c[batch.own])
            gradient, product, inner[batch.own] = found
        gradient, product, inner = self._share.total(gradient, product, inner)
        return gradient, product, inner

    def gradients(self, w: Tensor, batch: OwnBatch) -> Tensor:
        """[n, d]; zero rows for clients simulated elsewhere."""
        rows = w.new_zeros(batch.n, len(w))
        if len(batch.own):
            rows[batch.own] = self._oracle.gradients(w, batch.batch)
        return rows

    def products(self, w: Tensor, lam: Tensor, batch: OwnBatch) -> Tensor:
        """[n, d]; zero rows for clients simulated elsewhere."""
        rows = w.new_zeros(batch.n, len(w))
        if len(batch.own):
            rows[batch.own] = self._oracle.products(w, lam, batch.batch)
        return rows

    def gradients_and_products(self, w: Tensor, lam: Tensor, batch: OwnBatch) -> tuple[Tensor, Tensor]:
        """[n, d] both; zero rows for clients simulated elsewhere."""
        G, H = w.new_zeros(batch.n, len(w)), w.new_zeros(batch.n, len(w))
        if len(batch.own):
            G[batch.own], H[batch.own] = self._oracle.gradients_and_products(w, lam, batch.batch)
        return G, H

    def inner_products(self, w: Tensor, lam: Tensor, batch: OwnBatch) -> Tensor:
        inner = w.new_zeros(batch.n)
        if len(batch.own):
            inner[batch.own] = self._oracle.inner_products(w, lam, batch.batch)
        return self.total(inner)

    def losses(self, w: Tensor, batch: OwnBatch) -> Tensor:
        losses = w.new_zeros(batch.n)
        if len(batch.own):
            losses[batch.own] = self._oracle.losses(w, batch.batch)
        return self.total(losses)

    def validation_gradient(self, w: Tensor, batch: Batch) -> Tensor:
        """Computed by every process, which costs less than waiting for one; the first one's counts."""
        return self._share.same(self._oracle.validation_gradient(w, batch))

    def validation_product(self, w: Tensor, v: Tensor, batch: Batch) -> Tensor:
        """Likewise."""
        return self._share.same(self._oracle.validation_product(w, v, batch))


class SharedLocal(SharedOracle):
    """The same for methods with local steps: what they ask at the clients' own parameters, they ask of the clients
    simulated here; what they ask at the server's model is shared out as above."""

    def __init__(self, oracle: LocalOracle, share: Share) -> None:
        super().__init__(oracle, share)
        self.local, self.gradients_each = oracle.local, oracle.gradients_each
