"""A run in several processes, on one machine or on many: who starts them, and what happens when one is gone.

`train.devices` processes per machine, `train.nodes` machines. On one machine the first process starts the others with
its own command line. On several, what starts the command there (srun, torchrun, you) assigns the ranks by the
usual variables: SLURM's own, or RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.

All processes compute the same server; the first alone writes files and talks to the tracker.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch
from pytorch_lightning.strategies import DDPStrategy

from pipeline.config.sections import Train
from pipeline.errors import UserError, not_allowed
from pipeline.sharing import Share

GRACE = 10.0
"""Seconds that a process has to notice by itself that another one is gone, before it is ended."""

FEW = 8
"""Processes that any machine bears."""


class Processes(DDPStrategy):
    """Lightning's process group without its wrapper, which would average gradients and copy buffers."""

    def configure_ddp(self) -> None:
        """The module stays as it is."""


def share_of(train: Train) -> Share:
    """Which of the run's processes this one is; UserError if the surroundings disagree with params.yaml."""
    ranks = train.devices * train.nodes
    if ranks == 1:
        return Share()
    env = os.environ
    if "SLURM_PROCID" in env and "LOCAL_RANK" not in env and int(env.get("SLURM_NTASKS", "1")) > 1:
        found, rank = int(env["SLURM_NTASKS"]), int(env["SLURM_PROCID"])
    elif "LOCAL_RANK" in env:
        found, rank = int(env.get("WORLD_SIZE", ranks)), int(env.get("RANK", env["LOCAL_RANK"]))
    elif train.nodes == 1:
        most = max(FEW, os.cpu_count() or 1, torch.cuda.device_count())
        if ranks > most:
            raise not_allowed(
                "train.devices", ranks, f"at most {most} on this machine, which has no more to share", "lower it"
            )
        return Share(0, ranks)
    else:
        raise UserError(
            f"train.nodes = {train.nodes} needs this command on every machine, with its rank. Fix: start it by"
            f" srun with {ranks} tasks, or by torchrun ({train.nodes} nodes, {train.devices} processes each);"
            " or train.nodes: 1."
        )
    if found != ranks:
        raise UserError(
            f"train.devices = {train.devices} on train.nodes = {train.nodes} makes {ranks} processes, and {found} were"
            f" started. Fix: start {ranks}, or set train.devices and train.nodes to what was started."
        )
    return Share(rank, ranks)


@contextmanager
def companions(share: Share) -> Iterator[None]:
    """Around the training of the first process: starts the others, unless they already run, and ends with them."""
    if share.ranks == 1 or "LOCAL_RANK" in os.environ or "SLURM_PROCID" in os.environ:
        if share.rank:
            _end_with(os.getppid())
        yield
        return
    os.environ |= {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_free_port()),
        "WORLD_SIZE": str(share.ranks),
        "NODE_RANK": "0",
    }
    started = [_start(rank) for rank in range(1, share.ranks)]
    os.environ |= {"LOCAL_RANK": "0", "RANK": "0"}
    threading.Thread(target=_watch, args=(started,), daemon=True).start()
    try:
        yield
        for process in started:
            with suppress(subprocess.TimeoutExpired):  # all is saved; what is slow to end is ended below
                process.wait(GRACE)
    finally:
        for process in started:
            process.kill()


@contextmanager
def only_the_first_speaks() -> Iterator[None]:
    """Around the training of another process: a user's mistake and a diverged run are met by all of them alike, and
    the first one reports it."""
    try:
        yield
    except UserError:
        sys.exit(1)


def gone(error: Exception) -> UserError:
    """The error when a message could not be delivered."""
    return UserError(
        "another process of this run has ended, so this one stopped too; its message, if any, is above"
        f" ({type(error).__name__}). Fix: run it again; it goes on from the last save."
    )


def _start(rank: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, *sys.orig_argv[1:]], env=os.environ | {"LOCAL_RANK": str(rank), "RANK": str(rank)}
    )


def _watch(started: list[subprocess.Popen[bytes]]) -> None:
    """Ends this process when another has failed and the exchange with it does not (a GPU waits for ever)."""
    while True:
        time.sleep(1.0)
        failed = [(rank, p.returncode) for rank, p in enumerate(started, 1) if p.poll() not in (None, 0)]
        if failed:
            time.sleep(GRACE)
            rank, code = failed[0]
            how = f"by signal {signal.Signals(-code).name}" if code < 0 else f"with code {code}"
            print(
                f"error: process {rank} of this run ended {how}. Fix: run it again; it goes on from the last save.",
                file=sys.stderr,
                flush=True,
            )
            for process in started:
                process.kill()
            os._exit(1)


def _end_with(parent: int) -> None:
    """This process ends when the one that started it does."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
