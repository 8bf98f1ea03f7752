"""The network: NVFlare's cells, with the certificates that NVFlare provisions.

A cell is NVFlare's end of a connection. Sites connect to the server, which listens at one port; both show their
certificates, and a cell whose name is not that of its certificate is refused. A site reconnects by itself, also after
the server was started anew. Messages are bytes, streamed if they are long; NVFlare's own serialisation is not used.

NVFlare's jobs are not used either: a job's process that dies on one site cannot come back to it, and an exchange takes
0.1 to 0.2 s there, a hundredth of a second here.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from pipeline.errors import UserError
from pipeline.federation.hub import Contents
from pipeline.federation.settings import Engine

CHANNEL, TOPIC = "fedbilevel", "question"
LOOK = 0.5
"""Seconds between looks at who is still connected."""


def _cell(name: str, engine: Engine, folder: Path, side: str) -> Any:
    try:
        from nvflare.fuel.f3.cellnet.cell import Cell
    except ImportError:
        raise UserError("a federation needs NVFlare. Fix: pip install 'fedbilevel[federation]'.") from None
    logging.getLogger("nvflare").setLevel(logging.CRITICAL)  # what it would say of sites that come and go, we say
    kit = folder / engine.kit
    files = {"ca_cert": "rootCA.pem", f"{side}_cert": f"{side}.crt", f"{side}_key": f"{side}.key"}
    for file in files.values():
        if not (kit / file).is_file():
            raise UserError(
                f"{kit / file} does not exist. Fix: put this participant's start-up kit there (engine.kit)."
            )
    return Cell(
        fqcn=name,
        root_url=f"{engine.scheme}://{engine.host}:{engine.port}",
        secure=True,
        credentials={key: str(kit / file) for key, file in files.items()},
        auth_identity_map={"server": engine.host},
    )


class FlareServer:
    """The transport at the server."""

    def __init__(self, engine: Engine, folder: Path) -> None:
        self._cell = _cell("server", engine, folder, "server")
        self._cell.start()
        self._pool = ThreadPoolExecutor(max_workers=64, thread_name_prefix="sites")

    def present(self) -> set[str]:
        return set(self._cell.core_cell.agents)

    def ask(self, questions: Contents, timeout: float) -> tuple[Contents, dict[str, str]]:
        from nvflare.fuel.f3.cellnet.defs import ReturnCode

        started = {site: self._pool.submit(self._ask, site, content, timeout) for site, content in questions.items()}
        deadline, waiting = time.monotonic() + timeout + 1.0, dict(started)
        while waiting and time.monotonic() < deadline:
            wait(waiting.values(), timeout=LOOK, return_when=FIRST_COMPLETED)
            there = self.present()
            waiting = {site: future for site, future in waiting.items() if not future.done() and site in there}
        answers: Contents = {}
        missing: dict[str, str] = {}
        for site, future in started.items():
            if not future.done() and site not in waiting:
                missing[site] = "the connection was lost"
                continue
            code, payload = self._outcome(future)
            if code == ReturnCode.OK and payload is not None:
                answers[site] = bytes(payload)
            elif code == ReturnCode.TIMEOUT:
                missing[site] = f"no answer within {timeout:g} s"
            else:
                missing[site] = f"it cannot be reached ({code})"
        return answers, missing

    def _ask(self, site: str, content: bytes, timeout: float) -> Any:
        from nvflare.fuel.f3.cellnet.utils import new_cell_message

        message = new_cell_message({}, content)
        return self._cell.send_request(
            channel=CHANNEL, topic=TOPIC, target=site, request=message, timeout=timeout, optional=True
        )

    @staticmethod
    def _outcome(future: Future[Any]) -> tuple[str, Any]:
        from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, ReturnCode

        if not future.done():
            return ReturnCode.TIMEOUT, None
        if future.exception():
            return str(future.exception()), None
        reply = future.result()
        return reply.get_header(MessageHeaderKey.RETURN_CODE, ReturnCode.OK), reply.payload

    def close(self) -> None:
        self._cell.stop()
        self._pool.shutdown(wait=False, cancel_futures=True)


def serve(name: str, engine: Engine, folder: Path, answer: Callable[[bytes], bytes], stop: threading.Event) -> None:
    """A site: answers, one question at a time, until it is stopped. Raises UserError when the server refuses it."""
    from nvflare.fuel.f3.cellnet.defs import ReturnCode
    from nvflare.fuel.f3.cellnet.utils import make_reply

    one_at_a_time = threading.Lock()

    def reply(request: Any) -> Any:
        with one_at_a_time:
            return make_reply(ReturnCode.OK, body=answer(bytes(request.payload)))

    cell = _cell(name, engine, folder, "client")
    cell.register_request_cb(channel=CHANNEL, topic=TOPIC, cb=reply)
    cell.start()
    try:
        while not stop.wait(0.5):
            pass
    finally:
        cell.stop()
        time.sleep(0.1)
