"""Who is asked again, and when."""

from __future__ import annotations

import time

import pytest

from pipeline.federation.hub import LONGER, Hub, SitesLost
from pipeline.federation.messages import Message, encode

TIMEOUT = 6.0
ASKED = Message("ask")


class Hanging:
    """Both sites are connected; west takes the question and never answers."""

    def present(self):
        return {"east", "west"}

    def ask(self, questions, timeout):
        if "west" in questions:
            time.sleep(timeout)
        answers = {"east": encode(Message("answers"))} if "east" in questions else {}
        return answers, {site: "no answer" for site in questions if site == "west"}


def test_a_site_that_hangs_costs_a_tenth_of_the_time(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    said = []
    hub = Hub(Hanging(), {"east": [0], "west": [1]}, timeout=TIMEOUT, rest=0.0, note=said.append)
    assert hub.gather() == frozenset()
    with pytest.raises(SitesLost):
        hub.ask({"east": ASKED, "west": ASKED}, {})
    assert hub.gather() == {1}
    now[0] += (LONGER - 0.1) * TIMEOUT
    assert hub.gather() == {1}
    now[0] += 0.2 * TIMEOUT
    assert hub.gather() == frozenset()
    assert said == [f"west is left out: no answer; asked again in {LONGER * TIMEOUT:.0f} s"]

    with pytest.raises(SitesLost):
        hub.ask({"west": ASKED}, {})
    hub.needed = 2  # it is missed
    assert hub.gather() == frozenset()
