"""Every bilevel problem on made-up 4 x 4 images of three classes: small enough for dense Hessians."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from pipeline import models
from pipeline.data.federated import FederatedData
from pipeline.data.partition import make_partition
from pipeline.data.raw import RawDataset
from pipeline.data.schemes.cleaning import Cleaning
from pipeline.data.schemes.few_shot import FewShotTasks
from pipeline.params import Params
from pipeline.params import PartitionSettings as Settings
from pipeline.params.resolve import resolve
from pipeline.problems.client_weighting import ClientWeighting
from pipeline.problems.data_cleaning import DataCleaning
from pipeline.problems.fair import Fair
from pipeline.problems.few_shot import FewShot
from pipeline.problems.forms import Facts, Form, Formulation, Given
from pipeline.problems.general_weighting import GeneralImageWeighting, GeneralWeighting
from pipeline.problems.hyper_representation import HyperRepresentation, LocalHyperRepresentation
from pipeline.problems.loss_tuning import LossTuning, inverse_counts
from pipeline.problems.registry import PROBLEMS
from pipeline.problems.toy import Toy

CPU = torch.device("cpu")
CLIENTS, CLASSES, TRAIN, OWN = 4, 3, 12, 4
CLEANING = Cleaning(clients=CLIENTS, samples=TRAIN, rate=0.5, validation_samples=OWN)


def raw(seed: int = 0) -> RawDataset:
    """Images that lean towards their class: a brighter band."""
    generator = np.random.default_rng(seed)
    labels = np.arange(120) % CLASSES
    images = generator.integers(0, 200, (120, 1, 4, 4))
    for c in range(CLASSES):
        images[labels == c, 0, c] += 55
    images = images.astype(np.uint8)
    return RawDataset("digits", CLASSES, images[:90], labels[:90], images[90:], labels[90:])


def data(scheme: str = "cleaning", dtype: torch.dtype = torch.float64, **more) -> FederatedData:
    """CLIENTS clients with TRAIN training and OWN validation samples each, some labels wrong; or another scheme."""
    settings = Settings(
        scheme=scheme, validation_per_label=2, selection_per_label=1, client_validation=0.0, cleaning=CLEANING
    )
    images = raw()
    partition = make_partition(images.train_labels, "digits", CLASSES, dataclasses.replace(settings, **more), 0)
    return FederatedData.build(images, partition, CPU, dtype)


def network(name: str = "linear", **options) -> models.FlatModel:
    return models.build(name, 1, 4, CLASSES, options)


def few_shot() -> FewShot:
    """CLIENTS clients with two tasks of two classes each: TRAIN training and 2 OWN validation samples."""
    generator = np.random.default_rng(1)
    labels = np.repeat(np.arange(24), 6)
    images = np.repeat(generator.integers(0, 200, (24, 1, 4, 4)), 6, axis=0)
    images = (images + generator.integers(0, 56, images.shape)).astype(np.uint8)
    train = labels < 18
    made = RawDataset("glyphs", 24, images[train], labels[train], images[~train], labels[~train])
    tasks = FewShotTasks(CLIENTS, ways=2, shots=3, queries=2)
    partition = make_partition(made.train_labels, "glyphs", 24, Settings("few_shot", 0, 0, 0.0, few_shot=tasks), 0)
    held = FederatedData.build(made, partition, CPU, torch.float64)
    return FewShot(models.build("mlp", 1, 4, 2, {"hidden": (3,)}), held, P, 2, 3, 2, tasks=2, mu=0.3, test_tasks=15)


P = torch.tensor([0.4, 0.1, 0.3, 0.2], dtype=torch.float64)
"""Unequal client probabilities, so that a method that ignores them fails."""


def problems() -> dict[str, object]:
    """Strongly convex below, each with its own dimension above; the toy's clients have no images."""
    held, linear, mlp = data(), network(), network("mlp", hidden=(3,))
    named = {
        "hyper_representation": HyperRepresentation(mlp, held, P, mu=0.3),
        "hyper_representation, norm": HyperRepresentation(mlp, held, P, "norm", 0.3),
        "local heads": LocalHyperRepresentation(mlp, held, P, mu=0.3),
        "few_shot": few_shot(),
        "data_cleaning": DataCleaning(linear, held, P, l2=0.3, scale=2.0),
        "data_cleaning, server": DataCleaning(linear, held, P, l2=0.3, validation="server"),
        "loss_tuning": LossTuning(linear, held, P, l2=0.3, class_weights=inverse_counts(held)),
        "fair": Fair(linear, held, P, l2=0.3, q=1.5),
        "client_weighting": GeneralImageWeighting(ClientWeighting(linear, held, l2=0.3)),
        "toy": GeneralWeighting(Toy.generate(CLIENTS, seed=0)),
    }
    return named | {
        name: _by_default(problem, held, mlp if problem.body else linear)
        for name, problem in PROBLEMS.items()
        if name not in named and Form.COMMON_LOWER in problem.offers and not problem.own_data
    }


class Unequal(Given):
    probabilities = P


def _by_default(problem: Formulation, held: FederatedData, model: models.FlatModel) -> object:
    """A registered problem that needs no settings here, as params.yaml builds it; an l2 makes its lower level strongly
    convex."""
    settings = problem.resolve(problem.settings(), Facts(("shared",), clean_parts=True, colour=False))
    if hasattr(settings, "l2"):
        settings = dataclasses.replace(settings, l2=0.3)
    return problem.build(settings, Unequal(resolve(Params()), model, held))


def start(problem, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """A generic point: x and y off their special starting values."""
    generator = torch.Generator().manual_seed(seed)
    x, y = problem.initial_upper(0), problem.initial_lower(0)
    move = [0.3 * torch.randn(len(u), generator=generator, dtype=u.dtype) for u in (x, y)]
    return problem.project_upper(x + move[0]), y + move[1]
