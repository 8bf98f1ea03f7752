"""Few-shot problems by hand: which last layer a sample belongs to, and tasks of new classes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from pipeline import models
from pipeline.errors import UserError
from pipeline.problems.few_shot import fit, new_tasks, require_features
from pipeline.training import evaluation
from tests.problems.small import CLIENTS, P, few_shot, start

ALL_CLIENTS = torch.arange(CLIENTS)


@pytest.fixture(scope="module")
def problem():
    """Two tasks of two classes each, three shots and two queries."""
    return few_shot()


def parts_of(problem, client: int, validation: bool):
    """The client's samples and, sample by sample, (task, way) found by looking at true labels in the order they lie."""
    data = problem.data
    parts, each = (data.own_validation, problem.queries) if validation else (data.training, problem.shots)
    at = torch.arange(int(parts.sizes[client])) + parts.starts[client]
    X, y = data.samples(at, parts, torch.full((len(at),), client))
    classes = list(dict.fromkeys(y.tolist()))
    assert [y.tolist().count(c) for c in classes] == [each] * 4
    order = [classes.index(label) for label in y.tolist()]
    return X, [c // 2 for c in order], [c % 2 for c in order]


def by_hand(problem, x, y, client: int, validation: bool) -> torch.Tensor:
    """Cross-entropy of each task's samples under the network of the body and that task's layer, [T]."""
    X, tasks, ways = parts_of(problem, client, validation)
    losses = []
    for t, layer in enumerate(y.split(problem.model.head)):
        mine = [s for s in range(len(X)) if tasks[s] == t]
        scores = problem.model.apply(torch.cat([x, layer]), X[mine])
        losses.append(F.cross_entropy(scores, torch.tensor([ways[s] for s in mine])))
    return torch.stack(losses)


def test_losses_are_those_of_each_task_s_own_layer(problem, monkeypatch):
    monkeypatch.setattr(
        "pipeline.randomness.positions", lambda _, clients, sizes, n: torch.arange(n).expand(len(clients), n)
    )
    x, y = start(problem)
    X, Y = x.expand(CLIENTS, -1), y + torch.linspace(-1, 1, CLIENTS, dtype=y.dtype)[:, None]
    f = problem.upper_losses(X, Y, problem.draw_upper(0, ALL_CLIENTS, 8))
    g = problem.lower_losses(X, Y, problem.draw_lower(0, ALL_CLIENTS, 12))
    for i in range(CLIENTS):
        assert float(f[i]) == pytest.approx(float(by_hand(problem, x, Y[i], i, True).mean()), rel=1e-10)
        penalty = 0.5 * problem.mu * Y[i].square().sum() / 2
        expected = by_hand(problem, x, Y[i], i, False).mean() + penalty
        assert float(g[i]) == pytest.approx(float(expected), rel=1e-10)
    assert problem.upper_value({"x": x, "Y": Y}) == pytest.approx(float(P @ f), rel=1e-10)


def test_a_new_task_knows_nothing(problem):
    assert (problem.initial_lower(0) == 0).all()
    assert len(problem.initial_lower(0)) == 2 * problem.model.head == 2 * 2 * 4


def test_a_minibatch_names_each_sample_s_task(problem):
    """Drawn images are found again where they lie."""
    clients = torch.tensor([3, 1])
    for validation in (False, True):
        draw = problem.draw_upper if validation else problem.draw_lower
        images, ways, tasks = draw(4, clients, 90)
        for row, client in enumerate(clients.tolist()):
            X, known_tasks, known_ways = parts_of(problem, client, validation)
            nearest = torch.cdist(images[row].flatten(1), X.flatten(1)).min(dim=1)
            assert (nearest.values < 1e-6).all()
            assert tasks[row].tolist() == [known_tasks[s] for s in nearest.indices.tolist()]
            assert ways[row].tolist() == [known_ways[s] for s in nearest.indices.tolist()]
            assert len(set(nearest.indices.tolist())) == len(X)


def test_tasks_do_not_touch_one_another_s_layers(problem):
    """The Hessian below is block diagonal, and every block has a part of its own."""
    x, y = start(problem)
    batch = problem.draw_lower(0, ALL_CLIENTS[:1], 12)
    H = torch.func.hessian(lambda u: problem.lower_losses(x[None], u[None], batch)[0])(y)
    h = problem.model.head
    assert (H[:h, h:] == 0).all()
    assert all((H[k, k].norm() > problem.mu) for k in (slice(0, h), slice(h, 2 * h)))


@pytest.mark.parametrize("features", [5, 30])
def test_a_fitted_layer_is_stationary_where_plain_newton_diverges(features):
    """Few and many features for 12 samples; large ones, most of which no layer separates; every gradient vanishes."""
    generator = torch.Generator().manual_seed(0)
    support = torch.randn(50, 12, features, generator=generator, dtype=torch.float64).relu() * 10
    layers = [part.requires_grad_() for part in fit(support, ways=3, mu=1e-3)]
    scores = torch.baddbmm(layers[1][:, None], support, layers[0].mT)
    targets = torch.arange(3).repeat_interleave(4).repeat(50)
    loss = F.cross_entropy(scores.flatten(0, 1), targets, reduction="sum") / 12
    loss = loss + 0.5e-3 * sum(part.square().sum() for part in layers)
    for gradient in torch.autograd.grad(loss, layers):
        assert gradient.abs().max() < 1e-6


@pytest.mark.parametrize("mu", [0.1, 1e-3])
def test_what_a_fitted_layer_minimises(mu):
    """By torch's own L-BFGS, for features of very different sizes."""
    generator = torch.Generator().manual_seed(0)
    support = torch.randn(6, 12, 5, generator=generator, dtype=torch.float64)
    support *= torch.tensor([0.1, 1.0, 3.0, 1.0, 1.0, 10.0], dtype=torch.float64)[:, None, None]
    weight, bias = fit(support, ways=3, mu=mu)
    targets = torch.arange(3).repeat_interleave(4)
    exact = {"max_iter": 500, "tolerance_grad": 1e-12, "tolerance_change": 1e-16, "line_search_fn": "strong_wolfe"}
    for task in range(6):
        W, b = (torch.zeros_like(part[task]).requires_grad_() for part in (weight, bias))
        optimizer = torch.optim.LBFGS([W, b], **exact)

        def closure(W=W, b=b, optimizer=optimizer, inputs=support[task]):
            optimizer.zero_grad()
            loss = F.cross_entropy(inputs @ W.T + b, targets) + 0.5 * mu * (W.square().sum() + b.square().sum())
            loss.backward()
            return loss

        optimizer.step(closure)
        torch.testing.assert_close(weight[task], W.detach(), rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(bias[task], b.detach(), rtol=1e-4, atol=1e-6)


def test_new_tasks_are_classes_and_images_of_their_own():
    labels = np.random.default_rng(0).permutation(np.repeat([7, 9, 12, 13], [5, 5, 5, 4]))
    tasks = new_tasks(labels, ways=2, each=5, count=40)
    assert tasks.shape == (40, 2, 5)
    found = labels[tasks]
    assert (found == found[:, :, :1]).all()
    assert (found[:, 0, 0] != found[:, 1, 0]).all()
    assert set(found.ravel().tolist()) == {7, 9, 12}  # of 13 there are too few
    assert all(len(set(task.ravel().tolist())) == 10 for task in tasks)
    assert np.array_equal(tasks, new_tasks(labels, 2, 5, 40))
    assert len({tuple(sorted(task[:, 0])) for task in found}) == 3
    with pytest.raises(UserError, match=r"few_shot\.ways = 4 .* at most 3, the test classes with at least 5 .* Fix"):
        new_tasks(labels, ways=4, each=5, count=1)


def test_the_test_is_on_new_tasks_by_hand(problem):
    """Task by task: a layer fitted to the support set's features, the queries' answers counted."""
    x, y = start(problem)
    variables = {"x": x, "Y": y.expand(CLIENTS, -1)}
    data, model = problem.data, problem.model
    rows = new_tasks(data.test_labels.numpy(), 2, 5, problem.test_tasks)
    right, loss, confusion = 0, 0.0, torch.zeros(2, 2)
    for task in torch.from_numpy(rows):
        X = data.scaled(data.test_images[task.flatten()])
        features = model.features(x, X).view(2, 5, -1)
        weight, bias = fit(features[:, :3].reshape(1, 6, -1), 2, problem.mu)
        layer = torch.cat([weight.flatten(), bias.flatten()])
        for way in range(2):
            for query in X.view(2, 5, 1, 4, 4)[way, 3:]:
                scores = model.apply(torch.cat([x, layer]), query[None])[0]
                right += int(scores.argmax() == way)
                loss += float(F.cross_entropy(scores, torch.tensor(way)))
                confusion[way, scores.argmax()] += 1
    count = 4 * problem.test_tasks
    found = evaluation.outcome(problem, variables)
    assert found.test.accuracy == pytest.approx(right / count)
    assert found.test.loss == pytest.approx(loss / count, rel=1e-9)
    assert found.test.confusion.tolist() == confusion.tolist()
    assert found.selection is None
    assert evaluation.accuracy(problem, variables, data.test_images, data.test_labels) == right / count
    assert right / count > 0.5  # the synthetic classes can be distinguished


def test_training_accuracy_is_of_the_clients_own_tasks(problem):
    x, y = start(problem)
    Y = y + torch.linspace(-1, 1, CLIENTS, dtype=y.dtype)[:, None]
    right = 0
    for i in range(CLIENTS):
        X, tasks, ways = parts_of(problem, i, True)
        layers = Y[i].split(problem.model.head)
        for s in range(8):
            scores = problem.model.apply(torch.cat([x, layers[tasks[s]]]), X[s : s + 1])[0]
            right += int(scores.argmax() == ways[s])
    assert problem.measure({"x": x, "Y": Y}) == {"train_accuracy": right / (8 * CLIENTS)}
    served = problem.network({"x": x, "Y": Y})
    assert torch.equal(served[: len(x)], x)
    assert (served[len(x) :] == 0).all()
    assert len(served) == problem.model.d


@pytest.mark.parametrize(("name", "size", "features"), [("mlp", 28, 200), ("conv4", 28, 64), ("lenet5", 28, 84)])
def test_features_are_what_the_last_layer_sees(name, size, features):
    model = models.build(name, 1, size, 5)
    w, X = model.initial(0), torch.rand(3, 1, size, size)
    x, weight, bias = w.split([model.d - model.head, model.head - 5, 5])
    found = model.features(x, X)
    assert found.shape == (3, features)
    torch.testing.assert_close(found @ weight.view(5, features).T + bias, model.apply(w, X), rtol=1e-5, atol=1e-6)
    each = model.features_each(x.expand(2, -1), torch.stack([X, X.flip(0)]))
    torch.testing.assert_close(each[1], found.flip(0), rtol=1e-5, atol=1e-6)


def test_the_body_alone_is_a_network():
    model = models.build("conv4", 1, 28, 5, {"width": 8})
    x, X = model.initial(0)[: -model.head], torch.rand(3, 1, 28, 28)
    body = model.body_with(x)
    torch.testing.assert_close(body(X), model.features(x, X))
    assert sum(p.numel() for p in body.parameters()) == len(x)


class OddHead(torch.nn.Module):
    """Ends in a linear layer, of which forward uses the weights, or to whose logits it does something."""

    def __init__(self, classes: int, kind: str) -> None:
        super().__init__()
        self.body, self.head, self.kind = torch.nn.Linear(16, 6), torch.nn.Linear(6, classes), kind

    def forward(self, X):
        h = self.body(X.flatten(1)).relu()
        if self.kind == "functional":
            return F.linear(h, self.head.weight, self.head.bias)
        return self.head(h).clamp(min=-0.05) if self.kind == "clamped" else self.head(h)


def odd(channels: int, size: int, classes: int, *, kind: str) -> torch.nn.Module:
    return OddHead(classes, kind)


@pytest.mark.parametrize("kind", ["functional", "clamped", "plain"])
def test_a_last_layer_that_cannot_be_taken_off_is_refused(problem, kind):
    name = "tests.problems.test_few_shot.odd"
    model = models.build(name, 1, 4, 2, {"kind": kind})
    if kind == "plain":
        require_features(model, problem.data, name)
        return
    with pytest.raises(UserError, match=r"few_shot.*test_few_shot\.odd cannot be taken off.*Fix"):
        require_features(model, problem.data, name)
