"""From parameters to device, network and problem; what training and evaluation both need."""

from __future__ import annotations

from functools import partial

import torch

from pipeline import models
from pipeline.data.catalog import CATALOG, problem_in_use
from pipeline.data.datasets import RawDataset
from pipeline.data.federated import FederatedData
from pipeline.data.partition import Partition
from pipeline.errors import UserError
from pipeline.params import Params
from pipeline.participation import fixed_count
from pipeline.problems.base import ImageProblem
from pipeline.problems.client_weighting import ClientWeighting
from pipeline.problems.consensus import Consensus
from pipeline.problems.toy import Toy

DTYPES = {"32-true": torch.float32, "64-true": torch.float64}


def device_for(accelerator: str) -> torch.device:
    """Where the run happens; UserError if a GPU is asked for and there is none."""
    if accelerator == "gpu" and not torch.cuda.is_available():
        raise UserError(
            'train.accelerator = "gpu" is not possible: torch sees no CUDA device here.'
            " Fix: train.accelerator: auto (takes the GPU when there is one) or cpu."
        )
    return torch.device("cuda", 0) if accelerator != "cpu" and torch.cuda.is_available() else torch.device("cpu")


def build_model(params: Params) -> models.FlatModel:
    """The network named in params.yaml for the data set named there."""
    info = CATALOG[params.data.name]
    return models.build(params.model.name, info.channels, info.size, info.classes, params.model.options)


def build_problem(params: Params, raw: RawDataset, partition: Partition, device: torch.device) -> ImageProblem:
    """The problem in use with all samples on the device; UserError for settings that do not fit the data."""
    dtype = DTYPES[params.train.precision]
    data = FederatedData.build(raw, partition, device, dtype)
    if params.algorithm == "oracle_weights" and not partition.clean.any():
        raise UserError(
            f"algorithm: oracle_weights shares the weight among clean clients, and partition.scheme:"
            f" {partition.scheme} has none here. Fix: another algorithm, or one clean client."
        )
    if params.federation.sampling == "fixed":
        fixed_count(len(partition.kinds), params.federation.participation)
    model = build_model(params)
    if problem_in_use(params) == "consensus":
        return _consensus(params, model, data)
    size = params.federation.validation_batch_size
    return ClientWeighting(
        model,
        data,
        l2=params.problems.client_weighting.l2,
        validation_batch=None if size == "all" else size,
    )


def _consensus(params: Params, model: models.FlatModel, data: FederatedData) -> Consensus:
    """Normalisation is the network's first layer, so that whoever serves the network gives it plain images; padding
    is then the mean colour, which that layer turns into 0."""
    settings, info = params.problems.consensus, CATALOG[params.data.name]
    if settings.normalise is True:
        model = model.after(partial(models.Normalise, info.means, info.deviations))
    return Consensus(
        model, data, augment=settings.augment is True, fill=info.means if settings.normalise is True else ()
    )


def build_toy(params: Params) -> Toy:
    """The toy problem of the run's seed."""
    settings = params.problems.toy
    return Toy.generate(settings.clients, params.seed, settings.noise)
