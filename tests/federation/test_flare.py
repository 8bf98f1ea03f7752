"""Over NVFlare: processes with certificates of their own that are really killed, and certificates that are refused."""

from __future__ import annotations

import json
import socket
import ssl
import time

import pytest

pytest.importorskip("nvflare", reason="needs pip install 'fedbilevel[federation]'")

from pipeline.federation.demo import HOSPITALS, start
from pipeline.federation.provisioning import provision
from tests.federation.participants import kill, provisioned, until

pytestmark = pytest.mark.slow
ROUNDS = 150


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Folders of a server and its sites, provisioned; the port; and certificates of another federation."""
    folder = tmp_path_factory.mktemp("federation")
    waiting = "min_sites: 4\ngather: 300\npatience: 300\nrest: 0.5"
    folders, port = provisioned(folder, ROUNDS, waiting, "checkpoint_every: 10")
    foreign = {"server": folder / "foreign server", "west": folder / "foreign west"}
    provision(foreign, "localhost", ["west"], port)
    return folders, port, foreign


def test_killed_and_back(place, started):
    """A site is killed, waited for and started again, then the server; the run ends as if nothing had been."""
    folders, _, _ = place
    server = folders["server"]
    started["server"] = start("server", server)
    started |= {site: start("site", folders[site]) for site in HOSPITALS}
    until(server, "round 25 of")
    kill(started["south"])
    until(server, "waiting: 3 sites of the 4 needed (min_sites); missing: south")
    started["south"] = start("site", folders["south"])
    until(server, "south takes part", count=2)
    kill(started["server"])
    started["server"] = start("server", server)
    until(server, "going on from the save of round")
    assert started["server"].wait(300) == 0, (server / "log.txt").read_text()[-3000:]
    metrics = json.loads((server / "results" / "metrics.json").read_text())
    assert metrics["test_accuracy"] > 0.7
    assert (server / "models" / "mlflow" / "MLmodel").is_file()
    lines = (server / "results" / "history.csv").read_text().splitlines()
    assert len(lines) == ROUNDS + 2
    assert "data.name" not in (server / "log.txt").read_text()  # what the tracker might say
    for site in HOSPITALS:
        started[site].terminate()
        assert started[site].wait(20) == 0
    own = {"data.csv", "site.yaml", "log.txt", "startup", "store", "rootCA.pem", "client.crt", "client.key"}
    for site in HOSPITALS:
        assert {path.name for path in folders[site].rglob("*")} == own
    there = {path.name for path in server.rglob("*")}
    assert there.isdisjoint({"data.csv", "site.yaml", "client.key"})
    tables = {site: (folders[site] / "data.csv").read_text().splitlines()[1:] for site in HOSPITALS}
    kept = b"".join(path.read_bytes() for path in server.rglob("*") if path.is_file()).decode(errors="ignore")
    assert not any(row in kept for rows in tables.values() for row in rows)


def test_a_foreign_certificate_is_refused(place, started):
    """By the server, whatever the client makes of the server's; and one's own certificate under another's name."""
    folders, port, foreign = place
    server = folders["server"]
    (server / "log.txt").unlink(missing_ok=True)
    started["server"] = start("server", server)
    until(server, "waiting")

    def shown(kit):
        """What the server answers to a client with that certificate that trusts any server."""
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if kit:
            context.load_cert_chain(kit / "client.crt", kit / "client.key")
        with socket.create_connection(("localhost", port), 10) as raw, context.wrap_socket(raw) as secure:
            secure.settimeout(1.0)
            secure.sendall(b"\0")
            try:
                return secure.recv(100)
            except TimeoutError:
                return None  # the server listens on

    assert shown(folders["west"] / "startup") is None
    for kit in (foreign["west"] / "startup", None):
        with pytest.raises((ssl.SSLError, ConnectionError)):
            shown(kit)

    impostor = folders["west"].with_name("impostor")
    impostor.mkdir()
    for name in ("site.yaml", "data.csv"):
        (impostor / name).write_text((folders["west"] / name).read_text().replace("name: west", "name: east"))
    (impostor / "startup").symlink_to(folders["west"] / "startup")
    started["impostor"] = start("site", impostor)
    until(impostor, "answering")
    time.sleep(5)
    assert "1 sites" not in (server / "log.txt").read_text()
    assert "east is" not in (server / "log.txt").read_text()
