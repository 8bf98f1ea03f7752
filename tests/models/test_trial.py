"""Networks of one's own that torch.func cannot batch, or whose kernels have no second derivatives."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

import fedbilevel as fb
from pipeline.models import FlatModel, tried
from pipeline.oracles import FusedOracle, LoopOracle, backend_for
from tests.fitting import fitted

BLACK = torch.zeros(2, 6, 1, 1)


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase] = nn.GRU) -> None:
        super().__init__()
        self.steps, self.last = kind(1, 5, batch_first=True), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.steps(x.flatten(1)[:, :, None])[0][:, -1])


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.last = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.layer(x.flatten(1)[:, :, None] * torch.ones(4)).mean(1))


class Branching(nn.Linear):
    """By what no sample decides."""

    def forward(self, x: Tensor) -> Tensor:
        found = super().forward(x.flatten(1))
        return found / 2 if found.abs().max() > 1e6 else found


class ByTheBatch(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.flatten(1)) if x.sum() > 0 else super().forward(-x.flatten(1))


class Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    @once_differentiable
    def backward(ctx, slope):
        return 2 * slope


class Doubled(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return Once.apply(super().forward(x.flatten(1)))


def after_trial(make) -> FlatModel:
    model = FlatModel(make)
    tried("model", model, BLACK)
    return model


@pytest.mark.parametrize(
    ("make", "one_pass", "exact", "products"),
    [
        (lambda: nn.Sequential(nn.Flatten(), nn.Linear(6, 3)), True, False, True),
        (Recurrent, False, False, True),
        (lambda: Recurrent(nn.LSTM), False, False, True),
        (Attention, True, True, True),
        (lambda: Branching(6, 3), False, False, True),
        (lambda: Doubled(6, 3), False, False, False),
    ],
    ids=["linear", "gru", "lstm", "attention", "branch", "once"],
)
def test_what_the_trial_finds(make, one_pass, exact, products):
    model = after_trial(make)
    for each in (model, model.mixed, model.after(nn.Identity)):
        assert (each.one_pass, each.exact_kernels, not each.no_products) == (one_pass, exact, products)
    rows = model.apply_each(model.initial(0).repeat(2, 1), torch.ones(2, 3, 6, 1, 1))
    assert torch.equal(rows[0], model.apply(model.initial(0), torch.ones(3, 6, 1, 1)))


def test_attention_is_the_same_with_the_kernel_that_has_second_derivatives():
    model, X = after_trial(Attention), torch.randn(3, 6, 1, 1, generator=torch.Generator().manual_seed(1))
    found = model.apply(model.initial(0), X)
    model.exact_kernels = False
    torch.testing.assert_close(found, model.apply(model.initial(0), X))


@pytest.mark.parametrize("network", [Recurrent(), Recurrent(nn.LSTM), Attention(), Branching(6, 3)], ids=range(4))
@pytest.mark.parametrize("algorithm", ["primal_dual", "simfbo"])
def test_it_is_fitted(network, algorithm, capsys):
    found = fitted(model=network, rounds=3, algorithm=algorithm, replicates=2 * (algorithm == "primal_dual"))
    assert np.isfinite(found.weights.weight).all()
    assert found.predict_proba(np.zeros((2, 6))).shape == (2, 3)
    assert isinstance(found.suspicious, list)
    alone = "clients in one pass; they go through it one by one" in capsys.readouterr().err
    assert alone == (not isinstance(network, Attention))
    assert backend_for("fused", found.problem) == ("loop" if alone else "fused")


def test_one_after_the_other_are_the_derivatives_of_all_together():
    found = fitted(model=Attention(), rounds=1)
    problem, w = found.problem, found.variables["w"]
    batch = problem.draw(3, torch.arange(4), 5)
    c = torch.tensor([0.1, 0.2, 0.3, 0.4])
    results = [
        kind(problem).gradient_and_product(w, torch.ones_like(w), batch, c) for kind in (FusedOracle, LoopOracle)
    ]
    for fused, loop in zip(*results, strict=True):
        torch.testing.assert_close(fused, loop, rtol=1e-3, atol=1e-5)


def test_a_network_without_second_derivatives_goes_with_averaging_alone():
    with pytest.raises(fb.UserError, match=r"model: problem: client_weighting needs Hessian-vector .* such as fedavg"):
        fitted(model=Doubled(6, 3), rounds=2)
    assert len(fitted(model=Doubled(6, 3), rounds=2, algorithm="fedavg").history) == 3


def test_a_network_that_the_batch_decides_and_one_without_values_are_refused():
    with torch.device("meta"):
        empty = nn.Linear(6, 3)
    for network, said in (
        (
            ByTheBatch(6, 3),
            r"model cannot be used: a sample's logits depend .* torch\.where instead of an if",
        ),
        (empty, r"parameter .*weight is on the device meta, .* Fix: make its layers outside torch\.device\('meta'\)"),
    ):
        with pytest.raises(fb.UserError, match=said):
            fitted(model=network)
