"""Ctrl-C and SIGTERM end a stage at once, in a line, and within seconds whatever it does.

What a stage writes appears whole or not at all, and a training is saved every few rounds, so a stage may end anywhere.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from types import FrameType

SECONDS = 4.0
"""For what is left to do, such as telling the tracker."""
_WHY = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "a termination signal"}
_installed = False


def install() -> None:
    """From now on, in a stage's process; before its slow imports, which may be interrupted too."""
    global _installed
    if not _installed:
        atexit.register(_deaf)  # the first to be registered is the last to be called
    _installed = True
    for signum in _WHY:
        signal.signal(signum, _end)


def reinstall() -> None:
    """Where a library has put handlers of its own."""
    if _installed:
        install()


def _end(signum: int, frame: FrameType | None) -> None:
    code = 128 + signum
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))  # a second one waits for nothing
    signal.signal(signal.SIGTERM, lambda *_: os._exit(143))
    atexit.register(_deaf)
    stage = next((word.removeprefix("stages.") for word in sys.orig_argv if word.startswith("stages.")), "run")
    how = "goes on from the last save" if stage in ("train", "sweep") else "starts this stage again"
    os.write(2, f"\n{stage}: stopped by {_WHY[signal.Signals(signum)]}; the next run {how}.\n".encode())
    if _importing(frame):
        os._exit(code)
    timer = threading.Timer(SECONDS, os._exit, (code,))
    timer.daemon = True
    timer.start()
    raise SystemExit(code)


def _importing(frame: FrameType | None) -> bool:
    """An exception within the import of a compiled library may abort the process instead of ending it."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def _deaf() -> None:
    """While the interpreter ends: it would put the default handlers back, which kill without our exit code. All is
    written by then."""
    for signum in _WHY:
        signal.signal(signum, signal.SIG_IGN)
