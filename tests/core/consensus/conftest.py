"""Eight heterogeneous quadratics, with and without noise in their gradients."""

import dataclasses

import pytest
import torch

from tests.core.consensus.quadratics import Quadratics


@pytest.fixture(scope="module")
def noisy():
    start = torch.full((5,), 0.3, dtype=torch.float64)
    return dataclasses.replace(Quadratics.generate(noise=0.5), start=start)


@pytest.fixture(scope="module")
def exact(noisy):
    return dataclasses.replace(noisy, noise=0.0)
