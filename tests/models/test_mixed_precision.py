"""A network in mixed precision: products in bfloat16, everything else as before."""

import pytest
import torch
from torch.func import jvp, vjp, vmap
from torch.nn.functional import cross_entropy

from pipeline.models import Normalise, build

SHAPES = {"linear": (1, 8), "mlp": (1, 8), "lenet5": (1, 28), "cnn": (3, 32), "resnet18": (3, 32)}


def images(name, count=6):
    channels, size = SHAPES[name]
    return torch.rand(count, channels, size, size, generator=torch.Generator().manual_seed(1))


def test_the_product_is_that_of_numbers_rounded_to_eight_bits():
    """logits = bfloat16(X) bfloat16(W)^T + b, rounded once more: 2^-9 of the result, and of the bias, at most."""
    model, X = build("linear", 1, 8, 10), images("linear")
    w = model.initial(0)
    W, b = (model.parts(w)[name] for name in model.names)
    rounded = X.flatten(1).bfloat16().double() @ W.bfloat16().double().T + b.double()
    exact = X.flatten(1).double() @ W.double().T + b.double()
    found = model.mixed.apply(w, X)
    assert found.dtype == torch.float32
    assert (found - rounded).abs().max() <= 2**-8 * rounded.abs().max()
    assert (found - exact).abs().max() > 1e-4  # it is rounded at all


@pytest.mark.parametrize("name", SHAPES)
def test_exact_is_the_network_as_it_was(name):
    model, X = build(name, *SHAPES[name], 10), images(name)
    w = model.initial(0)
    assert torch.equal(model.mixed.exact.apply(w, X), model.apply(w, X))
    assert not torch.equal(model.mixed.apply(w, X), model.apply(w, X))
    assert model.mixed.head == model.head


@pytest.mark.parametrize("name", SHAPES)
def test_gradients_and_forward_over_reverse_products(name):
    """Within some per cent of the exact ones: bfloat16 keeps two to three digits of every layer."""
    model, X = build(name, *SHAPES[name], 10), images(name)
    w, y = model.initial(0), torch.arange(len(X))
    lam = torch.randn(model.d, generator=torch.Generator().manual_seed(2)) / model.d**0.5

    def derivatives(chosen):
        def gradient(u):
            return vjp(lambda v: cross_entropy(chosen.apply(v, X), y), u)[1](torch.ones(()))[0]

        return jvp(gradient, (w,), (lam,))

    (g, h), (mixed_g, mixed_h) = derivatives(model), derivatives(model.mixed)
    assert mixed_g.dtype == mixed_h.dtype == torch.float32
    for found, right in ((mixed_g, g), (mixed_h, h)):
        error = torch.linalg.vector_norm(found - right) / torch.linalg.vector_norm(right)
        assert 0 < error < 0.25


@pytest.mark.parametrize("name", ["mlp", "lenet5"])
def test_every_client_its_own_parameters(name):
    """The dense network's batched products and the others' row by row: like each client alone."""
    model, X = build(name, *SHAPES[name], 10).mixed, images(name).unflatten(0, (3, 2))
    W = torch.stack([model.initial(seed) for seed in range(3)])
    alone = torch.stack([model.apply(w, x) for w, x in zip(W, X, strict=True)])
    assert model.apply_each(W, X).dtype == torch.float32
    torch.testing.assert_close(model.apply_each(W, X), alone, rtol=0.02, atol=0.005)
    torch.testing.assert_close(vmap(model.apply)(W, X), alone, rtol=0.02, atol=0.005)
    body, head = W.split([model.d - model.head, model.head], dim=1)
    torch.testing.assert_close(model.apply_halves_each(body, head, X), alone, rtol=0.02, atol=0.005)


def test_a_layer_in_front_changes_nothing_about_it():
    model, X = build("linear", 1, 8, 10), images("linear")
    w = model.initial(0)
    behind = model.mixed.after(lambda: Normalise((0.0,), (1.0,)))
    torch.testing.assert_close(behind.apply(w, X), model.mixed.apply(w, X), rtol=0, atol=0)
