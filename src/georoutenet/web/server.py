"""Uvicorn around the service: one process or several, that share the limits."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from georoutenet.errors import InputError
from georoutenet.io.locks import lock
from georoutenet.web.app import Service, create_app
from georoutenet.web.limits import Limits

SETTINGS = "GEOROUTENET_SERVE"
"""The environment variable by which the processes of one server learn their settings."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a server is run."""

    limits: Limits
    host: str = "127.0.0.1"
    port: int = 8000
    processes: int = 1
    origins: tuple[str, ...] = ()
    quiet: bool = False
    warm: bool = True
    """Load the network when the server starts."""


def serve(settings: Settings, announce: Callable[[str], None]) -> None:
    """Answer requests until told to stop; then the searches end and their clients get the best tours."""
    config = uvicorn.Config(
        "georoutenet.web.server:application",
        factory=True,
        workers=settings.processes,
        loop="asyncio",
        http=Patience,
        ws="none",
        access_log=False,
        log_level="error",
        server_header=False,
        limit_concurrency=settings.limits.connections,
        timeout_keep_alive=5,
        timeout_graceful_shutdown=5,
        h11_max_incomplete_event_size=16 << 10,
    )
    with _bound(settings.host, settings.port) as listener, _locks(settings.processes) as folder:
        os.environ[SETTINGS] = json.dumps({"folder": folder, **asdict(settings)})
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # when uvicorn has ended
        announce(_address(listener))
        if settings.processes == 1:
            uvicorn.Server(config).run(sockets=[listener])
        else:
            from uvicorn.supervisors import Multiprocess

            os.environ["PYTHONSAFEPATH"] = "1"  # processes take no modules from the current folder
            Multiprocess(config, [listener]).run()


@contextmanager
def _locks(processes: int) -> Iterator[str | None]:
    """A folder for the locks of several processes, which only this user can open."""
    if processes == 1:
        yield None
        return
    with TemporaryDirectory(prefix="georoutenet-serve-", ignore_cleanup_errors=True) as folder:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            if lock(descriptor, wait=False) is None:
                raise InputError(
                    "several processes share their limits by locks, which this system does not have"
                )
        finally:
            os.close(descriptor)
        yield folder


class Patience(H11Protocol):
    """HTTP with an end to it: of the head of a request, and of the whole.

    A client that sends its head byte by byte, or never reads its answer, would keep its connection for ever.
    """

    limits: Limits
    """Of the process, set before it listens."""
    _end: asyncio.TimerHandle | None = None
    _working = False

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._allow(self.limits.body_seconds)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._allow(None)

    def _look(self) -> None:
        """Begin to count anew when a request has begun or ended."""
        working = self.cycle is not None and not self.cycle.response_complete
        if working != self._working:
            self._working = working
            self._allow(self.limits.longest if working else self.limits.body_seconds)

    def _allow(self, seconds: float | None) -> None:
        if self._end is not None:
            self._end.cancel()
        self._end = None if seconds is None else self.loop.call_later(seconds, self.transport.abort)


def _bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(512)
    except OSError as error:
        listener.close()
        raise InputError(f"cannot listen on {host} port {port}: {error.strerror or error}") from None
    listener.set_inheritable(True)
    return listener


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def application() -> ASGIApp:
    """The service in one of the server's processes; uvicorn calls this when it has taken the signals."""
    given = json.loads(os.environ[SETTINGS])
    gc.set_threshold(700, 10, 10)  # the command line makes it look seldom, and a server lives long
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level="WARNING")
    logging.getLogger("georoutenet.web").setLevel("WARNING" if given["quiet"] else "INFO")
    folder = None if given["folder"] is None else Path(given["folder"])
    service = Service(Limits(**given["limits"]), folder)
    Patience.limits = service.limits
    for number in (signal.SIGINT, signal.SIGTERM):
        _before(number, service.searches.close)
    return create_app(service, origins=tuple(given["origins"]), warm=given["warm"])


def _before(number: signal.Signals, act: Callable[[], None]) -> None:
    """When the signal comes, act, then do what was done before."""
    usual = signal.getsignal(number)

    def handle(received: int, frame: Any) -> None:
        act()
        if callable(usual):
            usual(received, frame)

    signal.signal(number, handle)
