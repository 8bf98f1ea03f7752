"""What a round over NVFlare costs, over the simulator's arithmetic and the engine's own floor; and the bytes it takes.

Digits, four sites as processes of this machine with mutual TLS, primal_dual with LeNet-5, every process with one
thread. The floor is an exchange of as many bytes with sites that compute nothing. All are measured in turn; the ratio
is the median of paired ones. The sites share the cores of this machine, the simulator has one.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.timing import digits, interleaved
from pipeline.config.spec import override
from pipeline.data.federated import FederatedData
from pipeline.federation import problems
from pipeline.federation.demo import free_port, start
from pipeline.federation.flare import FlareServer, serve
from pipeline.federation.hub import Hub
from pipeline.federation.provisioning import provision
from pipeline.federation.rounds import remote
from pipeline.federation.samples import ServerSamples
from pipeline.federation.server import Sites
from pipeline.federation.settings import Engine, Server
from pipeline.params import Params
from pipeline.training.loop import Loop

REPETITIONS = 15
NAMES = ("north", "south", "east", "west")
ECHOES = tuple(f"{name}-echo" for name in NAMES)
"""Sites that compute nothing."""
SAMPLES = 300
SITE = """\
name: {name}
data: {{path: data.npz, reader: pipeline.federation.readers.npz_file}}
engine: {{port: {port}}}
"""
SETTINGS = {"model.name": "lenet5", "train.accelerator": "cpu", "train.rounds": 10 * REPETITIONS}


def measure() -> dict[str, float]:
    """Milliseconds (medians), the ratio, and bytes per site and round; of exact payloads and of bfloat16."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as open_:
        root, port = Path(scratch), free_port()
        folders = {name: root / name for name in ("server", *NAMES, *ECHOES)}
        for folder in folders.values():
            folder.mkdir()
        provision(folders, "localhost", [*NAMES, *ECHOES], port)
        raw = digits()
        parts = [slice(SAMPLES * i, SAMPLES * (i + 1)) for i in range(len(NAMES))]
        held = [(raw.train_images[part], raw.train_labels[part]) for part in parts]
        for name, (X, y) in zip(NAMES, held, strict=True):
            np.savez(folders[name] / "data.npz", X=X, y=y)
            (folders[name] / "site.yaml").write_text(SITE.format(name=name, port=port))
        validation, test = (raw.train_images[-100:], raw.train_labels[-100:]), (raw.test_images, raw.test_labels)
        own = ServerSamples(validation, test, None, [])
        transport = FlareServer(Engine(port=port), folders["server"])
        open_.callback(transport.close)
        running = [start("site", folders[name]) for name in NAMES] + [_echo(folders[name], port) for name in ECHOES]
        for process in running:
            open_.callback(process.wait)
            open_.callback(process.kill)
        while not transport.present() >= {*NAMES, *ECHOES}:
            time.sleep(0.1)
        return _measured(transport, own, held)


def _measured(transport: FlareServer, own: ServerSamples, held: list[Any]) -> dict[str, float]:
    params = problems.settled(override(Params(), SETTINGS), SAMPLES * len(NAMES), 1, 28, 10)
    kinds = ["unknown"] * len(NAMES)
    data = FederatedData.from_arrays(held, own.validation, own.test, classes=10, kinds=kinds)  # type: ignore[arg-type]
    simulated = Loop(params.method, problems.context_of(params, problems.problem_of(params, data)), params.train.rounds)
    exact = _payload("exact", params, transport, own, simulated)
    rounded = _payload("bfloat16", params, transport, own, simulated)
    return exact | {f"bfloat16_{name}": value for name, value in rounded.items()}


def _payload(
    payload: Any, params: Any, transport: FlareServer, own: ServerSamples, simulated: Loop
) -> dict[str, float]:
    loop, hub = _remote(params, transport, own, payload)
    before = replace(hub.tally)
    loop.step()
    down = (hub.tally.bytes_down - before.bytes_down) // len(NAMES)
    up = (hub.tally.bytes_up - before.bytes_up) // len(NAMES)
    question = up.to_bytes(8, "little") + bytes(down - 8)
    points = {
        "simulator": lambda: _seconds(simulated.step),
        "federation": lambda: _seconds(loop.step),
        "engine": lambda: _seconds(lambda: transport.ask(dict.fromkeys(ECHOES, question), 60.0)),
    }
    times = interleaved(points, REPETITIONS)
    figures = {f"{name}_ms": 1e3 * statistics.median(found) for name, found in times.items()}
    paired = zip(times["federation"], times["simulator"], times["engine"], strict=True)
    ratio = statistics.median(real / (arithmetic + floor) for real, arithmetic, floor in paired)
    return figures | {"ratio": ratio, "bytes_down": down, "bytes_up": up}


def _remote(params: Any, transport: FlareServer, own: ServerSamples, payload: Any) -> tuple[Loop, Hub]:
    settings = Server(sites=list(NAMES), classes=10, min_sites=len(NAMES), payload=payload)
    sites = Sites(settings, own, ())
    floats = torch.bfloat16 if payload == "bfloat16" else None
    members = {name: [number] for number, name in enumerate(NAMES)}
    hub = sites.hub = Hub(transport, members, needed=len(NAMES), welcome=sites.welcome, floats=floats)
    assert own.test
    data = problems.server_data(own.validation, own.test, None, 10, [SAMPLES] * len(NAMES), hub.dtype)
    sites.begin(params, data)
    context = problems.context_of(params, problems.problem_of(params, data))
    loop = Loop(*remote(params.method, context, hub), params.train.rounds)
    loop.step()
    return loop, hub


def _seconds(act: Any) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def _echo(folder: Path, port: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.sites", folder.name, str(port), str(folder)]
    return subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, text=True)


def _length(content: bytes) -> bytes:
    """As many bytes as the question asks for in its first eight."""
    return bytes(int.from_bytes(content[:8], "little"))


if __name__ == "__main__":
    serve(sys.argv[1], Engine(port=int(sys.argv[2])), Path(sys.argv[3]), _length, threading.Event())
