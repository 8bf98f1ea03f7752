"""The three directions of the single-loop methods, client by client, and the minibatches they are taken on.

At a client's point z = (X, Y, V), with v the adjoint variable (the running solution of D2yy G v = grad_y F):

    dy = grad_y g_i(X, Y; B_y)
    dv = D2yy g_i(X, Y; B_v) V - grad_y f_i(X, Y; B_v')        gradient of 1/2 v' D2yy g_i v - v' grad_y f_i
    dx = grad_x f_i(X, Y; B_x') - D2xy g_i(X, Y; B_x) V        the hypergradient when y = y*(x), v = v*(x)

SimFBO, equations (2) and (3); FedBiO, Algorithm 1; lines 8-10 and 3-5 of the specifications' listings. All three are
linear in client i's functions, so their p-weighted means are those of F and G: the hypergradient itself is not (it has
an inverse). Both papers want the five minibatches independent; `shared_batch` draws one of g-data and one of f-data for
all three, and then one double backward pass yields both products.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from pipeline.methods.base import Cost
from pipeline.methods.bilevel.common.bilevel_context import BilevelContext, UpperLevel, rows
from pipeline.problems.base import Batch


class Point(NamedTuple):
    """(x, y, v): server's ([d]) or clients' ([n, d]) variables, directions or momenta."""

    x: Tensor
    y: Tensor
    v: Tensor

    def rows(self, n: int) -> Point:
        """Copied to n clients."""
        return Point(*(rows(u, n) for u in self))

    def select(self, clients: Tensor) -> Point:
        """Some of the clients."""
        return Point(*(u[clients.to(u.device)] for u in self))

    def mean_change(self, context: BilevelContext, clients: Point, p: Tensor) -> Point:
        """self - sum_i p_i (self - z_i): the active clients' average, unbiased also where their weights do not sum to
        1."""
        context.judge()
        changes = context.share.total(*(p.to(u.dtype) @ (u - U) for u, U in zip(self, clients, strict=True)))
        return Point(*(u - change for u, change in zip(self, changes, strict=True)))


class Batches(NamedTuple):
    """One set of draws: g-data for y, v and x, f-data for v and x."""

    lower_y: Batch
    lower_v: Batch
    lower_x: Batch
    upper_v: Batch
    upper_x: Batch


def draw(context: BilevelContext, clients: Tensor, *exchange: int, size: int | None = None) -> Batches:
    """Five independent minibatches per client, or two under `shared_batch`."""
    if context.hyper.shared_batch:
        lower = context.lower_batch("shared", clients, *exchange, size=size)
        upper = context.upper_batch("shared", clients, *exchange, size=size)
        return Batches(lower, lower, lower, upper, upper)
    lowers = (context.lower_batch(purpose, clients, *exchange, size=size) for purpose in "yvx")
    uppers = (context.upper_batch(purpose, clients, *exchange, size=size) for purpose in "vx")
    return Batches(*lowers, *uppers)


def directions(context: BilevelContext, at: Point, batches: Batches, upper: UpperLevel) -> Point:
    """(dx, dy, dv) of every client at its own point."""
    oracle, (X, Y, V) = context.oracle, at
    dy = oracle.lower_gradients(X, Y, batches.lower_y)
    if context.hyper.shared_batch:
        product, cross = oracle.lower_products(X, Y, V, batches.lower_v)
        f_x, f_y = upper.gradients(X, Y, batches.upper_v)
    else:
        product = oracle.hessian_products(X, Y, V, batches.lower_v)
        cross = oracle.cross_products(X, Y, V, batches.lower_x)
        f_y = upper.gradient_y(X, Y, batches.upper_v)
        f_x = upper.gradient_x(X, Y, batches.upper_x)
    return Point(f_x - cross, dy, product - f_y)


def work(context: BilevelContext, evaluations: int) -> Cost:
    """Of that many evaluations of the three directions, summed over clients: grad_y g, grad_x f, grad_y f; HVP, JVP."""
    return Cost(gradients=evaluations * (1 if context.server_upper else 3), hvps=evaluations * 2)
