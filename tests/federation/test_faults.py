"""Over NVFlare, what goes wrong at sites that are processes of their own; the numbers are the simulator's all the
same, with these sites' clients absent from these rounds."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

pytest.importorskip("nvflare", reason="needs pip install 'fedbilevel[federation]'")

from pipeline.federation.demo import HOSPITALS, start
from pipeline.params.reading import load_params
from tests.federation.helpers import history, simulated, trained
from tests.federation.participants import kill, log, provisioned, until
from tests.federation.test_own_samples import simulated_history
from tests.federation.wrong_answers import NOT_FINITE, TOO_SHORT

pytestmark = pytest.mark.slow
SITES = list(HOSPITALS)
NEEDED = 2
READER = "reader: tests.federation.wrong_answers."


def absences(said):
    """Round -> clients that were absent from it, by what the server says."""
    there, lost, found = set(), set(), {}
    for line in said.splitlines():
        site, _, what = line.removeprefix("federation: ").partition(" ")
        if what == "takes part":
            there.add(site)
        if what == "is gone" or what.startswith("is left out"):
            there.discard(site)
            lost |= {site} if what != "is gone" else set()
        if site == "going":  # on from a save: sites are welcomed anew
            there, lost = set(), set()
        if site == "round":
            if len(there - lost) < NEEDED:  # the step was taken with all that are back
                lost = set()
            found[int(what.split()[0])] = frozenset(
                number for number, name in enumerate(SITES) if name not in there - lost
            )
            lost = set()
    return found


def test_absent_wrong_hung_and_too_few(tmp_path, started):
    """West comes late. East sends a NaN, then rows that are too short. South hangs for longer than the time-out. West
    and east are killed, which makes south wanted; then south is, and the server waits, and ends. With all of them back
    it goes on."""
    settings = f"min_sites: {NEEDED}\ngather: 1\npatience: 10\ntimeout: 1\nrest: 0"
    folders, _ = provisioned(tmp_path, 300, settings, "precision: 64-true, checkpoint_every: 1, eval_every: 1")
    server, east = folders["server"], folders["east"] / "site.yaml"
    usual = east.read_text()
    east.write_text(usual.replace("data: {", f"data: {{{READER}table, "))
    for site in ("north", "south", "east"):
        started[site] = start("site", folders[site])
    started["server"] = start("server", server)
    until(server, "round 1 of")
    started["west"] = start("site", folders["west"])
    until(server, "west takes part")
    until(server, f"round {TOO_SHORT} of")
    assert f"round {NOT_FINITE}" in log(server)

    started["south"].send_signal(signal.SIGSTOP)
    until(server, "south is left out: no answer within 1 s; asked again in")
    started["south"].send_signal(signal.SIGCONT)
    kill(started["west"])
    until(server, "west is")
    kill(started["east"])
    until(server, "south takes part", count=2)
    kill(started["south"])
    assert started["server"].wait(60) == 1, log(server)[-3000:]
    said = log(server)
    assert "waiting: 1 sites of the 2 needed (min_sites); missing: south, east, west" in said
    assert "error: 1 of 4 sites are there, and min_sites is 2" in said.splitlines()[-1]
    assert "Traceback" not in said

    east.write_text(usual)
    for site in ("south", "east", "west"):
        started[site] = start("site", folders[site])
    for site in ("south", "east", "west"):
        until(folders[site], "answering", count=1 if site == "west" else 2)
    started["server"] = start("server", server)
    assert started["server"].wait(120) == 0, log(server)[-3000:]
    said = log(server)
    for words in ("its 0.0 is not finite", "its 0.0 has shape [1, 13], not [1, 14]"):
        assert said.count(f"east is left out: {words}") == 1
    metrics = json.loads((server / "results" / "metrics.json").read_text())
    assert metrics["clients_left_out"] == "east (2)"
    assert [int(row["round"]) for row in history(tmp_path)] == list(range(301))
    away = absences(said)
    assert away[NOT_FINITE] >= {2}
    assert away[TOO_SHORT] >= {2}
    assert away[1] == {3}
    assert away[300] == set()
    expected = simulated(tmp_path, load_params(server / "params.yaml"), away.__getitem__)[-1]
    for name, value in trained(tmp_path).items():
        torch.testing.assert_close(value, expected[name], rtol=1e-8, atol=1e-8)


def test_heads_outlive_their_site_and_the_server(tmp_path, started):
    """South is killed in a step, the server at any moment, and each is started again; the figures, which are of each
    site's own head, are the simulator's."""
    train = "precision: 64-true, checkpoint_every: 1, eval_every: 5"
    settings = "min_sites: 4\ngather: 300\npatience: 300\nrest: 0"
    model = "{name: mlp, options: {hidden: [5]}}"
    folders, _ = provisioned(tmp_path, 40, settings, train, algorithm="fedbio_local", model=model)
    server = folders["server"]
    for site in SITES:
        shutil.copyfile(server / "test.csv", folders[site] / "test.csv")
        place = folders[site] / "site.yaml"
        more = f"test: test.csv, {READER}dying, " if site == "south" else "test: test.csv, "
        place.write_text(place.read_text().replace("data: {", "data: {" + more))
        started[site] = start("site", folders[site])
    started["server"] = start("server", server)
    assert started["south"].wait(100) == -signal.SIGKILL, log(server)[-3000:]
    started["south"] = start("site", folders["south"])
    until(server, "south takes part", count=2)
    until(server, "round 20 of")
    kill(started["server"])
    started["server"] = start("server", server)
    assert started["server"].wait(120) == 0, log(server)[-3000:]
    assert "going on from the save of round" in log(server)
    assert "what its clients kept" not in log(server)
    expected, variables = simulated_history(tmp_path, load_params(server / "params.yaml"))
    rows = history(tmp_path)
    assert len(expected) == 9
    for round_, figures in expected.items():
        for name, value in figures.items():
            assert float(rows[round_][name]) == pytest.approx(value, rel=1e-6, abs=1e-6), (round_, name)
    for name, value in trained(tmp_path).items():
        torch.testing.assert_close(value, variables[name], rtol=1e-8, atol=1e-8)
    assert not any("Y" in name for name in trained(tmp_path))
    for site in SITES:
        assert len(list((folders[site] / "store").glob("*.rows"))) == 2


def test_a_demo_that_is_stopped_stops_what_it_started(tmp_path):
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "pipeline.federation.demo"]
    demo = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    assert demo.stdout
    assert "provisioned a server and 4 hospitals" in demo.stdout.readline()
    while len(running(tmp_path)) < 5:
        time.sleep(0.05)
    demo.terminate()
    demo.communicate(timeout=60)
    assert demo.returncode == 143
    assert not running(tmp_path)
    assert not list(tmp_path.iterdir())


def running(folder):
    """Processes whose command names something in that folder."""
    found = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if str(folder) in place.read_text():
                found.append(place.parent.name)
    return found
