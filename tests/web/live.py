"""A server in a thread, and requests byte by byte."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from georoutenet.web.app import Service, create_app
from georoutenet.web.limits import Limits
from georoutenet.web.server import Patience

LONG = 600.0
"""Seconds of a search that somebody has to end."""
GIVE_UP = 240.0
"""Seconds after which a test that waits for something has failed."""


class Live:
    """A server on a port of its own."""

    def __init__(self, limits: Limits, app: Any = None) -> None:
        self.service = Service(limits)
        own = type("Own", (Patience,), {"limits": limits})
        config = uvicorn.Config(
            app or create_app(self.service, warm=False),
            http=own,
            ws="none",
            log_level="critical",
            lifespan="off",
        )
        self._server = uvicorn.Server(config)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._server.run, args=([self._listener],))
        self._thread.start()

    def end(self) -> None:
        self.service.searches.close()
        self._server.should_exit = True
        self._thread.join()

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=GIVE_UP)

    def post(self, path: str, content: Any, **headers: str) -> socket.socket:
        """A connection on which a request was sent."""
        connection = self.connect()
        connection.sendall(request(path, json.dumps(content).encode(), **headers))
        return connection

    def ask(self, path: str, content: Any) -> tuple[int, dict[str, str], bytes]:
        with self.post(path, content) as connection:
            return answer(connection)


@contextmanager
def live(limits: Limits, app: Any = None) -> Iterator[Live]:
    server = Live(limits, app)
    try:
        yield server
    finally:
        server.end()


def request(path: str, body: bytes, **headers: str) -> bytes:
    fields = {"Host": "test", "Content-Type": "application/json", "Content-Length": str(len(body))} | headers
    fields["Connection"] = "close"
    return head(path, fields) + body


def head(path: str, fields: dict[str, str], method: str = "POST") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items()), "", ""]
    return "\r\n".join(lines).encode()


def everything(connection: socket.socket) -> bytes:
    """What comes until the other side closes."""
    parts = []
    while True:
        try:
            part = connection.recv(65536)
        except ConnectionResetError:
            part = b""
        if not part:
            return b"".join(parts)
        parts.append(part)


def answer(connection: socket.socket) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body, which is not taken out of its chunks."""
    start, _, body = everything(connection).partition(b"\r\n\r\n")
    first, *lines = start.decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    return int(first.split()[1]), headers, body


def until(happened: Callable[[], bool], seconds: float = GIVE_UP) -> None:
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


def cities(n: int, **options: Any) -> dict[str, Any]:
    """A request whose cities have no tour that can be proven shortest soon."""
    from georoutenet.problem.generate import uniform

    return {"coordinates": uniform(1, n, 1)[0].tolist(), **options}
