"""Stage 5: test figures, weight quality, pictures; completes the run in the tracker."""

from functools import partial

import numpy as np

from pipeline.command import Paths, run
from pipeline.data.datasets import load
from pipeline.data.federated import FederatedData
from pipeline.data.partition import Partition
from pipeline.data.raw import RawDataset
from pipeline.data.sets.registry import TOY
from pipeline.errors import UserError
from pipeline.params import Params
from pipeline.params.resolve import resolve
from pipeline.problems.base import ImageProblem, NewTasks
from pipeline.problems.images import served_network
from pipeline.report.assembly import write_report, write_toy_report
from pipeline.report.clients import class_names
from pipeline.report.record import Record
from pipeline.tracking.model import no_model, save_model
from pipeline.tracking.publish import publish
from pipeline.tracking.request_forms import Outputs, RequestForm, own_samples, raw_images
from pipeline.training.precision import use_tensor_cores
from pipeline.training.saves import load_variables
from pipeline.training.setup import build_problem, build_toy, device_for


def evaluate(params: Params, paths: Paths) -> None:
    report = toy_report if params.data.name == TOY else image_report
    record = Record.load(paths.training)
    record.require_files(paths.results)
    print(report(params, paths, record))
    publish(paths.results, paths.model.parent, params.tracking, paths.root)


def image_report(params: Params, paths: Paths, record: Record) -> str:
    raw, partition = load(paths.raw(params.data.name)).first(params.subset), Partition.load(paths.partition)
    use_tensor_cores(params.train.precision)
    run = resolve(params, raw.info)
    problem = build_problem(run, raw, partition, device_for(params.train.accelerator))
    model, data = problem.model, problem.data
    variables = load_variables(paths.model, data.device)
    trained = len(problem.network(variables))
    if trained != model.d:
        raise UserError(
            f"the network {run.model.name} has {model.d} parameters and was trained with {trained}: its code has"
            " changed since. Fix: .venv/bin/dvc repro --force train"
        )
    save_model(
        served_network(problem, variables),
        paths.mlflow_model,
        partial(taken, raw, data),
        answers(params, problem, partition),
        params.tracking.pickle,
    )
    return write_report(problem, variables, partition, record, paths.results)


def taken(raw: RawDataset, data: FederatedData) -> RequestForm:
    """What the served model takes: the user's own rows or arrays, else images."""
    if raw.preprocessing is not None and raw.train_images.dtype != np.uint8:
        return own_samples(raw.preprocessing)
    return raw_images(data.test_images[:2].permute(0, 2, 3, 1).contiguous().cpu().numpy())


def answers(params: Params, problem: ImageProblem, partition: Partition) -> Outputs:
    if isinstance(problem, NewTasks):
        return Outputs("features")
    if not problem.data.classes:
        unit = problem.data.unit
        return Outputs("numbers", [params.data.label or "y"], unit.shift, unit.spread)
    return Outputs("probabilities", class_names(partition))


def toy_report(params: Params, paths: Paths, record: Record) -> str:
    no_model(paths.mlflow_model, "The toy problem has no network: w and x are in model.pt.")
    return write_toy_report(build_toy(resolve(params)), load_variables(paths.model), record, paths.results)


if __name__ == "__main__":
    run(evaluate)
