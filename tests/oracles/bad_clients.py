"""Small federations of digits, one of whose clients may be broken, and runs on them in memory."""

from dataclasses import dataclass, replace

import numpy as np
import torch

from pipeline.config.spec import override
from pipeline.data.federated import FederatedData, Parts
from pipeline.methods.registry import family
from pipeline.models import build
from pipeline.params import Params
from pipeline.params.resolve import resolve
from pipeline.problems.client_weighting import ClientWeighting
from pipeline.problems.consensus import Consensus
from pipeline.problems.general_weighting import GeneralImageWeighting
from pipeline.problems.hyper_representation import HyperRepresentation, LocalHyperRepresentation
from pipeline.sharing import Share
from pipeline.training.evaluation import accuracy
from pipeline.training.loop import Loop
from pipeline.training.module import FederatedBilevel
from pipeline.training.setup import build_context

BAD = 5


@dataclass(frozen=True)
class Broken(FederatedData):
    """Client BAD's pixels are multiplied by a factor; NaN makes all of them missing."""

    factor: float = 1.0

    def samples(self, at, parts, owners, each=1):
        X, y = super().samples(at, parts, owners, each)
        bad = (owners == BAD).repeat_interleave(each)
        return torch.where(bad.view(-1, *[1] * (X.dim() - 1)), X * self.factor, X), y


def data(digits, clients, factor=1.0):
    """Those of six clients with 100 digits each; the server has 100, 300 are for tests."""
    order = np.random.default_rng(0).permutation(len(digits.train_labels))
    X, y = digits.train_images[order, 0], digits.train_labels[order]
    shares = [slice(100 * i, 100 * (i + 1)) for i in range(10)]
    held = [(X[shares[i]], y[shares[i]]) for i in clients]
    test = np.concatenate([X[s] for s in shares[7:10]]), np.concatenate([y[s] for s in shares[7:10]])
    kinds = ["clean"] * len(held)
    return Broken.from_arrays(held, (X[shares[6]], y[shares[6]]), test, classes=10, kinds=kinds), factor


def with_own_validation(held, share=25):
    """Of each client's 100 samples that many are its own validation part."""
    N = held.clients
    own, rest = torch.arange(100 * N).view(N, 100).split([share, 100 - share], dim=1)
    own, rest, counts = own.flatten(), rest.flatten(), torch.full((N,), share)
    starts = torch.arange(N)
    return replace(
        held,
        indices=rest,
        labels=held.labels[rest],
        wrong=held.wrong[rest],
        starts=(100 - share) * starts,
        sizes=100 - counts,
        own_validation=Parts(own, held.labels[own], share * starts, counts),
        kinds=["unknown"] * N,
    )


def loop(digits, algorithm, clients=range(6), factor=1.0, rounds=40, problem="auto", **settings):
    """A run before its first round."""
    held, factor = data(digits, clients, factor)
    held = replace(held, factor=factor)
    if problem == "hyper_representation":
        held, settings = with_own_validation(held), {"model.name": "mlp"} | settings
    settings = {"algorithm": algorithm, "problem": problem, "model.name": "linear", "train.rounds": rounds} | settings
    params = resolve(override(Params(), {"federation.batch_size": 16} | settings))
    if params.problem == "hyper_representation":
        kind = {"local": LocalHyperRepresentation, "shared": HyperRepresentation}
        small = build("mlp", 1, 28, 10, {"hidden": [32]})
        made = kind[params.problems.hyper_representation.heads](
            small, held, torch.full((held.clients,), 1 / held.clients)
        )
    elif params.problem == "consensus":
        made = Consensus(build(params.model.name, 1, 28, 10), held)
    else:
        weighting = ClientWeighting(build(params.model.name, 1, 28, 10), held)
        made = weighting if family(params.algorithm) in ("weighting", "averaging") else GeneralImageWeighting(weighting)
    return Loop(params.method, build_context(params, made, Share()), rounds)


def coarse(channels, image_size, classes):
    """A network of 170 parameters: linear in the means of 16 squares."""
    return torch.nn.Sequential(torch.nn.AvgPool2d(7), torch.nn.Flatten(), torch.nn.Linear(16, classes))


def trained(run):
    while run.round < run.rounds:
        run.step()
    return run


def accuracy_of(run):
    """Of what is served."""
    problem, variables = run.context.problem, run.state.variables
    if "Y" in run.state.memory:
        module = FederatedBilevel(run.algorithm, run.context, run.rounds)
        module.round = run.round
        module.memory_Y.copy_(run.state.memory["Y"])
        variables = variables | {"Y": module.served["Y"]}
    return accuracy(problem, variables, problem.data.test_images, problem.data.test_labels)
