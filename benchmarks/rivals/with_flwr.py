"""LR-MNIST by Flower: its own FedAvg strategy on its simulation engine. Its environment: see `__init__.py`.

Arguments: the file that `measure` wrote, a seed. Prints seconds of training (evaluations included) and the final
accuracy. The clock starts when the server does: starting Ray and its actors is not counted.
"""

import json
import os
import random
import sys
import time

import numpy as np
import torch
from flwr.client import ClientApp, NumPyClient
from flwr.common import Context, ndarrays_to_parameters
from flwr.server import ServerApp, ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.simulation import run_simulation
from torch.nn.functional import cross_entropy

case = np.load(os.environ.setdefault("LR_MNIST_CASE", sys.argv[1]))
offsets, rounds, every = case["offsets"], int(case["rounds"]), int(case["eval_every"])
_loaded = {}


def data():
    """All clients' samples, once per process."""
    if not _loaded:
        torch.set_num_threads(1)
        _loaded["X"], _loaded["y"] = torch.tensor(case["images"]).float().div_(255), torch.tensor(case["labels"])
    return _loaded["X"], _loaded["y"]


class Client(NumPyClient):
    def __init__(self, i):
        self.low, self.high = int(offsets[i]), int(offsets[i + 1])

    def fit(self, parameters, config):
        X, y = data()
        network = torch.nn.Linear(784, 10)
        network.load_state_dict({k: torch.tensor(v) for k, v in zip(network.state_dict(), parameters, strict=True)})
        optimizer = torch.optim.SGD(network.parameters(), float(case["eta"]))
        for rows in (torch.randperm(self.high - self.low) + self.low).split(int(case["batch"])):
            optimizer.zero_grad()
            cross_entropy(network(X[rows]), y[rows]).backward()
            optimizer.step()
        return [v.numpy() for v in network.state_dict().values()], self.high - self.low, {}


def client_fn(context: Context):
    return Client(int(context.node_config["partition-id"])).to_client()


times, found = {}, {}


def evaluate(server_round, parameters, config):
    if server_round == 0:
        times["start"] = time.perf_counter()
    if server_round % every == 0:
        weight, bias = (torch.tensor(v) for v in parameters)
        scores = torch.tensor(case["test_images"]).float().div_(255) @ weight.T + bias
        found["accuracy"] = (scores.argmax(1) == torch.tensor(case["test_labels"])).float().mean().item()
    if server_round == rounds:
        times["end"] = time.perf_counter()
    return 0.0, {}


def server_fn(context: Context):
    torch.manual_seed(int(sys.argv[2]))
    random.seed(int(sys.argv[2]))  # Flower draws its clients from Python's own generator
    network = torch.nn.Linear(784, 10)
    strategy = FedAvg(
        fraction_fit=float(case["active"]) / (len(offsets) - 1),
        fraction_evaluate=0.0,
        min_fit_clients=int(case["active"]),
        min_available_clients=len(offsets) - 1,
        initial_parameters=ndarrays_to_parameters([v.numpy() for v in network.state_dict().values()]),
        evaluate_fn=evaluate,
    )
    return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=rounds))


def main():
    run_simulation(
        ServerApp(server_fn=server_fn),
        ClientApp(client_fn=client_fn),
        num_supernodes=len(offsets) - 1,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )
    print(json.dumps({"seconds": times["end"] - times["start"], **found}))


if __name__ == "__main__":
    import with_flwr  # the workers import this module by its name instead of receiving it, data and all, by message

    with_flwr.main()
