"""Talking to a tracker that may be slow, dead or dying, without ever waiting for it."""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections.abc import Callable

from pipeline.masking import masked

Job = Callable[[], None]


class Worker:
    """Does jobs one after another in a background thread.

    The first failure is warned of once and ends the work: what is queued or handed in later is dropped,
    because all of it is on disk already."""

    def __init__(self, advice: str) -> None:
        """advice: the second half of the warning, what it means and what to do."""
        self.error: str | None = None
        self._advice = advice
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        # A daemon: a tracker that never answers must not keep the process from ending.
        self._thread = threading.Thread(target=self._work, name="tracking", daemon=True)
        self._thread.start()

    def do(self, job: Job) -> None:
        if self.error is None:
            self._jobs.put(job)

    def close(self, seconds: float) -> bool:
        """Wait for the jobs handed in so far, but not longer; True if all were done."""
        self._jobs.put(None)
        # In short steps: the work may have failed while a job hangs on.
        deadline = time.monotonic() + seconds
        while self._thread.is_alive() and self.error is None and time.monotonic() < deadline:
            self._thread.join(0.1)
        if self._thread.is_alive():
            self.fail(f"no answer within {seconds:.0f} s")
        return self.error is None

    def fail(self, reason: str) -> None:
        """Give up; warn unless already done."""
        with self._lock:
            if self.error is not None:
                return
            self.error = reason
        print(f"tracking: {reason}; {self._advice}", file=sys.stderr, flush=True)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            if self.error is not None:
                return
            try:
                job()
            except Exception as error:
                self.fail(in_a_line(error))


def in_a_line(error: Exception, length: int = 160) -> str:
    """The heart of an exception whose text may fill a page."""
    cause: BaseException = error
    while (inner := cause.__cause__ or cause.__context__) is not None:
        cause = inner
    line = masked(" ".join(f"{type(cause).__name__}: {cause}".split()))
    return line if len(line) <= length else line[: length - 3] + "..."
