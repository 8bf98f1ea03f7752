"""What every fuzzed reader is held to: an answer of a few lines or a result, within seconds.

300 cases in all; `make fuzz` sets FEDBILEVEL_FUZZ to another number.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from hypothesis import HealthCheck, settings

from pipeline.errors import UserError

CASES = int(os.environ.get("FEDBILEVEL_FUZZ", "300"))
SECONDS = 20
LINES = 6
LONG = 2000


def cases(share: float) -> Callable[[Any], Any]:
    """A decorator: this share of all cases, the same ones in every run of the suite, other ones in `make fuzz`."""
    return settings(
        max_examples=max(1, round(share * CASES)),
        deadline=None,
        derandomize="FEDBILEVEL_FUZZ" not in os.environ,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


def answer_to(read: Callable[[], Any]) -> Any:
    """What the reader returns; None where it answers with a mistake, in a few lines that can be printed. Anything else
    that is raised, and a reader that hangs, fails the test."""
    with _in_time():
        try:
            return read()
        except UserError as error:
            said = str(error)
    assert said.strip()
    assert len(said.splitlines()) <= LINES * 4, said
    assert max(map(len, said.splitlines())) <= LONG, said[:LONG]
    said.encode("utf-8")
    return None


@contextmanager
def _in_time() -> Iterator[None]:
    def late(*_: object) -> None:
        raise AssertionError(f"no answer within {SECONDS} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
