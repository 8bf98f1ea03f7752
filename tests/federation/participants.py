"""A server and its sites over NVFlare, as processes of this machine: their folders, and what they say."""

from __future__ import annotations

import signal
import time

from pipeline.federation.demo import HOSPITALS, free_port, prepare
from pipeline.federation.provisioning import provision


def provisioned(folder, rounds, server="", train="", **params):
    """(folders, port). server, train: more lines of federation.yaml, keys of `train`. params: lines of params.yaml."""
    port = free_port()
    folders = prepare(folder, port, rounds)
    provision(folders, "localhost", list(HOSPITALS), port)
    settings = folders["server"] / "federation.yaml"
    given = {line.partition(":")[0] for line in server.splitlines()}
    kept = [line for line in settings.read_text().splitlines() if line.partition(":")[0] not in given]
    settings.write_text("\n".join([*kept, server]) + "\n")
    place = folders["server"] / "params.yaml"
    lines = place.read_text().replace("train: {", f"train: {{{train}, " if train else "train: {").splitlines()
    kept = [line for line in lines if line.partition(":")[0] not in params]
    place.write_text("\n".join([*kept, *(f"{key}: {value}" for key, value in params.items())]) + "\n")
    return folders, port


def log(folder):
    return (folder / "log.txt").read_text()


def until(folder, words, count=1, seconds=100):
    """Wait for a line in a participant's log."""
    deadline = time.monotonic() + seconds
    while log(folder).count(words) < count:
        assert time.monotonic() < deadline, f"{words!r} is not in: {log(folder)[-3000:]}"
        time.sleep(0.05)


def kill(process):
    process.send_signal(signal.SIGKILL)
    process.wait()
