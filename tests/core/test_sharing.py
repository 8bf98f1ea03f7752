"""Clients spread over processes: the same runs, number for number."""

import subprocess
import sys
from pathlib import Path

import torch

from pipeline.sharing import Share
from tests.core.shared_runs import every_run

ROOT = Path(__file__).parents[2]


def test_every_client_is_simulated_once():
    clients = torch.tensor([7, 0, 4, 3, 9])
    for ranks in (1, 2, 3, 8):
        owned = torch.cat([Share(rank, ranks).own(clients) for rank in range(ranks)])
        assert sorted(owned.tolist()) == [0, 1, 2, 3, 4]


def test_several_processes_give_the_run_of_one(tmp_path):
    """Every method and estimator, half of the clients in each round, noise in every answer: to 1e-10 in float64. With
    three processes and five clients, some of them have nobody to simulate in some rounds."""
    ranks = 3
    command = [sys.executable, "-W", "ignore", "-m", "tests.core.shared_runs"]
    arguments = [str(ranks), str(tmp_path / "store"), str(tmp_path / "runs.pt")]
    started = [subprocess.Popen([*command, str(rank), *arguments], cwd=ROOT) for rank in range(ranks)]
    assert [process.wait(120) for process in started] == [0] * ranks
    shared = torch.load(tmp_path / "runs.pt")
    alone = every_run(Share())
    assert shared.keys() == alone.keys()
    for name, values in alone.items():
        for key, value in values.items():
            torch.testing.assert_close(shared[name][key], value, rtol=1e-10, atol=1e-10, msg=f"{name}: {key}")
