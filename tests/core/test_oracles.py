"""Fused passes against the plain loop, and both against matrices by hand and finite differences (float64)."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from pipeline.methods import ALGORITHMS
from pipeline.methods.client_weighting.primal_dual import PrimalDual
from pipeline.models import FlatModel
from pipeline.oracles import FusedOracle, LoopOracle
from pipeline.oracles.weighting import client_by_client, forward_over_reverse, twice_backward
from pipeline.problems.client_weighting import ClientWeighting
from pipeline.problems.toy import Toy
from pipeline.repetitions import Repetitions
from tests.core.helpers import make_context, run
from tests.problems import small


@pytest.fixture(scope="module")
def setting():
    toy = Toy.generate(clients=5, seed=3)
    generator = torch.Generator().manual_seed(0)
    w, lam = (torch.randn(toy.dimension, generator=generator, dtype=torch.float64) for _ in range(2))
    c = torch.rand(3, generator=generator, dtype=torch.float64)
    clients = torch.tensor([0, 2, 4])
    return toy, w, lam, c, clients, (clients,)


@pytest.mark.parametrize("oracle", [FusedOracle, LoopOracle])
def test_against_closed_forms(setting, oracle):
    toy, w, lam, c, clients, batch = setting
    oracle = oracle(toy)
    G = toy.gradients(w)[1:][clients]
    weights = torch.zeros(toy.clients, dtype=torch.float64)
    weights[clients] = c
    product, inner = oracle.weighted_product(w, lam, batch, c)
    close = {"rtol": 1e-11, "atol": 1e-11}
    torch.testing.assert_close(oracle.gradients(w, batch), G, **close)
    torch.testing.assert_close(oracle.weighted_gradient(w, batch, c), c @ G, **close)
    torch.testing.assert_close(product, toy.hessian(w, weights) @ lam, **close)
    torch.testing.assert_close(inner, G @ lam, **close)
    gradient, inner = oracle.gradient_with_inner(w, lam, batch, c)
    torch.testing.assert_close(gradient, c @ G, **close)
    torch.testing.assert_close(inner, G @ lam, **close)
    gradient, product, inner = oracle.gradient_and_product(w, lam, batch, c)
    torch.testing.assert_close(gradient, c @ G, **close)
    torch.testing.assert_close(product, toy.hessian(w, weights) @ lam, **close)
    torch.testing.assert_close(inner, G @ lam, **close)
    torch.testing.assert_close(oracle.gradients_and_products(w, lam, batch)[0], G, **close)
    torch.testing.assert_close(oracle.validation_gradient(w, (torch.tensor([-1]),)), toy.gradients(w)[0], **close)
    for row, i in zip(oracle.products(w, lam, batch), clients, strict=True):
        single = torch.zeros(toy.clients, dtype=torch.float64)
        single[i] = 1.0
        torch.testing.assert_close(row, toy.hessian(w, single) @ lam, **close)


def test_a_batched_pass_answers_as_clients_do_one_by_one(setting):
    """What a GPU takes: gradients and products of all clients at once, here on a CPU, with white noise in the batch."""
    toy, w, lam, _, clients, _ = setting
    noisy, one = replace(toy, noise=0.5), torch.ones(1, dtype=torch.float64)
    oracle, batch = FusedOracle(noisy), noisy.draw(7, clients, 1)
    G, H = client_by_client(lambda part: forward_over_reverse(noisy, w, lam, part, one)[:2], batch)
    rows, products = oracle.gradients_and_products(w, lam, batch)
    torch.testing.assert_close(client_by_client(lambda part: oracle._alone(w, part), batch), rows)
    torch.testing.assert_close(G, rows)
    torch.testing.assert_close(H, products)


def test_two_backward_passes_are_forward_over_reverse(setting):
    toy, w, lam, c, clients, _ = setting
    arguments = (toy, w, lam, toy.draw(7, clients, 1), c)
    for one, other in zip(twice_backward(*arguments), forward_over_reverse(*arguments), strict=True):
        torch.testing.assert_close(one, other)
        assert not one.requires_grad


def normalising():
    """4 x 4 images; its group normalisation has no forward derivative of its backward pass where gradients are off."""
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.GroupNorm(1, 2), nn.Flatten(), nn.Linear(8, 3))


@pytest.mark.parametrize("batched", [True, False])
def test_group_normalisation_within_and_without_a_batched_pass(monkeypatch, batched):
    """Batched: as on a GPU. Fused = loop; and several runs together, which need vmap, = one alone."""
    problem = ClientWeighting(FlatModel(normalising), small.data())
    monkeypatch.setattr(ClientWeighting, "one_by_one", not batched)
    fused, loop, w = FusedOracle(problem), LoopOracle(problem), problem.initial(0).double()
    lam, c = torch.linspace(-1, 1, len(w), dtype=w.dtype), torch.tensor([0.2, 0.5, 0.3], dtype=w.dtype)
    batch = problem.draw(1, torch.arange(3), 4)
    with torch.no_grad():
        found = [*fused.gradients_and_products(w, lam, batch), *fused.weighted_product(w, lam, batch, c)]
    right = [*loop.gradients_and_products(w, lam, batch), *loop.weighted_product(w, lam, batch, c)]
    for one, other in zip(found, right, strict=True):
        torch.testing.assert_close(one, other)
    contexts = [make_context(PrimalDual(), problem, seed=seed) for seed in range(2)]
    runs = Repetitions(ALGORITHMS["primal_dual"], contexts)
    runs.round()
    torch.testing.assert_close(runs.variables(1)["w"], run("primal_dual", contexts[1], 1).variables["w"])


def test_product_against_finite_differences(setting):
    toy, w, lam, c, _, batch = setting
    oracle, step = FusedOracle(toy), 1e-5
    ahead, behind = (oracle.weighted_gradient(w + s * step * lam, batch, c) for s in (1, -1))
    product, _ = oracle.weighted_product(w, lam, batch, c)
    torch.testing.assert_close(product, (ahead - behind) / (2 * step), rtol=1e-6, atol=1e-6)


def test_toy_clients_are_certified_and_newton_solves():
    """The modulus of the drawn functions is at least 0.1; at w*(x) the weighted gradient vanishes."""
    toy = Toy.generate(clients=15, seed=0)
    smallest = torch.linalg.eigvalsh(
        torch.einsum("irk,irl->ikl", toy.A, toy.A) - torch.einsum("ik,il->ikl", toy.a, toy.a)
    )[:, 0]
    assert (smallest >= 0.1).all()
    x = torch.rand(15, dtype=torch.float64)
    solution = toy.solve(x / x.sum())
    assert (x @ toy.gradients(solution.w)[1:]).norm() < 1e-10


def test_toy_hypergradient_is_the_derivative_of_the_value():
    """Central differences of f_0(w*(x)) along every feasible direction e_i - e_0."""
    toy = Toy.generate(clients=4, seed=1)
    x = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    hypergradient, step = toy.solve(x).hypergradient, 1e-5
    for i in range(1, 4):
        direction = torch.zeros(4, dtype=torch.float64)
        direction[i], direction[0] = 1.0, -1.0
        slope = (toy.solve(x + step * direction).value - toy.solve(x - step * direction).value) / (2 * step)
        assert float(slope) == pytest.approx(float(hypergradient @ direction), rel=1e-6, abs=1e-8)


@pytest.mark.parametrize("oracle", [FusedOracle, LoopOracle])
def test_losses_and_inner_products(setting, oracle):
    toy, w, lam, _, clients, batch = setting
    residual = torch.einsum("irk,k->ir", toy.A[1:], w) - toy.B[1:]
    losses = 0.5 * residual.square().sum(1) + torch.cos(toy.a[1:] @ w - toy.b[1:])
    torch.testing.assert_close(oracle(toy).losses(w, batch), losses[clients], rtol=1e-12, atol=0)
    torch.testing.assert_close(oracle(toy).inner_products(w, lam, batch), toy.gradients(w)[1:][clients] @ lam)


@pytest.mark.parametrize("oracle", [FusedOracle, LoopOracle])
def test_noise_is_added_to_every_gradient_and_hessian_estimate(setting, oracle):
    """On one minibatch a gradient is g_i + e_i, a product (H_i + E_i) lambda, and a loss stays what it is."""
    toy, w, lam, c, clients, exact = setting
    noisy = replace(toy, noise=0.5)
    _, e, E = batch = noisy.draw(7, clients, 1)
    oracle, G = oracle(noisy), toy.gradients(w)[1:][clients] + e
    weights = torch.zeros(toy.clients, dtype=torch.float64)
    weights[clients] = c
    product, inner = oracle.weighted_product(w, lam, batch, c)
    torch.testing.assert_close(product, toy.hessian(w, weights) @ lam + torch.einsum("i,ikl,l->k", c, E, lam))
    torch.testing.assert_close(inner, G @ lam)
    gradient, inner = oracle.gradient_with_inner(w, lam, batch, c)
    torch.testing.assert_close(gradient, c @ G)
    torch.testing.assert_close(inner, G @ lam)
    torch.testing.assert_close(oracle.weighted_gradient(w, batch, c), c @ G)
    torch.testing.assert_close(oracle.gradients(w, batch), G)
    torch.testing.assert_close(c @ oracle.products(w, lam, batch), product)
    for found, right in zip(oracle.gradient_and_product(w, lam, batch, c), (c @ G, product, G @ lam), strict=True):
        torch.testing.assert_close(found, right)
    rows, products = oracle.gradients_and_products(w, lam, batch)
    torch.testing.assert_close(rows, G)
    torch.testing.assert_close(c @ products, product)
    torch.testing.assert_close(oracle.inner_products(w, lam, batch), G @ lam)
    torch.testing.assert_close(oracle.losses(w, batch), toy.losses(w, exact), rtol=0, atol=0)
    _, e_0, _ = server = noisy.draw_validation(8)
    torch.testing.assert_close(oracle.validation_gradient(w, server), toy.gradients(w)[0] + e_0[0])


def test_noise_is_white_symmetric_and_fresh():
    """Level 0.5: 4000 entries of e have mean within 4.5 * 0.5/sqrt(4000) of 0, and standard deviation near 0.5; so
    have E's diagonal and its lower triangle."""
    noisy = replace(Toy.generate(clients=2, seed=0), noise=0.5)
    all_clients = torch.arange(2)
    drawn = [noisy.draw(stream, all_clients, 1) for stream in range(100)]
    e, E = (torch.stack([batch[part] for batch in drawn]) for part in (1, 2))
    assert torch.equal(E, E.mT)
    row, column = torch.tril_indices(20, 20, -1)
    for entries in (e.flatten(), E.diagonal(dim1=-2, dim2=-1).flatten(), E[..., row, column].flatten()):
        assert abs(float(entries.mean())) < 4.5 * 0.5 / len(entries) ** 0.5
        assert float(entries.std()) == pytest.approx(0.5, rel=4.5 / (2 * len(entries)) ** 0.5)
    assert len(e.flatten().unique()) == 4000
    again = noisy.draw(3, torch.tensor([1]), 1)
    assert torch.equal(again[2][0], drawn[3][2][1])
