"""Derivatives of a bilevel problem, each client at its own point, for all active clients at once.

Notation: n active clients with upper losses f_i and lower losses g_i; points X [n, d_x], Y [n, d_y] and directions V
[n, d_y], one row per client; answers have one row per client too. D2yy g_i V_i is a Hessian-vector product (HVP),
D2xy g_i V_i a Jacobian-vector product (JVP), with D2xy g the d_x x d_y matrix of second derivatives. No matrix is ever
formed.

Rows are independent, so ONE backward pass of losses.sum() yields every client's gradient, and one double
backward of <grad_y g, V> every client's products: with V held constant, its derivative in y is D2yy g V and that in x
is D2xy g V. Where a loss does not depend on a variable the answer is zero.

`LoopBilevelOracle` is the plain reference: one client at a time. Tests hold one against the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from pipeline.problems.base import Batch, BilevelProblem

Losses = Callable[[Tensor, Tensor, Batch], Tensor]


def _leaf(u: Tensor) -> Tensor:
    return u.detach().clone(memory_format=torch.contiguous_format).requires_grad_()


def _derivatives(value: Tensor, of: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Of a scalar, with zeros where it does not depend on the argument."""
    if not value.requires_grad:
        return tuple(torch.zeros_like(u) for u in of)
    return torch.autograd.grad(value, of, allow_unused=True, materialize_grads=True)


def _empty(X: Tensor, Y: Tensor, names: str) -> tuple[Tensor, ...]:
    """Answers without rows: a process of several may have no active client."""
    return tuple({"x": X, "y": Y}[name] for name in names)


class BilevelOracle:
    """All clients in one pass."""

    def __init__(self, problem: BilevelProblem) -> None:
        self.problem = problem

    def lower_gradients(self, X: Tensor, Y: Tensor, batch: Batch) -> Tensor:
        """grad_y g_i, [n, d_y]."""
        return self._first(self.problem.lower_losses, X, Y, batch, "y")[0]

    def upper_gradients(self, X: Tensor, Y: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """(grad_x f_i [n, d_x], grad_y f_i [n, d_y]), both on the same batch."""
        x, y = self._first(self.problem.upper_losses, X, Y, batch, "xy")
        return x, y

    def upper_gradient_x(self, X: Tensor, Y: Tensor, batch: Batch) -> Tensor:
        """grad_x f_i, [n, d_x]."""
        return self._first(self.problem.upper_losses, X, Y, batch, "x")[0]

    def upper_gradient_y(self, X: Tensor, Y: Tensor, batch: Batch) -> Tensor:
        """grad_y f_i, [n, d_y]."""
        return self._first(self.problem.upper_losses, X, Y, batch, "y")[0]

    def lower_products(self, X: Tensor, Y: Tensor, V: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """(D2yy g_i V_i [n, d_y], D2xy g_i V_i [n, d_x]), both on the same batch."""
        yy, xy = self._second(X, Y, V, batch, "yx")
        return yy, xy

    def hessian_products(self, X: Tensor, Y: Tensor, V: Tensor, batch: Batch) -> Tensor:
        """D2yy g_i V_i, [n, d_y]."""
        return self._second(X, Y, V, batch, "y")[0]

    def cross_products(self, X: Tensor, Y: Tensor, V: Tensor, batch: Batch) -> Tensor:
        """D2xy g_i V_i, [n, d_x]."""
        return self._second(X, Y, V, batch, "x")[0]

    def _first(self, losses: Losses, X: Tensor, Y: Tensor, batch: Batch, names: str) -> tuple[Tensor, ...]:
        """Gradients in the named variables; a variable that is not named costs no backward pass."""
        if not len(X):
            return _empty(X, Y, names)
        point = {"x": _leaf(X) if "x" in names else X.detach(), "y": _leaf(Y) if "y" in names else Y.detach()}
        with torch.enable_grad():
            return _derivatives(losses(point["x"], point["y"], batch).sum(), [point[name] for name in names])

    def _second(self, X: Tensor, Y: Tensor, V: Tensor, batch: Batch, names: str) -> tuple[Tensor, ...]:
        """Derivatives of <grad_y g_i, V_i> in the named variables, V held constant."""
        if not len(X):
            return _empty(X, Y, names)
        point = {"x": _leaf(X) if "x" in names else X.detach(), "y": _leaf(Y)}
        with torch.enable_grad():
            total = self.problem.lower_losses(point["x"], point["y"], batch).sum()
            (gradient,) = torch.autograd.grad(total, point["y"], create_graph=True)
            return _derivatives((gradient * V.detach()).sum(), [point[name] for name in names])


class LoopBilevelOracle(BilevelOracle):
    """One client at a time."""

    def _first(self, losses: Losses, X: Tensor, Y: Tensor, batch: Batch, names: str) -> tuple[Tensor, ...]:
        select, first = self.problem.select, super()._first
        if not len(X):
            return first(losses, X, Y, batch, names)
        rows = [first(losses, X[i : i + 1], Y[i : i + 1], select(batch, i), names) for i in range(len(X))]
        return tuple(torch.cat(column) for column in zip(*rows, strict=True))

    def _second(self, X: Tensor, Y: Tensor, V: Tensor, batch: Batch, names: str) -> tuple[Tensor, ...]:
        select, second = self.problem.select, super()._second
        if not len(X):
            return second(X, Y, V, batch, names)
        rows = [second(X[i : i + 1], Y[i : i + 1], V[i : i + 1], select(batch, i), names) for i in range(len(X))]
        return tuple(torch.cat(column) for column in zip(*rows, strict=True))


BILEVEL_ORACLES: dict[str, type[BilevelOracle]] = {"fused": BilevelOracle, "loop": LoopBilevelOracle}
