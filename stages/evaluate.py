"""Stage 5: test figures, weight quality, pictures; completes the run in the tracker."""

from pipeline.command import Paths, run
from pipeline.data.datasets import load
from pipeline.data.federated import FederatedData
from pipeline.data.partition import Partition
from pipeline.params import Params
from pipeline.tracking.model import save_model
from pipeline.tracking.publish import publish
from pipeline.tracking.record import Record
from pipeline.tracking.report import write_report
from pipeline.training.evaluation import outcome
from pipeline.training.results import load_variables
from pipeline.training.setup import build_model, device_for


def evaluate(params: Params, paths: Paths) -> None:
    raw, partition = load(paths.raw(params.data.name)), Partition.load(paths.partition)
    variables, record = load_variables(paths.model), Record.load(paths.training)
    model, dtype = build_model(params), variables["w"].dtype
    data = FederatedData.build(raw, partition, device_for(params.train.accelerator), dtype)

    found = outcome(model, data, variables)
    print(write_report(found, partition, record, paths.results))
    example = data.scaled(data.test_images[:2]).cpu().float().numpy()
    save_model(model.module_with(variables["w"]), paths.mlflow_model, example)
    publish(paths.results, paths.model.parent, params.tracking, paths.root)


if __name__ == "__main__":
    run(evaluate)
