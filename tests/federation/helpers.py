"""A small federation of tables in folders, its sites in this process, and the same run in the simulator."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from pipeline.config.spec import override
from pipeline.data.federated import FederatedData
from pipeline.federation import problems, server
from pipeline.federation.demo import FEATURES, HOSPITALS, prepare
from pipeline.federation.hospital import site_of
from pipeline.federation.readers import csv_file
from pipeline.federation.settings import Engine, PrivacySettings, Server, ServerData, SiteData, SiteSettings
from pipeline.federation.transports import InProcess
from pipeline.oracles.screening import Screen, _Strikes
from pipeline.params import Params
from pipeline.training.loop import Loop

SITES = list(HOSPITALS)
LABEL = {"label": "diseased"}
OPEN = PrivacySettings()
QUICK = {
    "model.name": "linear",
    "train.rounds": 6,
    "train.eval_every": 3,
    "train.checkpoint_every": 2,
    "train.accelerator": "cpu",
    "train.backend": "loop",
}


def settings(**more) -> Server:
    quick = {"rest": 0.0, "gather": 0.0, "timeout": 5.0, "patience": 0.3}
    return Server(sites=SITES, engine=Engine(), **{"data": ServerData(options=LABEL)} | quick | more)


def params(algorithm="primal_dual", **more) -> Params:
    return override(Params(), QUICK | {"algorithm": algorithm} | {k.replace("__", "."): v for k, v in more.items()})


def sites(folder, privacy=OPEN, **more):
    """name -> the site, with its table read."""
    prepare(folder, 1, 6)
    data = SiteData(options=LABEL)
    return {name: site_of(SiteSettings(name=name, data=data, privacy=privacy, **more), folder / name) for name in SITES}


def transport(there) -> InProcess:
    return InProcess({name: site.answer for name, site in there.items()})


def run(folder, chosen, network, on_round=None, **more) -> str:
    (folder / "server").mkdir(exist_ok=True)
    chosen = dataclasses.replace(chosen, tracking=dataclasses.replace(chosen.tracking, uri=str(folder / "mlruns.db")))
    return server.run(settings(**more), chosen, folder / "server", network, on_round)


def simulated(folder, chosen, absent=lambda round_: frozenset(), left_out=None):
    """The variables after every round, all samples in one place. absent: ids of clients, round by round. left_out:
    round -> the client whose answers do not count."""
    read = lambda path: csv_file(path, **LABEL)[:2]  # noqa: E731
    tables = [read(folder / name / "data.csv") for name in SITES]
    data = FederatedData.from_arrays(
        tables,
        read(folder / "server" / "validation.csv"),
        read(folder / "server" / "test.csv"),
        classes=2,
        kinds=["unknown"] * len(SITES),
        dtype=problems.dtype_of(chosen),
    )
    chosen = problems.settled(chosen, sum(len(y) for _, y in tables), len(FEATURES), 1, 2)
    loop = Loop(chosen.method, problems.context_of(chosen, problems.problem_of(chosen, data)), chosen.train.rounds)
    screen = Screen(100.0, 0.5, len(SITES)) if left_out else None
    found = []
    for _ in range(chosen.train.rounds):
        now = loop.round + 1
        loop.context = dataclasses.replace(loop.context, absent=absent(now), screen=screen)
        if screen:
            screen.strikes = {left_out[now]: _Strikes(1, (now, 1), now + 1)} if now in left_out else {}
        loop.step()
        found.append({name: value.clone() for name, value in loop.state.variables.items()})
    return found


def trained(folder):
    """The variables that a run has left behind."""
    return torch.load(folder / "server" / "models" / "model.pt", weights_only=True)["variables"]


def history(folder):
    with (folder / "server" / "results" / "history.csv").open() as file:
        header, *rows = [line.strip().split(",") for line in file]
    return [dict(zip(header, row, strict=True)) for row in rows]


def weights(folder) -> np.ndarray:
    return np.load(folder / "server" / "results" / "client_weights_history.npz")["weights"]


def network(channels, image_size, classes):
    """A network of one's own."""
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(channels * image_size**2, classes))


def small_network(channels, image_size, classes):
    """One with a body and a head."""
    width = channels * image_size**2
    body = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(width, 5), torch.nn.Tanh())
    return torch.nn.Sequential(body, torch.nn.Linear(5, classes))
