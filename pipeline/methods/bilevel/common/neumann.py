"""Inverse Hessian times a vector by a Neumann series, over the federation or by each client on its own.

    H^-1 b = lambda sum_{m >= 0} (I - lambda H)^m b          for 0 < lambda < 2 / (largest eigenvalue of H)
    after M terms it is (I - (I - lambda H)^M) H^-1 b

| symbol | here |
|---|---|
| lambda (1/l in FedNest's theory, tau in FedBiO's (6)) | `size` |
| M = `terms`: FedNest's N, FedBiO's Q + 1 | M - 1 products |

Every factor has its own minibatch: the mean of a product of independent factors is the product of their means; one
batch for all factors is biased.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pipeline.methods.base import Cost
from pipeline.methods.bilevel.common.bilevel_context import BilevelContext, Cohort, UpperLevel, rows
from pipeline.problems.base import Batch


def client_sets(context: BilevelContext, exchange: int) -> Cohort:
    """Who takes part in that exchange of FedOut: `client_sets: one` set for all of them, or a fresh one for each; the
    public code's clients keep vectors between exchanges, so there it is one."""
    one = context.hyper.client_sets == "one" or context.hyper.mode != "clean"
    return context.cohort() if one else context.cohort(exchange)


def federated(context: BilevelContext, x: Tensor, y: Tensor, upper: UpperLevel) -> tuple[Tensor, Cost, Tensor]:
    """FedNest's FedIHGP: (estimate of [D2yy G]^-1 grad_y F at (x, y), [d_y]; what it cost, but for sending x and y; ids
    of the clients that it asked, to each of which these are sent once).

    One exchange for b = avg grad_y f_i (none where the server holds f), then one per product, in which the clients send
    D2yy g_i c and get the average back: the power of the averaged Hessian. `series: deterministic` sums the terms;
    `randomised` draws their number of factors uniformly and returns M lambda times that one product, of the same mean.
    """
    hyper, M, size = context.hyper, context.hyper.series_terms, context.hyper.eta_h
    clients, p = client_sets(context, 0)
    d_y, n = len(y), len(clients)
    b = context.total(p.to(y) @ upper.gradient_y(rows(x, n), rows(y, n), context.upper_batch("series", clients)))
    cost, asked = Cost(), []
    if not context.server_upper:
        cost, asked = Cost(1, floats_up=d_y * n, gradients=n), [clients]
    if hyper.mode != "clean":
        total, more = _as_published(context, x, y, b)
        return size * total, cost + more, clients

    factors = M - 1 if hyper.series == "deterministic" else context.integer("series", M)
    c, total = b, b
    for m in range(1, factors + 1):
        clients, p = client_sets(context, m)
        n = len(clients)
        B = context.lower_batch("series", clients, m)
        product = context.oracle.hessian_products(rows(x, n), rows(y, n), rows(c, n), B)
        c = c - size * context.total(p.to(y) @ product)
        total = total + c
        cost += Cost(1, floats_up=d_y * n, floats_down=d_y * n, hvps=n)
        asked.append(clients)
    v = size * (total if hyper.series == "deterministic" else M * c)
    return v, cost, torch.cat([torch.zeros(0, dtype=torch.int64), *asked])


def _as_published(context: BilevelContext, x: Tensor, y: Tensor, b: Tensor) -> tuple[Tensor, Cost]:
    """What FedNest's public code sums instead, N = `series_terms` - 1 products: every client keeps a running vector
    c_i <- (I - lambda H_i) c_i of its OWN, from the averaged b, and c-bar_j is the clients' average after j products.

    code_global_batch: b + sum_j c-bar_j / j, since its list of client vectors is not cleared between exchanges.
    code_local_batch:  b + sum_j c-bar_j, really one exchange, still counted as N.
    """
    clients, p = context.cohort()
    n, d_y = len(clients), len(y)
    X, Y, C, total = rows(x, n), rows(y, n), rows(b, n), b
    products = context.hyper.series_terms - 1
    for j in range(1, products + 1):
        C = C - context.hyper.eta_h * context.oracle.hessian_products(
            X, Y, C, context.lower_batch("series", clients, j)
        )
        total = total + context.total(p.to(y) @ C) / (j if context.hyper.mode == "code_global_batch" else 1)
    sent = products * d_y * n
    return total, Cost(products, floats_up=sent, floats_down=sent, hvps=products * n)


class LocalBatches(NamedTuple):
    """Draws of a client's own hypergradient: f-data for grad_y f and for grad_x f, g-data for the cross product and for
    every factor of the series."""

    upper_y: Batch
    upper_x: Batch
    cross: Batch
    factors: Sequence[Batch]


def draw_local(
    context: BilevelContext, clients: Tensor, terms: int, *exchange: int, one_upper: bool, size: int | None = None
) -> LocalBatches:
    """Independent minibatches. one_upper: both gradients of f on the same one, as in FedBiO's (6)."""
    upper_y = context.upper_batch("local hypergradient", clients, *exchange, size=size)
    upper_x = upper_y if one_upper else context.upper_batch("local direct", clients, *exchange, size=size)
    cross = context.lower_batch("local cross", clients, *exchange, size=size)
    factors = [context.lower_batch("local series", clients, *exchange, m, size=size) for m in range(1, terms)]
    return LocalBatches(upper_y, upper_x, cross, factors)


def local_hypergradients(
    context: BilevelContext, X: Tensor, Y: Tensor, batches: LocalBatches, upper: UpperLevel, size: float
) -> Tensor:
    """Each client's own grad_x f_i - D2xy g_i lambda sum_{m < M} (I - lambda D2yy g_i)^m grad_y f_i, [n, d_x].

    The factor drawn last acts first in the paper's (6); the draws being alike, the order of use is ours.
    """
    if batches.upper_x is batches.upper_y:
        f_x, r = upper.gradients(X, Y, batches.upper_y)
    else:
        r = upper.gradient_y(X, Y, batches.upper_y)
        f_x = upper.gradient_x(X, Y, batches.upper_x)
    s = r
    for B in batches.factors:
        r = r - size * context.oracle.hessian_products(X, Y, r, B)
        s = s + r
    return f_x - context.oracle.cross_products(X, Y, size * s, batches.cross)


def local_work(context: BilevelContext, evaluations: int, terms: int) -> Cost:
    """Of that many of these, summed over clients: grad_x f and grad_y f; M - 1 HVPs and a JVP."""
    return Cost(gradients=0 if context.server_upper else 2 * evaluations, hvps=terms * evaluations)
