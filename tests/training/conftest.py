"""A small real problem: embedded digits, the lead partition, a linear model; a run takes a second or two."""

from dataclasses import replace

import pytest
import torch

from pipeline.config.sections import Train
from pipeline.data.datasets import load, prepare
from pipeline.data.partition import make_partition
from pipeline.params import Data, FederationSettings, Model, Params
from pipeline.params.resolve import resolve


@pytest.fixture(scope="session")
def digits(tmp_path_factory):
    folder = tmp_path_factory.mktemp("raw") / "digits"
    prepare("digits", folder)
    return load(folder)


@pytest.fixture(scope="session")
def partition(digits):
    return make_partition(digits.train_labels, "digits", 10, resolve(Params()).partition, seed=0)


@pytest.fixture
def params():
    return resolve(
        Params(
            data=Data("digits"),
            model=Model("linear"),
            federation=FederationSettings(participation=0.5, batch_size=8, validation_batch_size=16),
            train=Train(rounds=12, eval_every=4, checkpoint_every=5, accelerator="cpu"),
        )
    )


@pytest.fixture
def double(params):
    return replace(params, train=replace(params.train, precision="64-true"))


@pytest.fixture
def cpu():
    return torch.device("cpu")
