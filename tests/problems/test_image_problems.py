"""Sizes, minibatches, measures and evaluations of the bilevel problems on images, by hand."""

from __future__ import annotations

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pipeline import models
from pipeline.data.schemes.iid import Iid
from pipeline.data.schemes.lead import Lead
from pipeline.data.schemes.quantity import Quantity
from pipeline.errors import UserError
from pipeline.models.flat import FlatModel, vmap
from pipeline.problems.client_weighting import ClientWeighting
from pipeline.problems.consensus import Consensus
from pipeline.problems.data_cleaning import DataCleaning
from pipeline.problems.fair import Fair
from pipeline.problems.hyper_representation import HyperRepresentation, LocalHyperRepresentation, require_head
from pipeline.problems.images import Images
from pipeline.problems.loss_tuning import LossTuning, geometric, inverse_counts
from pipeline.training import evaluation
from tests.problems.small import CLASSES, CLIENTS, OWN, TRAIN, P, data, network

ALL_CLIENTS = torch.arange(CLIENTS)


@pytest.fixture(scope="module")
def held():
    return data()


def uneven():
    """Clients of different sizes with some of every sort of label: nothing cancels."""
    return data("quantity", client_validation=0.3, quantity=Quantity(CLIENTS, exponent=0.8, min_samples=6))


# --------------------------------------------------------------------------------- body and head


@pytest.mark.parametrize(
    ("name", "channels", "size", "body", "head"),
    [("mlp", 1, 28, 157_000, 2_010), ("cnn", 3, 32, 61_156, 850), ("lenet5", 1, 28, 60_856, 850)],
)
def test_sizes_of_body_and_head(name, channels, size, body, head):
    model = models.build(name, channels, size, 10)
    assert (model.d - model.head, model.head) == (body, head)


def test_a_network_of_two_halves_is_the_network():
    """Values, and derivatives by either half."""
    model = models.build("lenet5", 1, 28, 10)
    w, X = model.initial(0).double().requires_grad_(), torch.rand(3, 1, 28, 28, dtype=torch.float64)
    x, y = (part.detach().requires_grad_() for part in w.split([model.d - model.head, model.head]))
    assert torch.equal(model.apply(w, X), model.apply_halves(x, y, X))
    whole = torch.autograd.grad(model.apply(w, X).square().sum(), w)[0]
    halves = torch.autograd.grad(model.apply_halves(x, y, X).square().sum(), (x, y))
    torch.testing.assert_close(torch.cat(halves), whole, rtol=1e-12, atol=1e-14)


def test_the_head_s_derivative_does_not_enter_the_body():
    """Only the last layer's output needs a graph: that is what makes lower steps cheap."""
    model = models.build("mlp", 1, 4, 3, {"hidden": (5,)})
    x, y = model.initial(0).split([model.d - model.head, model.head])
    scores = model.apply_halves(x, y.clone().requires_grad_(), torch.rand(2, 1, 4, 4))
    seen, todo = set(), [scores.grad_fn]
    while todo:
        node = todo.pop()
        if node is not None and node not in seen:
            seen.add(node)
            todo += [parent for parent, _ in node.next_functions]
    assert sum("Addmm" in type(node).__name__ for node in seen) == 1
    assert not any("Relu" in type(node).__name__ for node in seen)


def test_one_after_another_is_all_at_once():
    model = models.build("lenet5", 1, 28, 10)
    W = model.initial(0) + 0.01 * torch.randn(3, model.d)
    X = torch.rand(3, 2, 1, 28, 28)
    torch.testing.assert_close(model.apply_each(W, X), vmap(model.apply)(W, X), rtol=1e-4, atol=1e-5)
    halves = W.split([model.d - model.head, model.head], dim=1)
    torch.testing.assert_close(model.apply_halves_each(*halves, X), model.apply_each(W, X), rtol=1e-5, atol=1e-6)


class Backwards(nn.Module):
    """Its last registered layer is not the last one used."""

    def __init__(self):
        super().__init__()
        self.last, self.first = nn.Linear(16, 3), nn.Linear(16, 16)

    def forward(self, x):
        return self.last(self.first(x.flatten(1)))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 3)), "needs a network with a body and a last linear layer"),
        (lambda: nn.Sequential(nn.Linear(4, 4), nn.Conv2d(1, 3, 4), nn.Flatten()), "has no such layers"),
        (Backwards, "is not what makes its logits"),
        (
            lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 4), nn.ReLU(), nn.Linear(4, 3, bias=False)),
            "or has no bias",
        ),
    ],
)
def test_a_network_without_such_a_head_is_refused(held, make, said):
    with pytest.raises(UserError, match=rf"hyper_representation.*{said}.*Fix"):
        require_head(FlatModel(make), held, "mine")


def test_mlp_has_a_head(held):
    require_head(network("mlp", hidden=(5,)), held, "mlp")


@pytest.mark.parametrize(("kind", "mu"), [("sq", 0.7), ("norm", 0.7), ("none", 0.7)])
def test_the_regulariser_by_hand(held, kind, mu):
    problem = HyperRepresentation(network("mlp", hidden=(5,)), held, P, kind, mu)
    x, y = problem.initial_upper(0), problem.initial_lower(0)
    batch = problem.draw_lower(1, ALL_CLIENTS, 3)
    X, Y = x.expand(CLIENTS, -1), y * torch.arange(1.0, CLIENTS + 1, dtype=y.dtype)[:, None]
    weight, bias = Y.split([15, 3], dim=1)
    expected = {
        "sq": 0.35 * (Y * Y).sum(1),
        "norm": 0.7 * ((weight * weight).sum(1).sqrt() + (bias * bias).sum(1).sqrt()),
        "none": torch.zeros(CLIENTS, dtype=y.dtype),
    }[kind]
    added = problem.lower_losses(X, Y, batch) - problem.upper_losses(X, Y, batch)
    torch.testing.assert_close(added, expected, rtol=1e-10, atol=1e-12)


def always(answer: int) -> torch.Tensor:
    """The linear network's parameters with which it answers that class to everything."""
    w = torch.zeros(network().d, dtype=torch.float64)
    w[answer - CLASSES] = 1.0
    return w


# ----------------------------------------------------------------------------- data of both levels


def test_upper_batches_are_validation_samples_and_lower_ones_training_samples(held):
    problem = HyperRepresentation(network("mlp", hidden=(5,)), held, P)
    clients = torch.tensor([3, 1])
    for batch, parts in (
        (problem.draw_upper(1, clients, 40), held.own_validation),
        (problem.draw_lower(1, clients, 40), held.training),
    ):
        for row, client in enumerate(clients.tolist()):
            images, _ = held.batch(torch.tensor([client]), torch.arange(int(parts.sizes[client]))[None], parts)
            known = images[0].flatten(1)
            distance = torch.cdist(batch[0][row].flatten(1), known).min(dim=1)
            assert (distance.values < 1e-6).all()
            assert len(distance.indices.unique()) == len(known)  # 40 draws meet all of 12, and of 4


def test_the_upper_value_is_that_of_whole_batches():
    """Clients of unequal sizes, so that means over clients and over samples differ."""
    held, variables = uneven(), None
    mlp, linear = network("mlp", hidden=(5,)), network()
    for problem in (
        HyperRepresentation(mlp, held, P),
        LocalHyperRepresentation(mlp, held, P),
        DataCleaning(linear, held, P),
        LossTuning(linear, held, P, class_weights=geometric(held, 0.1)),
        Fair(linear, held, P, q=2.0),
    ):
        x, y = problem.initial_upper(0), problem.initial_lower(0)
        generator = torch.Generator().manual_seed(1)
        Y = y + (0.5 * torch.randn(CLIENTS, len(y), generator=generator).double() if problem.local_lower else 0)
        variables = {"x": x, "Y": Y} if problem.local_lower else {"x": x, "y": y}
        expected = 0.0
        for i in range(CLIENTS):
            every = torch.arange(int(held.own_validation.sizes[i]))[None]
            batch = held.batch(torch.tensor([i]), every, held.own_validation)
            expected += float(P[i] * problem.upper_losses(x[None], Y.expand(CLIENTS, -1)[i : i + 1], batch)[0])
        assert problem.upper_value(variables) == pytest.approx(expected, rel=1e-9)
        assert evaluation.validation_loss(problem, variables) == problem.upper_value(variables)


def test_the_server_s_validation_set_is_every_client_s():
    held = uneven()
    problem = DataCleaning(network(), held, P, validation="server", server_batch=4)
    X, _ = problem.draw_upper(1, ALL_CLIENTS, 1)
    assert X.shape[:2] == (CLIENTS, 4)
    assert torch.equal(X[0], X[3])
    whole = dataclasses.replace(problem, server_batch=None).draw_upper(1, ALL_CLIENTS, 1)
    assert whole[1].shape == (CLIENTS, len(held.validation_labels))
    variables = {"y": problem.initial_lower(0)}
    scores = problem.model.apply(variables["y"], held.validation_images)
    assert problem.upper_value(variables) == pytest.approx(float(F.cross_entropy(scores, held.validation_labels)))


def test_class_weights():
    held = data()
    counts = held.labels.bincount(minlength=3)
    torch.testing.assert_close(inverse_counts(held), 1.0 / counts.double())
    weights = geometric(held, 0.01)
    torch.testing.assert_close(weights, torch.tensor([1.0, 10.0, 100.0], dtype=torch.float64))
    problem = LossTuning(network(), held, P, class_weights=weights)
    x, y = problem.initial_upper(0), problem.initial_lower(0)
    X, labels = problem.draw_upper(2, ALL_CLIENTS, 5)
    found = problem.upper_losses(x.expand(CLIENTS, -1), y.expand(CLIENTS, -1), (X, labels))
    for i in range(CLIENTS):  # as torch's own weighted mean
        expected = F.cross_entropy(problem.model.apply(y, X[i]), labels[i], weight=weights)
        assert float(found[i]) == pytest.approx(float(expected))
    # d = 0 halves the logits of the training loss.
    scores = 0.5 * problem.model.apply(y, X[0])
    lower = problem.lower_losses(x.expand(CLIENTS, -1), y.expand(CLIENTS, -1), (X, labels))
    assert float(lower[0]) == pytest.approx(float(F.cross_entropy(scores, labels[0])))


# --------------------------------------------------------------------------------------- measures


def test_measures_of_cleaning_by_hand(held):
    problem = DataCleaning(network(), held, P, scale=2.0)
    wrong = held.wrong
    x = torch.where(wrong, -1.0, 1.0).double()
    found = problem.measure({"x": x})
    assert (found["sample_auc"], found["sample_f1"]) == (1.0, 1.0)
    assert found["correct_sample_weight"] == pytest.approx(float(torch.sigmoid(torch.tensor(2.0))))
    assert found["wrong_sample_weight"] == pytest.approx(float(torch.sigmoid(torch.tensor(-2.0))))
    at = (wrong.nonzero()[0, 0], (~wrong).nonzero()[0, 0])
    x[at[0]], x[at[1]] = 3.0, -3.0  # one of each on the wrong side
    found, W, R = problem.measure({"x": x}), int(wrong.sum()), int((~wrong).sum())
    # Pairs (right, wrong): the right one at -3 beats none, the wrong one at 3 loses to none.
    assert found["sample_auc"] == pytest.approx((R - 1) * (W - 1) / (R * W))
    assert found["sample_f1"] == pytest.approx(2 * (W - 1) / (W + W))
    start = problem.measure({"x": problem.initial_upper(0)})
    assert (start["sample_auc"], start["sample_f1"], start["wrong_sample_weight"]) == (0.5, 0.0, 0.5)


def test_saturated_weights_are_still_ranked(held):
    """Scores so large that the weights all round to 1 separate right from wrong by their order."""
    problem = DataCleaning(network(), held, P)
    assert problem.measure({"x": torch.where(held.wrong, 90.0, 91.0).double()})["sample_auc"] == 1.0


def test_without_wrong_labels_nothing_is_detected():
    problem = DataCleaning(network(), data("iid", client_validation=0.2, iid=Iid(CLIENTS)), P)
    assert set(problem.measure({"x": problem.initial_upper(0)})) == {"correct_sample_weight"}


def test_accuracies_of_fair_clients_by_hand():
    """A network that answers class 0 to everything: a client can expect its share of class 0."""
    held = uneven()
    problem = Fair(network(), held, P)
    shares = []
    for i in range(CLIENTS):
        own = held.labels[held.starts[i] : held.starts[i] + held.sizes[i]]
        shares.append(float((own == 0).double().mean()))
    found = problem.measure({"x": problem.initial_upper(0), "y": always(0)})
    assert found["client_accuracy"] == pytest.approx(sum(shares) / CLIENTS)
    assert found["worst_client_accuracy"] == pytest.approx(min(shares))  # a tenth of four clients: one
    mean = sum(shares) / CLIENTS
    assert found["client_accuracy_variance"] == pytest.approx(sum((s - mean) ** 2 for s in shares) / CLIENTS)
    x = torch.tensor([0.0, 1.0, 2.0, 3.0], dtype=torch.float64)
    assert float(problem.client_weights({"x": x}).sum()) == pytest.approx(1.0)


class Graded(Fair):
    """Client i can expect an accuracy of (N - i) %."""

    def expected_accuracies(self, variables):
        return torch.arange(self.clients, 0, -1).double() / 100


@pytest.mark.parametrize(("clients", "worst"), [(4, 0.01), (20, 0.015), (21, 0.02)])
def test_the_worst_clients_are_a_tenth_of_them_rounded_up(clients, worst):
    """One of 4; 2 of 20, with 1 and 2 %; 3 of 21, with 1, 2 and 3 %."""
    problem = Graded(network(), data("iid", iid=Iid(clients)), P)
    assert problem.measure({})["worst_client_accuracy"] == pytest.approx(worst)


def test_both_models_of_a_primal_dual_method_are_measured_and_one_is_served(held):
    """Of 30 test images 20 get the class that theta answers to everything, 10 the one that theta-bar does."""
    held = dataclasses.replace(held, test_labels=torch.tensor([0] * 20 + [1] * 10))
    both = {"w": always(0), "w_bar": always(1)}
    expected = {"average_accuracy": 1 / 3, "shifted_accuracy": 2 / 3}
    for served, right in (("w", 2 / 3), ("w_bar", 1 / 3)):
        problem = Consensus(network(), held, served=served)
        assert set(problem.measures) == set(expected)
        assert problem.measure(both) == pytest.approx(expected)
        assert evaluation.accuracy(problem, both, held.test_images, held.test_labels) == pytest.approx(right)
        assert torch.equal(problem.network(both), both[served])
    assert Consensus(network(), held).measure({"w": always(0)}) == {}


def test_training_accuracy_by_hand(held):
    """Of both parts as they are labelled; with local heads, of each sample under its client's head."""
    model = network("mlp", hidden=(5,))
    for kind in (HyperRepresentation, LocalHyperRepresentation):
        problem = kind(model, held, P)
        x, y = problem.initial_upper(0), problem.initial_lower(0)
        generator = torch.Generator().manual_seed(3)
        Y = y + torch.randn(CLIENTS, len(y), generator=generator).double() * problem.local_lower
        right, loss = 0.0, 0.0
        for i in range(CLIENTS):
            for parts in (held.training, held.own_validation):
                X, labels = held.batch(torch.tensor([i]), torch.arange(int(parts.sizes[i]))[None], parts)
                scores = model.apply(torch.cat([x, Y[i]]), X[0])
                right += float((scores.argmax(1) == labels[0]).sum())
                loss += float(F.cross_entropy(scores, labels[0], reduction="sum"))
        count = CLIENTS * (TRAIN + OWN)
        found = problem.measure({"x": x, "Y": Y} if problem.local_lower else {"x": x, "y": y})
        assert found == pytest.approx({"train_accuracy": right / count, "train_loss": loss / count})
        few = dataclasses.replace(problem, measured=10)
        assert sum(len(at) for _, at in few._measured()) == 10
        assert few.measure({"x": x, "Y": Y, "y": y})["train_accuracy"] in [k / 10 for k in range(11)]


def test_local_heads_are_tested_on_their_labels_by_hand():
    """Accuracy and loss: the mean over clean clients; per class: all their answers together; served: the mean head."""
    lead = Lead(groups=[[0, 2], [1]], noise_clients=1, noise_samples=10)
    held = data("lead", client_validation=0.2, lead=lead)
    model = network("mlp", hidden=(5,))
    problem = LocalHyperRepresentation(model, held, torch.full((3,), 1 / 3, dtype=torch.float64))
    x, y = problem.initial_upper(0), problem.initial_lower(0)
    Y = y + torch.randn(3, len(y), generator=torch.Generator().manual_seed(5)).double()
    variables = {"x": x, "Y": Y}
    accuracies, losses, confusion = [], [], torch.zeros(3, 3)
    for client, labels in enumerate(([0, 2], [1])):
        of = torch.isin(held.test_labels, torch.tensor(labels))
        scores = model.apply(torch.cat([x, Y[client]]), held.scaled(held.test_images[of]))
        accuracies.append(float((scores.argmax(1) == held.test_labels[of]).double().mean()))
        losses.append(float(F.cross_entropy(scores, held.test_labels[of])))
        for true, predicted in zip(held.test_labels[of].tolist(), scores.argmax(1).tolist(), strict=True):
            confusion[true, predicted] += 1
    found = evaluation.outcome(problem, variables)
    assert found.test.accuracy == pytest.approx(sum(accuracies) / 2)
    assert found.test.loss == pytest.approx(sum(losses) / 2)
    assert found.test.confusion.tolist() == confusion.tolist()
    assert evaluation.accuracy(problem, variables, held.test_images, held.test_labels) == found.test.accuracy
    assert not found.weighted
    torch.testing.assert_close(problem.network(variables), torch.cat([x, Y[:2].mean(0)]))


@pytest.mark.parametrize("size", [20, 200])
def test_a_minibatch_beyond_every_client_takes_each_sample_once_for_all_its_draws(size):
    """Losses and gradients are those of the draws themselves, and no more samples than the largest client's pass."""
    held = uneven()
    problem = ClientWeighting(network("mlp", hidden=[5]), held)
    w = problem.initial(0).requires_grad_()
    drawn = Images.draw(problem, 7, ALL_CLIENTS[1:], size)
    bounded = problem.draw(7, ALL_CLIENTS[1:], size)
    largest = int(held.sizes.max())
    assert bounded[0].shape[1] == min(size, largest) < 200
    values = [problem.losses(w, batch) for batch in (drawn, bounded)]
    torch.testing.assert_close(values[1], values[0], rtol=1e-12, atol=0)
    slopes = [torch.autograd.grad(value @ torch.arange(1.0, CLIENTS).double(), w)[0] for value in values]
    torch.testing.assert_close(slopes[1], slopes[0], rtol=1e-10, atol=1e-12)
