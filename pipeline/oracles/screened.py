"""Oracles whose answers are screened (`pipeline.oracles.screening`): around any oracle, whoever computes its answers.

Rows are watched as they come; a sum is looked into where it has to be. What an oracle at a shared model answers may be
remembered at once, so it is judged at once; answers at the clients' own points are judged where they are summed
(`StepContext.judge`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pipeline.oracles.bilevel import BilevelOracle
from pipeline.oracles.local import LocalOracle
from pipeline.oracles.screening import Drawn, Screen
from pipeline.oracles.weighting import Oracle
from pipeline.problems.base import WeightingProblem

PIECE = 2**26
"""Numbers of clients' own rows held at once when they are looked at singly."""


def sizes(rows: Tensor, per: Tensor | None = None) -> Tensor:
    """Norms of the rows [n, d], divided by that of the vector, or those of the rows, that they are linear in; 0 where
    that is 0 and the answer finite."""
    found = torch.linalg.vector_norm(rows.flatten(1), dim=1)
    if per is None:
        return found
    length = torch.linalg.vector_norm(per, dim=-1)
    return found / torch.where(length > 0, length, torch.ones_like(length))


class ScreenedOracle:
    """At a shared model."""

    def __init__(self, oracle: Oracle, screen: Screen) -> None:
        self.problem: WeightingProblem = oracle.problem
        self.total, self.validation_gradient = oracle.total, oracle.validation_gradient
        self.validation_product = oracle.validation_product
        self._oracle, self._screen = oracle, screen

    def draw(self, stream: int, clients: Tensor, size: int) -> Drawn:
        return Drawn(clients, self._oracle.draw(stream, clients, size))

    def weighted_gradient(self, w: Tensor, batch: Drawn, c: Tensor) -> Tensor:
        found = self._oracle.weighted_gradient(w, batch.batch, c)
        self._judge_gradient(w, batch, c, found)
        return found

    def weighted_product(self, w: Tensor, lam: Tensor, batch: Drawn, c: Tensor) -> tuple[Tensor, Tensor]:
        product, inner = self._oracle.weighted_product(w, lam, batch.batch, c)
        self._judge_product(w, lam, batch, c, product, inner)
        return product, inner

    def gradient_with_inner(self, w: Tensor, lam: Tensor, batch: Drawn, c: Tensor) -> tuple[Tensor, Tensor]:
        gradient, inner = self._oracle.gradient_with_inner(w, lam, batch.batch, c)
        self._judge_gradient(w, batch, c, gradient, inner)
        return gradient, inner

    def gradient_and_product(self, w: Tensor, lam: Tensor, batch: Drawn, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        gradient, product, inner = self._oracle.gradient_and_product(w, lam, batch.batch, c)
        self._judge_gradient(w, batch, c, gradient, inner)
        self._judge_product(w, lam, batch, c, product, inner)
        return gradient, product, inner

    def gradients(self, w: Tensor, batch: Drawn) -> Tensor:
        rows = self._oracle.gradients(w, batch.batch)
        self._judge_rows("gradient", batch, rows)
        return rows

    def products(self, w: Tensor, lam: Tensor, batch: Drawn) -> Tensor:
        rows = self._oracle.products(w, lam, batch.batch)
        self._judge_rows("product", batch, rows, lam)
        return rows

    def gradients_and_products(self, w: Tensor, lam: Tensor, batch: Drawn) -> tuple[Tensor, Tensor]:
        gradients, products = self._oracle.gradients_and_products(w, lam, batch.batch)
        self._judge_rows("gradient", batch, gradients)
        self._judge_rows("product", batch, products, lam)
        return gradients, products

    def inner_products(self, w: Tensor, lam: Tensor, batch: Drawn) -> Tensor:
        inner = self._oracle.inner_products(w, lam, batch.batch)
        self._judge_numbers(w, batch, inner)
        return inner

    def losses(self, w: Tensor, batch: Drawn) -> Tensor:
        losses = self._oracle.losses(w, batch.batch)
        self._judge_numbers(w, batch, losses)
        return losses

    def _judge_rows(self, kind: str, batch: Drawn, rows: Tensor, per: Tensor | None = None) -> None:
        self._screen.watch(kind, batch.clients, self.total(sizes(rows, per)))
        self._screen.judge()

    def _judge_gradient(self, w: Tensor, batch: Drawn, c: Tensor, found: Tensor, inner: Tensor | None = None) -> None:
        self._judge_sum("gradient", w, None, batch, c, torch.linalg.vector_norm(found), inner)

    def _judge_product(self, w: Tensor, lam: Tensor, batch: Drawn, c: Tensor, found: Tensor, inner: Tensor) -> None:
        self._judge_sum("product", w, lam, batch, c, sizes(found[None], lam)[0], inner)

    def _judge_numbers(self, w: Tensor, batch: Drawn, numbers: Tensor) -> None:
        self._judge_sum("gradient", w, None, batch, numbers.new_ones(1), numbers.new_zeros(()), numbers)

    def _judge_sum(
        self, kind: str, w: Tensor, lam: Tensor | None, batch: Drawn, c: Tensor, size: Tensor, numbers: Tensor | None
    ) -> None:
        """Looks at the clients singly where the screen wants it; one transfer to the host. size: of the sum; numbers:
        what each client answered beside it."""
        finite = size if numbers is None else size + 0 * numbers.sum()
        length, coefficients = torch.stack([finite, c.abs().sum()]).tolist()
        if not self._screen.looks(length, coefficients, kind):
            at = self._screen.suspects(batch.clients)
            if at is None:
                return
            if type(batch.batch) is tuple:  # these alone; of processes that share out the clients, all
                batch = Drawn(batch.clients[at], tuple(part[at.to(part.device)] for part in batch.batch))
        self._look("gradient", w, None, batch)
        if lam is not None:
            self._look("product", w, lam, batch)

    def _look(self, kind: str, w: Tensor, lam: Tensor | None, batch: Drawn) -> None:
        """At each client singly; many of them in pieces, since nothing but the sizes is kept."""
        pieces, piece = [batch.batch], max(1, PIECE // len(w))
        if type(batch.batch) is tuple and len(batch.clients) > piece:
            starts = range(0, len(batch.clients), piece)
            pieces = [tuple(part[i : i + piece] for part in batch.batch) for i in starts]
        if lam is None:
            found = [sizes(self._oracle.gradients(w, part)) for part in pieces]
        else:
            found = [sizes(self._oracle.products(w, lam, part), lam) for part in pieces]
        self._screen.watch(kind, batch.clients, self.total(torch.cat(found)))
        self._screen.judge()


class ScreenedLocal(ScreenedOracle):
    """The same for methods with local steps; what clients answer then is judged when they are done
    (`pipeline.methods.consensus.common.local_training`)."""

    def __init__(self, oracle: LocalOracle, screen: Screen) -> None:
        super().__init__(oracle, screen)
        self.local, self.gradients_each = oracle.local, oracle.gradients_each


class ScreenedBilevel(BilevelOracle):
    """At the clients' own points."""

    def __init__(self, oracle: BilevelOracle, screen: Screen) -> None:
        super().__init__(oracle.problem)
        self._oracle, self._screen = oracle, screen

    def lower_gradients(self, X: Tensor, Y: Tensor, batch: Any) -> Tensor:
        found = self._oracle.lower_gradients(X, Y, _samples(batch))
        self._watch("gradient", batch, sizes(found) / self._scale(X, batch))
        return found

    def upper_gradients(self, X: Tensor, Y: Tensor, batch: Any) -> tuple[Tensor, Tensor]:
        x, y = self._oracle.upper_gradients(X, Y, _samples(batch))
        self._watch("upper gradient", batch, torch.hypot(sizes(x), sizes(y)))
        return x, y

    def upper_gradient_x(self, X: Tensor, Y: Tensor, batch: Any) -> Tensor:
        found = self._oracle.upper_gradient_x(X, Y, _samples(batch))
        self._watch("upper gradient", batch, sizes(found))
        return found

    def upper_gradient_y(self, X: Tensor, Y: Tensor, batch: Any) -> Tensor:
        found = self._oracle.upper_gradient_y(X, Y, _samples(batch))
        self._watch("upper gradient", batch, sizes(found))
        return found

    def lower_products(self, X: Tensor, Y: Tensor, V: Tensor, batch: Any) -> tuple[Tensor, Tensor]:
        yy, xy = self._oracle.lower_products(X, Y, V, _samples(batch))
        self._watch("product", batch, sizes(yy, V) / self._scale(X, batch))
        self._watch("cross product", batch, sizes(xy, V))
        return yy, xy

    def hessian_products(self, X: Tensor, Y: Tensor, V: Tensor, batch: Any) -> Tensor:
        found = self._oracle.hessian_products(X, Y, V, _samples(batch))
        self._watch("product", batch, sizes(found, V) / self._scale(X, batch))
        return found

    def cross_products(self, X: Tensor, Y: Tensor, V: Tensor, batch: Any) -> Tensor:
        found = self._oracle.cross_products(X, Y, V, _samples(batch))
        self._watch("cross product", batch, sizes(found, V))
        return found

    def _watch(self, kind: str, batch: Any, found: Tensor) -> None:
        if isinstance(batch, Drawn):  # the server's own gradient has no clients
            self._screen.watch(kind, batch.clients, found)

    def _scale(self, X: Tensor, batch: Any) -> Tensor | float:
        """By how much the problem itself enlarges a client's lower loss, at least 1."""
        scale = getattr(self.problem, "lower_scale", None)
        if scale is None or not isinstance(batch, Drawn):
            return 1.0
        return scale(X, batch.clients).abs().clamp_min(1.0)


def _samples(batch: Any) -> Any:
    return batch.batch if isinstance(batch, Drawn) else batch
