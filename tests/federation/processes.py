"""Sites in processes of their own, behind a socket of this machine: bytes only, nothing pickled."""

from __future__ import annotations

import multiprocessing
import socket
from collections.abc import Callable

from pipeline.federation.hub import Contents


def receive(connection: socket.socket) -> bytes:
    def exactly(count: int) -> bytes:
        parts = []
        while count:
            part = connection.recv(count)
            if not part:
                raise EOFError
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    return exactly(int.from_bytes(exactly(8), "little"))


def send(connection: socket.socket, content: bytes) -> None:
    connection.sendall(len(content).to_bytes(8, "little") + content)


def _serve(connection: socket.socket, make: Callable[[], Callable[[bytes], bytes]]) -> None:
    answer = make()
    try:
        while True:
            send(connection, answer(receive(connection)))
    except (EOFError, OSError):
        pass


class Processes:
    """A transport. makers: site -> what makes its answering, in the process."""

    def __init__(self, makers: dict[str, Callable[[], Callable[[bytes], bytes]]]) -> None:
        context = multiprocessing.get_context("fork")
        self.ends, self.running = {}, []
        for site, make in makers.items():
            here, there = socket.socketpair()
            process = context.Process(target=_serve, args=(there, make), daemon=True)
            process.start()
            there.close()
            self.ends[site] = here
            self.running.append(process)

    def present(self) -> set[str]:
        return set(self.ends)

    def ask(self, questions: Contents, timeout: float) -> tuple[Contents, dict[str, str]]:
        for site, content in questions.items():
            send(self.ends[site], content)
        return {site: receive(self.ends[site]) for site in questions}, {}

    def close(self) -> None:
        for end in self.ends.values():
            end.close()
        for process in self.running:
            process.kill()
            process.join()
