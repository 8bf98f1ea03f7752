"""From parameters to device, network and problem; what training and evaluation both need."""

from __future__ import annotations

import os

import torch

from pipeline import models
from pipeline.data.catalog import CATALOG
from pipeline.data.datasets import RawDataset
from pipeline.data.federated import FederatedData
from pipeline.data.partition import Partition
from pipeline.errors import UserError
from pipeline.params import Params
from pipeline.participation import fixed_count
from pipeline.problems.base import ImageProblem
from pipeline.problems.client_weighting import ClientWeighting
from pipeline.problems.toy import Toy

DTYPES = {"32-true": torch.float32, "64-true": torch.float64}


def device_for(accelerator: str, devices: int = 1) -> torch.device:
    """Where this process computes; UserError if a GPU is asked for and there is none, or not one for each process."""
    if accelerator == "gpu" and not torch.cuda.is_available():
        raise UserError(
            'train.accelerator = "gpu" is not possible: torch sees no CUDA device here.'
            " Fix: train.accelerator: auto (takes the GPU when there is one) or cpu."
        )
    if accelerator == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    if devices > torch.cuda.device_count():
        raise UserError(
            f"train.devices = {devices} needs as many GPUs, and this machine has {torch.cuda.device_count()}."
            f" Fix: train.devices: {torch.cuda.device_count()}, or train.accelerator: cpu."
        )
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", os.environ.get("SLURM_LOCALID", "0"))))


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
    size = params.federation.validation_batch_size
    if params.federation.sampling == "fixed":
        fixed_count(len(partition.kinds), params.federation.participation)
    return ClientWeighting(
        build_model(params),
        data,
        l2=params.problems.client_weighting.l2,
        validation_batch=None if size == "all" else size,
    )


def build_toy(params: Params) -> Toy:
    """The toy problem of the run's seed."""
    settings = params.problems.toy
    return Toy.generate(settings.clients, params.seed, settings.noise)
