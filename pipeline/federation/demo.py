"""`make federation-demo`: a server and four hospitals as processes of this machine, each in a folder of its own, with
certificates of its own and nothing but its own table."""

from __future__ import annotations

import csv
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from pipeline.command import answering
from pipeline.errors import UserError
from pipeline.federation.provisioning import provision

HOSPITALS = {"north": (220, 0.0), "south": (160, 0.0), "east": (120, 0.0), "west": (180, 0.9)}
"""Name -> how many patients, and the share of random diagnoses in its records."""
FEATURES = ("age", "pressure", "cholesterol", "heart_rate", "sugar", "st_depression")
MEANS = np.array([55.0, 132.0, 240.0, 148.0, 110.0, 1.0])
SPREADS = np.array([9.0, 17.0, 50.0, 22.0, 30.0, 1.0])
EFFECTS = np.array([1.2, 0.8, 0.9, -1.6, 0.7, 1.8])

SERVER = """\
sites: [{sites}]
min_sites: 3
timeout: 20
data: {{options: {{label: diseased}}}}
engine: {{host: localhost, port: {port}}}
"""
SITE = """\
name: {name}
data: {{options: {{label: diseased}}}}
engine: {{host: localhost, port: {port}}}
"""
PARAMS = """\
model: {{name: linear}}
train: {{rounds: {rounds}, accelerator: cpu}}
"""


def patients(generator: np.random.Generator, count: int, wrong: float, shift: float) -> list[list[float]]:
    """Rows of a table: measurements, and whether the patient is diseased. wrong: share of random diagnoses."""
    Z = generator.normal(shift, 1.0, (count, len(FEATURES)))
    ill = (Z @ EFFECTS + generator.logistic(0, 1, count) > 0).astype(float)
    ill = np.where(generator.random(count) < wrong, (generator.random(count) < 0.5).astype(float), ill)
    return np.column_stack([(MEANS + SPREADS * Z).round(1), ill]).tolist()


def write(path: Path, rows: list[list[float]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*FEATURES, "diseased"])
        writer.writerows(rows)


def prepare(folder: Path, port: int, rounds: int) -> dict[str, Path]:
    """A folder per participant: its data and its settings."""
    folders = {name: folder / name for name in ("server", *HOSPITALS)}
    for place in folders.values():
        place.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(0)
    for number, (name, (count, wrong)) in enumerate(HOSPITALS.items()):
        write(folders[name] / "data.csv", patients(generator, count, wrong, 0.2 * (number - 1.5)))
        (folders[name] / "site.yaml").write_text(SITE.format(name=name, port=port))
    write(folders["server"] / "validation.csv", patients(generator, 100, 0.0, 0.0))
    write(folders["server"] / "test.csv", patients(generator, 400, 0.0, 0.0))
    (folders["server"] / "federation.yaml").write_text(SERVER.format(sites=", ".join(HOSPITALS), port=port))
    (folders["server"] / "params.yaml").write_text(PARAMS.format(rounds=rounds))
    return folders


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return int(probe.getsockname()[1])


def start(role: str, folder: Path) -> subprocess.Popen[str]:
    """One participant, in its own folder, with its own log."""
    command = [sys.executable, "-W", "ignore", "-m", "pipeline.federation", role, str(folder)]
    root = str(Path(__file__).parents[2])
    paths = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "MLFLOW_DISABLE_TELEMETRY": "true"}
    with (folder / "log.txt").open("a") as log:
        return subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log, text=True)


def demo(keep: Path, rounds: int = 200) -> None:
    """Run it; results go to `keep`."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="federation-") as scratch:
        port = free_port()
        folders = prepare(Path(scratch), port, rounds)
        provision(folders, "localhost", list(HOSPITALS), port)
        print(f"provisioned a server and {len(HOSPITALS)} hospitals: {', '.join(HOSPITALS)}", flush=True)
        running = [start("site", folders[name]) for name in HOSPITALS]
        try:
            server = start("server", folders["server"])
            running.append(server)
            _follow(server, folders["server"] / "log.txt")
        finally:
            for process in running:
                process.terminate()
            for process in running:
                try:
                    process.wait(15)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
        if server.returncode:
            logs = [(folders[name] / "log.txt").read_text()[-2000:] for name in folders]
            raise UserError("the server ended with an error.\n" + "\n".join(logs))
        shutil.rmtree(keep, ignore_errors=True)
        for made, place in (("results", keep), ("models", keep / "models")):
            shutil.copytree(folders["server"] / made, place, dirs_exist_ok=True)  # another demo may end just now
    print(
        f"\nresults, pictures, history and model: {keep} ({time.monotonic() - began:.0f} s; all processes have ended)"
    )


def _follow(process: subprocess.Popen[str], log: Path) -> None:
    """Show what the server says until it ends."""
    shown = 0
    while True:
        ended = process.poll() is not None
        text = log.read_text()
        sys.stdout.write(text[shown:])
        sys.stdout.flush()
        shown = len(text)
        if ended:
            return
        time.sleep(0.2)


if __name__ == "__main__":
    for kind in (signal.SIGTERM, signal.SIGHUP):  # as Ctrl-C: what was started is stopped
        signal.signal(kind, lambda number, _: sys.exit(128 + number))
    answering(lambda: demo(Path("results/federation-demo")))
