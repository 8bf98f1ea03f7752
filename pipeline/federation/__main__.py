"""`python -m pipeline.federation server|site FOLDER`: a participant of a federation (docs/federation.md)."""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path

from pipeline.command import answering

USAGE = "usage: python -m pipeline.federation server|site FOLDER"


def server(folder: Path) -> None:
    from pipeline.federation.flare import FlareServer
    from pipeline.federation.server import params_in, run
    from pipeline.federation.settings import Server, read

    settings, params = read(Server, folder / "federation.yaml"), params_in(folder)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    transport = FlareServer(settings.engine, folder)
    try:
        print(f"\n{run(settings, params, folder, transport)}")
    finally:
        transport.close()


def site(folder: Path) -> None:
    from pipeline.federation.flare import serve
    from pipeline.federation.hospital import site_of, warm_up
    from pipeline.federation.settings import SiteSettings, read

    settings = read(SiteSettings, folder / "site.yaml")
    ready, stop = site_of(settings, folder), threading.Event()
    warm_up()
    for kind in (signal.SIGTERM, signal.SIGINT):
        signal.signal(kind, lambda *_: stop.set())
    print(f"{settings.name}: answering", file=sys.stderr, flush=True)
    serve(settings.name, settings.engine, folder, ready.answer, stop)


def main() -> None:
    roles = {"server": server, "site": site}
    if len(sys.argv) < 3 or sys.argv[1] not in roles:
        sys.exit(USAGE)
    answering(lambda: roles[sys.argv[1]](Path(sys.argv[2]).resolve()))


if __name__ == "__main__":
    main()
