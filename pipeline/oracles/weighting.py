"""Derivatives of a weighting problem for all active clients at once.

Notation: n active clients with losses f_i, one vector w [d], coefficients c [n], a direction lambda [d];
g_i = grad f_i(w; B_i) and h_i = Hess f_i(w; B_i) lambda. No Hessian is ever formed.

`FusedOracle` needs a few passes however many clients there are, because they all evaluate at the same w:

* sum_i c_i g_i is one backward pass of c . losses(w); if lambda rides along in the forward pass as a tangent, the
  losses' tangents are all the inner products lambda^T g_i;
* forward-over-reverse of the map w -> (losses, sum_i c_i g_i) along lambda gives every inner product lambda^T g_i
  and sum_i c_i h_i together, and sum_i c_i g_i on the same minibatch for nothing. Dense networks on a CPU take two
  backward passes instead, with lambda along in the forward pass: half the time, where what Python does around a pass
  costs more than its arithmetic (1.1 against 2.0 ms for 8 clients' 32 digits and 32 hidden units, one core of an AMD
  EPYC), while convolutions take 1.7 times as long (97 against 58 ms, LeNet-5).

`LoopOracle` is the plain per-client reference: one client at a time, double backward. Tests hold one against the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol, TypeVar

import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor
from torch.func import grad, jvp, vjp, vmap

from pipeline.problems.base import Batch, WeightingProblem

Result = TypeVar("Result")


class Oracle(Protocol):
    """What a method may ask of the clients (all but the last) and of the server's validation set."""

    problem: WeightingProblem

    def draw(self, stream: int, clients: Tensor, size: int) -> Batch:
        """A minibatch of `size` samples for each of the clients [n]."""
        ...

    def total(self, part: Tensor) -> Tensor:
        """What was contracted from per-client rows, completed by the rows that other processes hold."""
        ...

    def weighted_gradient(self, w: Tensor, batch: Batch, c: Tensor) -> Tensor:
        """sum_i c_i g_i, [d]."""
        ...

    def weighted_product(self, w: Tensor, lam: Tensor, batch: Batch, c: Tensor) -> tuple[Tensor, Tensor]:
        """(sum_i c_i h_i [d], all lambda^T g_i [n]), both on the same batch."""
        ...

    def gradient_with_inner(self, w: Tensor, lam: Tensor, batch: Batch, c: Tensor) -> tuple[Tensor, Tensor]:
        """(sum_i c_i g_i [d], all lambda^T g_i [n]), both on the same batch."""
        ...

    def gradient_and_product(self, w: Tensor, lam: Tensor, batch: Batch, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(sum_i c_i g_i [d], sum_i c_i h_i [d], all lambda^T g_i [n]), all on the same batch."""
        ...

    def gradients(self, w: Tensor, batch: Batch) -> Tensor:
        """g_i, client by client: [n, d]."""
        ...

    def products(self, w: Tensor, lam: Tensor, batch: Batch) -> Tensor:
        """h_i, client by client: [n, d]."""
        ...

    def gradients_and_products(self, w: Tensor, lam: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """g_i and h_i on the same batch, client by client: [n, d] both."""
        ...

    def inner_products(self, w: Tensor, lam: Tensor, batch: Batch) -> Tensor:
        """All lambda^T g_i, [n]."""
        ...

    def losses(self, w: Tensor, batch: Batch) -> Tensor:
        """All f_i(w; B_i), [n]."""
        ...

    def validation_gradient(self, w: Tensor, batch: Batch) -> Tensor:
        """grad f_0(w; B_0), [d]."""
        ...

    def validation_product(self, w: Tensor, v: Tensor, batch: Batch) -> Tensor:
        """Hess f_0(w; B_0) v, [d]."""
        ...


def _gradient(loss: Tensor, w: Tensor, create_graph: bool = False) -> Tensor:
    return torch.autograd.grad(loss, w, create_graph=create_graph)[0]


def forward_over_reverse(
    problem: WeightingProblem, w: Tensor, lam: Tensor, batch: Batch, c: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Along lambda: (sum_i c_i g_i, sum_i c_i h_i, lambda^T g_i for each i)."""

    def losses_and_gradient(u: Tensor) -> tuple[Tensor, Tensor]:
        losses, pull, *_ = vjp(lambda v: problem.losses(v, batch), u)
        return losses, pull(c)[0]

    (_, gradient), (inner, product), *_ = jvp(losses_and_gradient, (w,), (lam,))
    return gradient, product, inner


def validation_product(problem: WeightingProblem, w: Tensor, v: Tensor, batch: Batch) -> Tensor:
    """Hess f_0(w; B_0) v."""

    def gradient(u: Tensor) -> Tensor:
        return grad(lambda point: problem.validation_loss(point, batch))(u)

    product: Tensor = jvp(gradient, (w,), (v,))[1]
    return product


def twice_backward(
    problem: WeightingProblem, w: Tensor, lam: Tensor, batch: Batch, c: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The same by the gradient of lambda^T sum_i c_i g_i; not under `vmap`."""
    w = w.detach().requires_grad_()
    losses, inner = _losses_and_inner(problem, w, lam, batch)
    gradient = _gradient(c @ losses, w, create_graph=True)
    return gradient.detach(), _gradient(gradient @ lam, w), inner


def _losses_and_inner(problem: WeightingProblem, w: Tensor, lam: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """(losses [n], differentiable in w; lambda^T g_i [n]) in one pass."""
    with forward_ad.dual_level():
        losses, inner = forward_ad.unpack_dual(problem.losses(forward_ad.make_dual(w, lam), batch))
        inner = inner.detach().clone()
    # Outside the level the saved tensors have lost their tangents: a backward pass is an ordinary one.
    return losses, inner


def client_by_client(function: Callable[[Batch], Result], batch: Batch) -> Result:
    """function of every client's own part of the minibatch, as one batched pass; clients lead in what it returns."""
    return vmap(lambda *parts: function(tuple(part[None] for part in parts)))(*batch)


class FusedOracle:
    """All clients in one pass. Per-client answers [n, d], which only the memory estimator needs, take a batched pass
    too, unless the problem says that one by one is faster."""

    def __init__(self, problem: WeightingProblem) -> None:
        self.problem = problem

    def draw(self, stream: int, clients: Tensor, size: int) -> Batch:
        return self.problem.draw(stream, clients, size)

    def total(self, part: Tensor) -> Tensor:
        return part

    def weighted_gradient(self, w: Tensor, batch: Batch, c: Tensor) -> Tensor:
        w = w.detach().requires_grad_()
        with torch.enable_grad():
            return _gradient(c @ self.problem.losses(w, batch), w)

    def weighted_product(self, w: Tensor, lam: Tensor, batch: Batch, c: Tensor) -> tuple[Tensor, Tensor]:
        return self.gradient_and_product(w, lam, batch, c)[1:]

    def gradient_and_product(self, w: Tensor, lam: Tensor, batch: Batch, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        with torch.enable_grad():  # without, group normalisation has no forward derivative of its backward pass
            if self._one_by_one or w.is_cuda:
                return forward_over_reverse(self.problem, w.detach(), lam, batch, c)
            return twice_backward(self.problem, w, lam, batch, c)

    def gradient_with_inner(self, w: Tensor, lam: Tensor, batch: Batch, c: Tensor) -> tuple[Tensor, Tensor]:
        w = w.detach().requires_grad_()
        with torch.enable_grad():
            losses, inner = _losses_and_inner(self.problem, w, lam, batch)
            return _gradient(c @ losses, w), inner

    def gradients(self, w: Tensor, batch: Batch) -> Tensor:
        if not self._one_by_one:
            with torch.no_grad():
                return client_by_client(lambda one: self._alone(w, one), batch)
        w = w.detach().requires_grad_()
        with torch.enable_grad():
            return torch.stack([_gradient(self._loss(w, batch, i), w) for i in range(self._count(batch))])

    def products(self, w: Tensor, lam: Tensor, batch: Batch) -> Tensor:
        return self.gradients_and_products(w, lam, batch)[1]

    def gradients_and_products(self, w: Tensor, lam: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        one, select = torch.ones(1, dtype=w.dtype, device=w.device), self.problem.select
        if not self._one_by_one:
            with torch.enable_grad():
                return client_by_client(lambda part: forward_over_reverse(self.problem, w, lam, part, one)[:2], batch)
        alone = (self.gradient_and_product(w, lam, select(batch, i), one)[:2] for i in range(self._count(batch)))
        G, H = zip(*alone, strict=True)
        return torch.stack(G), torch.stack(H)

    def inner_products(self, w: Tensor, lam: Tensor, batch: Batch) -> Tensor:
        with torch.no_grad():
            return jvp(lambda v: self.problem.losses(v, batch), (w,), (lam,))[1]

    def losses(self, w: Tensor, batch: Batch) -> Tensor:
        with torch.no_grad():
            return self.problem.losses(w, batch)

    def validation_gradient(self, w: Tensor, batch: Batch) -> Tensor:
        w = w.detach().requires_grad_()
        with torch.enable_grad():
            return _gradient(self.problem.validation_loss(w, batch), w)

    def validation_product(self, w: Tensor, v: Tensor, batch: Batch) -> Tensor:
        if not (self._one_by_one or w.is_cuda):
            return self._validation_product_twice(w, v, batch)
        with torch.enable_grad():
            return validation_product(self.problem, w.detach(), v, batch)

    def _validation_product_twice(self, w: Tensor, v: Tensor, batch: Batch) -> Tensor:
        """By two backward passes."""
        w = w.detach().requires_grad_()
        with torch.enable_grad():
            return _gradient(_gradient(self.problem.validation_loss(w, batch), w, create_graph=True) @ v, w)

    @property
    def _one_by_one(self) -> bool:
        return self.problem.one_by_one

    def _alone(self, w: Tensor, batch: Batch) -> Tensor:
        """The gradient of the only client in the batch, by torch.func."""
        return grad(lambda v: self.problem.losses(v, batch)[0])(w)

    def _loss(self, w: Tensor, batch: Batch, i: int) -> Tensor:
        return self.problem.losses(w, self.problem.select(batch, i))[0]

    def _count(self, batch: Batch) -> int:
        return len(batch[0])


class LoopOracle(FusedOracle):
    """One client at a time, by double backward: slow and plain."""

    @property
    def _one_by_one(self) -> bool:
        return True

    def weighted_gradient(self, w: Tensor, batch: Batch, c: Tensor) -> Tensor:
        return self.gradient_with_inner(w, w, batch, c)[0]

    def gradient_and_product(self, w: Tensor, lam: Tensor, batch: Batch, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        sum_g, sum_h, inner = torch.zeros_like(w), torch.zeros_like(w), torch.zeros_like(c)
        for i, (g, h) in enumerate(self._answers(w, lam, batch)):
            sum_g.add_(c[i] * g)
            sum_h.add_(c[i] * h)
            inner[i] = g @ lam
        return sum_g, sum_h, inner

    def gradient_with_inner(self, w: Tensor, lam: Tensor, batch: Batch, c: Tensor) -> tuple[Tensor, Tensor]:
        sum_g, inner = torch.zeros_like(w), torch.zeros_like(c)
        w = w.detach().requires_grad_()
        for i in range(self._count(batch)):
            with torch.enable_grad():
                g = _gradient(self._loss(w, batch, i), w)
            sum_g.add_(c[i] * g)
            inner[i] = g @ lam
        return sum_g, inner

    def inner_products(self, w: Tensor, lam: Tensor, batch: Batch) -> Tensor:
        return self.gradients(w, batch) @ lam

    def losses(self, w: Tensor, batch: Batch) -> Tensor:
        with torch.no_grad():
            return torch.stack([self._loss(w, batch, i) for i in range(self._count(batch))])

    def validation_product(self, w: Tensor, v: Tensor, batch: Batch) -> Tensor:
        return self._validation_product_twice(w, v, batch)

    def gradients_and_products(self, w: Tensor, lam: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        G, H = (w.new_empty(self._count(batch), len(w)) for _ in range(2))
        for i, (g, h) in enumerate(self._answers(w, lam, batch)):
            G[i], H[i] = g, h
        return G, H

    def _answers(self, w: Tensor, lam: Tensor, batch: Batch) -> Iterator[tuple[Tensor, Tensor]]:
        """(g_i, h_i), one client's after the other's: no more than one graph is held."""
        w = w.detach().requires_grad_()
        for i in range(self._count(batch)):
            with torch.enable_grad():
                gradient = _gradient(self._loss(w, batch, i), w, create_graph=True)
                product = _gradient(gradient @ lam, w)
            gradient = gradient.detach()
            yield gradient, product


ORACLES: dict[str, type[FusedOracle]] = {"fused": FusedOracle, "loop": LoopOracle}
