"""2x2 max-pooling: torch's values, torch's derivatives, in every mode, ties and odd sizes included."""

import pytest
import torch
import torch.nn.functional as F
from torch.func import jvp, vjp, vmap

from pipeline.models.pooling import MaxPool2x2

pool = MaxPool2x2()


def image(*shape, ties=False):
    values = torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return values.round() if ties else values


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("shape", [(2, 3, 4, 6), (3, 1, 5, 7), (1, 2, 2, 2), (2, 1, 3, 300)])
def test_values_and_gradients_are_torch_s_bit_for_bit(shape, ties):
    X = image(*shape, ties=ties).requires_grad_()
    ours, theirs = pool(X), F.max_pool2d(X, 2)
    assert torch.equal(ours, theirs)
    G = torch.randn_like(theirs)
    assert torch.equal(*(torch.autograd.grad(out, X, G)[0] for out in (ours, theirs)))


def test_tangents_and_second_derivatives():
    """Of sum(pool(X)^3): gradient 3 m^2 and second derivative 6 m t at the chosen entries, 0 elsewhere."""
    X, T = image(2, 3, 4, 4), image(2, 3, 4, 4).flip(0)
    chosen = F.max_pool2d(X, 2).repeat_interleave(2, -1).repeat_interleave(2, -2) == X
    value, tangent = jvp(pool, (X,), (T,))
    assert torch.equal(value.sum(), X[chosen].sum())
    torch.testing.assert_close(tangent.sum(), T[chosen].sum())

    def gradient(X):
        out, pull = vjp(lambda X: pool(X).pow(3).sum(), X)
        return pull(torch.ones_like(out))[0]

    found, second = jvp(gradient, (X,), (T,))
    torch.testing.assert_close(found, torch.where(chosen, 3 * X**2, 0))
    torch.testing.assert_close(second, torch.where(chosen, 6 * X * T, 0))


def test_a_dimension_of_clients_changes_nothing():
    X = image(3, 2, 1, 4, 6)
    assert torch.equal(vmap(pool)(X), torch.stack([F.max_pool2d(part, 2) for part in X]))
