"""The problem of a run, as the server and as a site has it: the same numbers of clients and samples, and of the samples
only their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pipeline import models
from pipeline.data.arrays import Samples
from pipeline.data.federated import FederatedData, Parts
from pipeline.data.raw import DatasetInfo
from pipeline.data.scaling import Scaling
from pipeline.errors import UserError, not_allowed
from pipeline.federation.samples import TEST, VALIDATION
from pipeline.methods import Participation, StepContext
from pipeline.methods.consensus import robust
from pipeline.oracles import backend_for
from pipeline.oracles.screening import Screen
from pipeline.params import Params, Resolved
from pipeline.params.resolve import resolve
from pipeline.problems.forms import Given
from pipeline.sharing import Share
from pipeline.training.precision import DTYPES, of_precision

SUPPORTED = ("client_weighting", "consensus", "hyper_representation", "loss_tuning", "fair")
"""Problems whose variables the server may know, and whose figures it can find or ask for."""
WHY_NOT = {
    "data_cleaning": "it learns a score for every single training sample, and the server and all other sites would see"
    " the scores of each site's samples, so which of them count as wrong; client_weighting learns one weight per site",
    "few_shot": "it needs clients of many small tasks, and a test on classes that no site has",
}
OWN = "arrays"
"""What a user's own data are called in params.yaml; here neither folder nor file is read."""


def settled(params: Params, samples: int, channels: int, size: int, classes: int) -> Resolved:
    """Without `auto`. samples: of all sites together; channels, size: of one sample (size 1: a vector)."""
    params = replace(params, data=replace(params.data, name=OWN), subset=type(params.subset)())
    params = replace(params, partition=replace(params.partition, scheme="natural"))
    info = DatasetInfo(classes, channels, size, samples, (0.0,) * channels, (1.0,) * channels, clients=True)
    run = resolve(params, info)
    if run.problem not in SUPPORTED:
        why = WHY_NOT.get(run.problem, "it needs the simulator's own data")
        raise UserError(
            f"problem: {run.problem} does not run at real sites: {why}. Fix: one of {', '.join(SUPPORTED)}, or another"
            " algorithm."
        )
    if getattr(run.problem_settings, "class_weights", None) == "auto":
        raise not_allowed(
            "problems.loss_tuning.class_weights",
            "auto",
            "a number with real sites: auto counts the labels of all of them, which nothing here sees",
            "for example 0.01",
        )
    return run


def set_aside(run: Resolved) -> tuple[str, ...]:
    """The parts that sites set aside: validation samples where the upper level lies with them, and test samples where
    their heads do."""
    if not run.formulation.upper_on_clients(run.problem_settings, False):
        return ()
    local = getattr(run.problem_settings, "heads", "shared") == "local"
    return (TEST, VALIDATION) if local else (VALIDATION,)


def server_data(
    validation: Samples,
    test: Samples,
    selection: Samples | None,
    classes: int,
    sizes: Sequence[int],
    dtype: torch.dtype,
) -> FederatedData:
    """The server's samples, and how many each client has."""
    placeholder = [tuple(part[:1] for part in validation)] * len(sizes)
    data = FederatedData.from_arrays(
        placeholder,  # type: ignore[arg-type]
        validation,
        test,
        selection=selection,
        classes=classes,
        kinds=["unknown"] * len(sizes),
        dtype=dtype,
    )
    counts = torch.tensor(list(sizes))
    return replace(
        data,
        images=data.images[:0],
        indices=data.indices[:0],
        labels=data.labels[:0],
        wrong=data.wrong[:0],
        starts=torch.zeros_like(counts),
        sizes=counts,
        client_labels=[[]] * len(counts),
    )


def site_data(
    own: dict[str, Samples],
    client: int,
    sizes: Sequence[int],
    classes: int,
    scaling: Scaling | None,
    dtype: torch.dtype,
) -> FederatedData:
    """The samples of client number `client`, by part, and how many the others have for training; scaled as the server
    says."""
    both = [own[part] for part in ("training", VALIDATION) if part in own]
    held = np.concatenate([X for X, _ in both]), np.concatenate([y for _, y in both])
    one = (held[0][:1], held[1][:1])
    data = FederatedData.from_arrays([held], held, own.get(TEST, one), classes=classes, kinds=["unknown"], dtype=dtype)
    counts, kept = torch.tensor(list(sizes)), len(own["training"][1])
    counts[client] = kept
    others = torch.zeros_like(counts)
    apart = others.clone()
    apart[client] = len(held[1]) - kept
    return replace(
        data,
        indices=data.indices[:kept],
        labels=data.labels[:kept],
        wrong=data.wrong[:kept],
        starts=others,
        sizes=counts,
        own_validation=Parts(data.indices[kept:], data.labels[kept:], others, apart),
        kinds=["unknown"] * len(counts),
        client_labels=[[]] * len(counts),
        oracle_weights=torch.zeros(len(counts), dtype=dtype),
        validation_images=data.validation_images[:0],
        validation_labels=data.validation_labels[:0],
        test_images=data.test_images if TEST in own else data.test_images[:0],
        test_labels=data.test_labels if TEST in own else data.test_labels[:0],
        scaling=scaling,
    )


def problem_of(params: Resolved, data: FederatedData) -> Any:
    """The problem on these data."""
    if params.algorithm == "oracle_weights":
        raise UserError(
            "algorithm: oracle_weights needs to know the clean clients, and real sites do not show which they are."
            " Fix: another algorithm, such as primal_dual."
        )
    channels, size = data.images.shape[1], data.images.shape[2]
    named, precision = params.model, params.train.precision
    model = of_precision(models.build(named.name, channels, size, data.classes, named.options), precision)
    return params.formulation.build(params.problem_settings, Given(params, model, data))


def context_of(params: Resolved, problem: Any) -> StepContext:
    """The template of every step's context."""
    f, algorithm = params.federation, params.method
    return algorithm.context(
        oracle=algorithm.context.oracle_for(problem, backend_for(params.train.backend, problem), Share()),
        hyper=params.hyper,
        federation=Participation(
            f.sampling, f.participation, int(f.batch_size), f.aggregation, robust.chosen(params.robust)
        ),
        seed=params.seed,
    )


def screen_of(params: Resolved, names: Sequence[str], notice: Callable[[str], None]) -> Screen | None:
    """The server's judgement of answers; None if all that are finite count."""
    chosen = params.screening
    return Screen(chosen.factor, chosen.bad_rounds, len(names), names, notice=notice) if chosen.leave_out else None


def dtype_of(params: Params) -> torch.dtype:
    return DTYPES[params.train.precision]


def scaling_tensors(scaling: Scaling | None) -> dict[str, Tensor]:
    """For a message."""
    return {} if scaling is None else {name: getattr(scaling, name) for name in ("shift", "spread", "limit")}
