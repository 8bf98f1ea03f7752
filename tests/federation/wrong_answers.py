"""Readers that change the site that runs them: `table` makes it slow and wrong now and then, `dying` kills it once."""

from __future__ import annotations

import os
import signal
import time

from pipeline.federation.messages import Message, decode, encode
from pipeline.federation.readers import csv_file
from pipeline.federation.site import Site

NOT_FINITE, TOO_SHORT = 20, 40
"""Questions, by number, to which the answer is not a number, and of the wrong shape."""
SECONDS = 0.05
LAST = 12
"""The step in which `dying` kills itself."""


def table(path, label):
    answer, asked = Site.answer, [0]

    def wrong(site, content):
        found = decode(answer(site, content))
        if found.kind != "answers":
            return encode(found)
        time.sleep(SECONDS)
        asked[0] += 1
        tensors = found.tensors
        if asked[0] == NOT_FINITE:
            tensors = {name: value * float("nan") for name, value in tensors.items()}
        if asked[0] == TOO_SHORT:
            tensors = {name: value[..., :-1] for name, value in tensors.items()}
        return encode(Message(found.kind, found.facts, tensors))

    Site.answer = wrong
    return csv_file(path, label)


def dying(path, label):
    answer, asked = Site.answer, [0]
    died = path.with_name("died")

    def once(site, content):
        asked[0] += decode(content).kind == "step"
        if asked[0] == LAST and not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return answer(site, content)

    Site.answer = once
    return csv_file(path, label)
