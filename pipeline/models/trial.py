"""Whether a network can be used, and how its derivatives can be had: tried on a few samples before work starts.

Clients go through a network in one pass where `torch.func` can do that: not through recurrent layers, nor where Python
branches on a tensor. Those go one after the other, by two backward passes. Attention takes the kernel that has second
derivatives.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import grad, jvp, vmap

from pipeline.config import own_code
from pipeline.errors import UserError
from pipeline.models.flat import FlatModel

ALONE = "use nn.GroupNorm instead of batch normalisation, and torch.where instead of an if on a batch's values"
CLIENTS, SAMPLES = 2, 4


def require_steady(label: str, model: FlatModel, black: Tensor) -> None:
    """UserError unless logits are finite, the same when repeated, and the same for one sample alone. black: two samples
    of zeros.

    Random layers would put different masks on the two points whose gradients a method compares; a layer that mixes
    samples would mix clients, whose minibatches share one pass.
    """
    w = model.initial(0)
    grey = torch.linspace(0, 1, black.numel(), dtype=w.dtype).view(black.shape)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        logits, first, again, alone = (model.apply(w, X) for X in (black, grey, grey, grey[:1]))
    if not logits.isfinite().all() or not first.isfinite().all():
        raise UserError(f"{label} gives logits that are not finite. Fix: correct its initialisation or forward.")
    if not torch.equal(first, again):
        raise UserError(
            f"{label} cannot be used: it is random (two passes over the same samples differ), and gradients at two"
            " points would see different masks. Fix: remove dropout, or set its p to 0."
        )
    if not torch.allclose(first[:1], alone, rtol=1e-3, atol=1e-4):
        raise UserError(
            f"{label} cannot be used: a sample's logits depend on the rest of the batch, which holds other clients'"
            f" samples. Fix: {ALONE}."
        )


def tried(label: str, model: FlatModel, black: Tensor) -> None:
    """Of a network of one's own: UserError unless it is steady, also on samples of all kinds; then sets how its
    derivatives are had (`FlatModel.one_pass`, `exact_kernels`, `no_products`). black: two samples of zeros."""
    require_steady(label, model, black)
    w, shape = model.initial(0), (CLIENTS, SAMPLES, *black.shape[1:])
    generator = torch.Generator().manual_seed(0)
    vectors = black[0, 0].numel() == 1
    X = torch.randn(shape, generator=generator) if vectors else torch.rand(shape, generator=generator)
    every = X.flatten(0, 1).to(w)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        together, alone = model.apply(w, every), torch.cat([model.apply(w, one[None]) for one in every])
    if not torch.allclose(together, alone, rtol=1e-3, atol=1e-4, equal_nan=True):
        raise UserError(
            f"{label} cannot be used: a sample's logits depend on the rest of the batch, which holds other clients'"
            f" samples. Fix: {ALONE}."
        )
    model.no_products = _failure(_twice, model, w, every)
    if model.no_products:
        model.exact_kernels = True
        model.no_products = _failure(_twice, model, w, every)
        model.exact_kernels = not model.no_products
    model.one_pass = not _failure(_at_once, model, w, X.to(w))


def _failure(attempt: Callable[[FlatModel, Tensor, Tensor], Tensor], model: FlatModel, w: Tensor, X: Tensor) -> str:
    """What goes wrong, in a line; "" if nothing does."""
    try:
        with torch.random.fork_rng(devices=[]):
            attempt(model, w, X)
    except Exception as error:
        return own_code.cause(error)
    return ""


def _twice(model: FlatModel, w: Tensor, X: Tensor) -> Tensor:
    """A Hessian-vector product by two backward passes."""
    w = w.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(model.apply(w, X).square().sum(), w, create_graph=True)
    return torch.autograd.grad(gradient @ w.detach(), w)[0]


def _at_once(model: FlatModel, w: Tensor, X: Tensor) -> Tensor:
    """Those of all clients together, as `pipeline.oracles.weighting` computes them; X [n, B, ...]."""

    def product(own: Tensor) -> Tensor:
        def loss(v: Tensor) -> Tensor:
            return model.apply(v, own).square().sum()

        found: Tensor = jvp(grad(loss), (w,), (w,))[1]
        return found

    return vmap(product)(X)
