"""From parameters to device, network and problem; what training and evaluation both need."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from pipeline import models
from pipeline.data.catalog import CATALOG
from pipeline.data.federated import FederatedData
from pipeline.data.partition import Partition
from pipeline.data.raw import RawDataset
from pipeline.errors import UserError
from pipeline.methods.registry import family
from pipeline.params import Params
from pipeline.params.resolve import resolve
from pipeline.participation import fixed_count
from pipeline.problems.base import ImageProblem
from pipeline.problems.client_weighting import ClientWeighting
from pipeline.problems.consensus import Consensus
from pipeline.problems.data_cleaning import DataCleaning
from pipeline.problems.fair import Fair
from pipeline.problems.few_shot import FewShot, new_tasks, require_features
from pipeline.problems.forms import upper_on_clients
from pipeline.problems.general_weighting import GeneralImageWeighting, GeneralWeighting
from pipeline.problems.hyper_representation import HyperRepresentation, LocalHyperRepresentation, require_head
from pipeline.problems.loss_tuning import LossTuning, geometric, inverse_counts
from pipeline.problems.toy import Toy
from pipeline.training.precision import DTYPES, of_precision


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
    """The network named in params.yaml for the data set and in the precision named there."""
    info, named, precision = CATALOG[params.data.name], params.model, params.train.precision
    classes = params.partition.few_shot.ways if params.partition.scheme == "few_shot" else info.classes
    model = of_precision(models.build(named.name, info.channels, info.size, classes, named.options), precision)
    if precision == "32-true":  # tried by `models.build`
        return model
    w = model.initial(0).to(DTYPES[precision])
    try:
        with torch.no_grad():
            model.apply(w, w.new_zeros(1, info.channels, info.size, info.size))
    except Exception as error:
        raise UserError(
            f"train.precision: {precision} does not go with model.name: {named.name}, which fails in it"
            f" ({' '.join(str(error).split())}). Fix: train.precision: 32-true, or let its forward make constants in"
            " the dtype of its input."
        ) from error
    return model


def build_problem(params: Params, raw: RawDataset, partition: Partition, device: torch.device) -> ImageProblem:
    """The problem in use with all samples on the device; UserError for settings that do not fit the data."""
    data = FederatedData.build(raw, partition, device, DTYPES[params.train.precision])
    if params.algorithm == "oracle_weights" and not partition.clean.any():
        raise UserError(
            f"algorithm: oracle_weights shares the weight among clean clients, and partition.scheme:"
            f" {partition.scheme} has none here. Fix: another algorithm, or one clean client."
        )
    if params.partition.scheme == "few_shot":
        _require_tasks(params, partition)
    if params.federation.sampling == "fixed":
        fixed_count(len(partition.kinds), params.federation.participation)
    params = resolve(params)
    _require_upper_data(params, data)
    return IMAGE_PROBLEMS[params.problem](params, build_model(params), data)


def _require_tasks(params: Params, partition: Partition) -> None:
    """UserError if the tasks were dealt with other settings: the samples alone do not tell how they are arranged."""
    for key in ("ways", "shots", "queries"):
        wanted, dealt = getattr(params.partition.few_shot, key), partition.settings.get(key)
        if wanted != dealt:
            raise UserError(
                f"partition.few_shot.{key} is {wanted}, and the partition was made with {dealt}. Fix: run dvc repro,"
                " which makes it anew."
            )


def build_toy(params: Params) -> Toy | GeneralWeighting:
    """The toy problem of the run's seed."""
    settings = params.problems.toy
    toy = Toy.generate(settings.clients, params.seed, settings.noise)
    return toy if family(params.algorithm) == "weighting" else GeneralWeighting(toy)


# ----------------------------------------------------------------------------------- problem by problem


def _client_weighting(params: Params, model: models.FlatModel, data: FederatedData) -> ImageProblem:
    l2 = params.problems.client_weighting.l2
    problem = ClientWeighting(model, data, l2=l2, validation_batch=_server_batch(params))
    return problem if family(params.algorithm) in ("weighting", "averaging") else GeneralImageWeighting(problem)


def _hyper_representation(params: Params, model: models.FlatModel, data: FederatedData) -> ImageProblem:
    settings = params.problems.hyper_representation
    require_head(model, data, params.model.name)
    kind = LocalHyperRepresentation if settings.heads == "local" else HyperRepresentation
    measured = None if settings.measured_samples == "all" else settings.measured_samples
    return kind(model, data, _probabilities(params, data), settings.reg, settings.mu, measured)


def _few_shot(params: Params, model: models.FlatModel, data: FederatedData) -> ImageProblem:
    settings, dealt = params.problems.few_shot, params.partition.few_shot
    require_head(model, data, params.model.name, "few_shot")
    require_features(model, data, params.model.name)
    ways, shots, queries = dealt.ways, dealt.shots, dealt.queries
    new_tasks(data.test_labels.cpu().numpy(), ways, shots + queries, 1)  # UserError if the test has too few classes
    tasks = int(data.sizes[0]) // (ways * shots)
    p = _probabilities(params, data)
    return FewShot(model, data, p, ways, shots, queries, tasks, settings.mu, settings.test_tasks)


def _data_cleaning(params: Params, model: models.FlatModel, data: FederatedData) -> ImageProblem:
    settings = params.problems.data_cleaning
    scale = len(data.labels) ** 0.5 if isinstance(settings.scale, str) else settings.scale
    p, batch = _probabilities(params, data), _server_batch(params)
    sharded = settings.scores == "sharded"
    return DataCleaning(model, data, p, settings.l2, scale, settings.validation, batch, sharded)


def _loss_tuning(params: Params, model: models.FlatModel, data: FederatedData) -> ImageProblem:
    settings = params.problems.loss_tuning
    ratio = settings.class_weights
    weights = inverse_counts(data) if isinstance(ratio, str) else geometric(data, ratio)
    return LossTuning(model, data, _probabilities(params, data), settings.l2, class_weights=weights)


def _fair(params: Params, model: models.FlatModel, data: FederatedData) -> ImageProblem:
    settings = params.problems.fair
    return Fair(model, data, _probabilities(params, data), settings.l2, settings.q)


def _consensus(params: Params, model: models.FlatModel, data: FederatedData) -> ImageProblem:
    """Normalisation is the network's first layer, so that whoever serves the network gives it plain images; padding
    is then the mean colour, which that layer turns into 0."""
    settings, info = params.problems.consensus, CATALOG[params.data.name]
    if settings.normalise is True:
        model = model.after(partial(models.Normalise, info.means, info.deviations))
    fill = info.means if settings.normalise is True else ()
    served = params.hyper.served
    return Consensus(model, data, augment=settings.augment is True, fill=fill, served=served)


IMAGE_PROBLEMS: dict[str, Callable[[Params, models.FlatModel, FederatedData], ImageProblem]] = {
    "client_weighting": _client_weighting,
    "hyper_representation": _hyper_representation,
    "few_shot": _few_shot,
    "data_cleaning": _data_cleaning,
    "loss_tuning": _loss_tuning,
    "fair": _fair,
    "consensus": _consensus,
}


def _probabilities(params: Params, data: FederatedData) -> Tensor:
    """p: 1/N, or in proportion to the clients' training samples, as federation.aggregation says; [N]."""
    uniform = params.federation.aggregation == "uniform"
    shares = torch.ones_like(data.sizes) if uniform else data.sizes
    return (shares / shares.sum()).to(data.dtype)


def _server_batch(params: Params) -> int | None:
    """Size of the server's minibatch; None = its whole validation set."""
    size = params.federation.validation_batch_size
    return None if size == "all" else size


def _require_upper_data(params: Params, data: FederatedData) -> None:
    """UserError if the upper level lies on the clients and one of them holds nothing for it."""
    part = params.partition
    if not upper_on_clients(params.problem, params.problems.data_cleaning.validation, part.dealing.clean_validation):
        return
    empty = (data.own_validation.sizes == 0).nonzero()[:, 0].tolist()
    if empty:
        share, held = part.client_validation, int(data.sizes[empty[0]])
        raise UserError(
            f"problem: {params.problem} needs validation samples on every client, and client {empty[0]} ({held}"
            f" samples) has none with partition.client_validation = {share}. Fix: a larger share, or fewer clients."
        )
