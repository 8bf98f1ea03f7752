"""LR-MNIST by pfl: its own FederatedAveraging on its simulated backend. Its environment: see `__init__.py`.

Arguments: the file that `measure` wrote, a seed. Prints seconds of training (evaluations included) and the final
accuracy.
"""

import json
import sys
import time

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.central_evaluation import CentralEvaluationCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Weighted
from pfl.model.pytorch import PyTorchModel
from torch.nn.functional import cross_entropy


class Linear(torch.nn.Linear):
    """784-10; pfl asks for its loss and metrics."""

    def __init__(self):
        super().__init__(784, 10)

    def loss(self, images, labels, eval=False):
        self.eval() if eval else self.train()
        return cross_entropy(self(images), labels)

    def metrics(self, images, labels, eval=True):
        with torch.no_grad():
            scores = self(images)
            right = (scores.argmax(1) == labels).sum().item()
            return {"accuracy": Weighted(right, len(labels))}


def main():
    case = np.load(sys.argv[1])
    torch.set_num_threads(int(case["threads"]))
    torch.manual_seed(int(sys.argv[2]))
    np.random.seed(int(sys.argv[2]))  # noqa: NPY002 - pfl draws its users from numpy's global generator
    offsets, rounds, every = case["offsets"], int(case["rounds"]), int(case["eval_every"])
    X, y = torch.tensor(case["images"]).float().div_(255), torch.tensor(case["labels"])
    test = Dataset((torch.tensor(case["test_images"]).float().div_(255), torch.tensor(case["test_labels"])))

    def client(i):
        rows = torch.randperm(int(offsets[i + 1] - offsets[i])) + int(offsets[i])  # a fresh order for each epoch
        return Dataset((X[rows], y[rows]))

    people = list(range(len(offsets) - 1))
    data = FederatedDataset(client, get_user_sampler("random", people))
    network = Linear()
    model = PyTorchModel(
        network, local_optimizer_create=torch.optim.SGD, central_optimizer=torch.optim.SGD(network.parameters(), 1.0)
    )
    evaluation = CentralEvaluationCallback(test, NNEvalHyperParams(local_batch_size=1000), frequency=every)
    start = time.perf_counter()
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=rounds,
            evaluation_frequency=every,
            train_cohort_size=int(case["active"]),
            val_cohort_size=0,
        ),
        SimulatedBackend(training_data=data, val_data=None, postprocessors=[WeightByDatapoints()]),
        model,
        NNTrainHyperParams(
            local_batch_size=int(case["batch"]), local_num_epochs=1, local_learning_rate=float(case["eta"])
        ),
        callbacks=[evaluation],
        send_metrics_to_platform=False,
    )
    seconds = time.perf_counter() - start
    images, labels = test.raw_data
    accuracy = (network(images).argmax(1) == labels).float().mean().item()
    print(json.dumps({"seconds": seconds, "accuracy": accuracy}))


if __name__ == "__main__":
    main()
