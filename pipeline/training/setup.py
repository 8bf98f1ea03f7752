"""From parameters to device, network and problem; what training and evaluation both need."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import torch

from pipeline import models
from pipeline.data.federated import FederatedData
from pipeline.data.losses import Loss, balanced, require_fit
from pipeline.data.partition import Partition
from pipeline.data.raw import DatasetInfo, RawDataset
from pipeline.data.sizes import require_memory
from pipeline.errors import UserError, not_allowed
from pipeline.methods import Participation, StepContext
from pipeline.methods.consensus import robust
from pipeline.oracles import backend_for
from pipeline.oracles.screening import Screen
from pipeline.params import Resolved
from pipeline.participation import fixed_count
from pipeline.problems.base import ImageProblem, Problem
from pipeline.problems.forms import Given
from pipeline.problems.registry import PROBLEMS
from pipeline.sharing import Share
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


def build_model(params: Resolved, info: DatasetInfo | None = None) -> models.FlatModel:
    """The network named in params.yaml for the data set and in the precision named there. info: of a user's own
    data."""
    info = params.data.dataset.info or info
    assert info
    named, precision = params.model, params.train.precision
    classes = params.partition.few_shot.ways if params.partition.scheme == "few_shot" else info.classes or 1
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


def build_problem(
    params: Resolved,
    raw: RawDataset,
    partition: Partition,
    device: torch.device,
    model: models.FlatModel | None = None,
) -> ImageProblem:
    """The problem in use with all samples on the device; UserError for settings that do not fit the data. model: in
    place of the one named in params.yaml."""
    info = params.data.dataset.info or raw.info
    data = FederatedData.build(raw, partition, device, DTYPES[params.train.precision])
    data = replace(data, loss=loss_on(data, params))
    _require_sense(params, raw, data)
    if params.algorithm == "oracle_weights" and not partition.clean.any():
        raise UserError(
            f"algorithm: oracle_weights shares the weight among clean clients, and partition.scheme:"
            f" {partition.scheme} has none here. Fix: another algorithm, or one clean client."
        )
    if params.partition.scheme == "few_shot":
        _require_tasks(params, partition)
    if params.federation.sampling == "fixed":
        fixed_count(len(partition.kinds), params.federation.participation)
    _require_upper_data(params, data)
    _require_memory(params, data, len(partition.kinds))
    model = model or build_model(params, info)
    if model.no_products and params.problem != "consensus":
        raise UserError(
            f"model: problem: {params.problem} needs Hessian-vector products, and this network has none"
            f" ({model.no_products}). Fix: layers that can be differentiated twice, or a method of averaging, such as"
            " fedavg."
        )
    return params.formulation.build(params.problem_settings, Given(params, model, data, info))


def _require_memory(params: Resolved, data: FederatedData, clients: int) -> None:
    """UserError for minibatches that no memory holds. Methods with local steps take their clients a few at a time."""
    size, federation = data.images[0].numel() * data.dtype.itemsize, params.federation
    active = 1.0 if hasattr(params.hyper, "clients_at_once") else max(1.0, federation.participation * clients)
    wanted = {
        "federation.batch_size": (federation.batch_size, active),
        "federation.validation_batch_size": (federation.validation_batch_size, 1),
    }
    for option in ("product_batch_size", "initial_batch_size"):
        wanted[f"algorithms.{params.method.name}.{option}"] = (getattr(params.hyper, option, "auto"), active)
    for name, (batch, times) in wanted.items():
        if isinstance(batch, int):
            what = f"{name} = {batch}: the samples of a step, of {times:.0f} clients at once,"
            require_memory(what, float(batch) * times * size, f"a smaller {name}, or fewer active clients")


def loss_on(data: FederatedData, params: Resolved) -> Loss:
    """The loss named in params.yaml; UserError if it does not go with the targets."""
    name, weighted = params.loss.name, params.loss.class_weights == "balanced"
    require_fit(name, params.loss.class_weights, data.classes, params.partition.scheme == "few_shot")
    if not weighted:
        return Loss(name, delta=params.loss.huber_delta)
    return Loss(name, balanced(data.labels.bincount(minlength=data.classes)).to(data.dtype))


def _require_sense(params: Resolved, raw: RawDataset, data: FederatedData) -> None:
    """UserError for a problem that own data cannot serve."""
    if not raw.classes and not params.formulation.numbers:
        fitting = ", ".join(name for name, each in PROBLEMS.items() if each.numbers and not each.own_data)
        raise UserError(
            f"problem: {params.problem} is about classes, and the targets of data.name: {params.data.name} are numbers."
            f" Fix: one of {fitting}."
        )
    on_clients = params.formulation.upper_on_clients(params.problem_settings, params.partition.dealing.clean_validation)
    if raw.own and not on_clients and not len(data.validation_labels):
        raise not_allowed(
            "data.validation_share",
            params.data.validation_share,
            f"above 0 for problem: {params.problem}, as the data bring no validation set for the server",
            "give a validation set (fit: validation=(X, y)), or raise it if each client has more than one sample",
        )


def _require_tasks(params: Resolved, partition: Partition) -> None:
    """UserError if the tasks were dealt with other settings: the samples alone do not show how they are arranged."""
    for key in ("ways", "shots", "queries"):
        wanted, dealt = getattr(params.partition.few_shot, key), partition.settings.get(key)
        if wanted != dealt:
            raise UserError(
                f"partition.few_shot.{key} is {wanted}, and the partition was made with {dealt}. Fix: run dvc repro,"
                " which makes it anew."
            )


def build_toy(params: Resolved) -> Any:
    """The toy problem of the run's seed."""
    return params.formulation.build(params.problem_settings, Given(params))


def _require_upper_data(params: Resolved, data: FederatedData) -> None:
    """UserError if the upper level lies on the clients and one of them holds nothing for it."""
    part = params.partition
    if not params.formulation.upper_on_clients(params.problem_settings, part.dealing.clean_validation):
        return
    empty = (data.own_validation.sizes == 0).nonzero()[:, 0].tolist()
    if empty:
        share, held = part.client_validation, int(data.sizes[empty[0]])
        raise UserError(
            f"problem: {params.problem} needs validation samples on every client, and client {empty[0]} ({held}"
            f" samples) has none with partition.client_validation = {share}. Fix: a larger share, or fewer clients."
        )


def build_context(params: Resolved, problem: Problem, share: Share, *, screened: bool = True) -> StepContext:
    """The template of every step's context of that method on the problem. screened: False where runs go together, in
    which no client can be left out of one of them alone."""
    federation, screening = params.federation, params.screening
    algorithm, screen = params.method, None
    if screened and screening.leave_out:
        names = getattr(getattr(problem, "data", None), "names", None)
        screen = Screen(screening.factor, screening.bad_rounds, problem.clients, names, share)
    return algorithm.context(
        oracle=algorithm.context.oracle_for(problem, backend_for(params.train.backend, problem), share, screen),
        hyper=params.hyper,
        federation=Participation(
            federation.sampling,
            federation.participation,
            int(federation.batch_size),
            federation.aggregation,
            robust.chosen(params.robust),
        ),
        seed=params.seed,
        share=share,
        screen=screen,
    )
