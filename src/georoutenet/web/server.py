"""Uvicorn around the service: one process or several, that share the limits."""

from __future__ import annotations

import json
import logging
import os
import shutil
import socket
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from georoutenet.errors import InputError
from georoutenet.web.app import create_app
from georoutenet.web.limits import Limits
from georoutenet.web.slots import slots_folder

SETTINGS = "GEOROUTENET_SERVE"
"""The environment variable by which processes of one server learn their settings."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a server is run."""

    limits: Limits
    host: str = "127.0.0.1"
    port: int = 8000
    processes: int = 1
    origins: tuple[str, ...] = ()
    quiet: bool = False


def serve(settings: Settings, announce: Callable[[str], None]) -> None:
    """Answer requests until told to stop; then the searches end and their clients get the best tours."""
    folder = slots_folder()
    limits = settings.limits
    os.environ[SETTINGS] = json.dumps(
        {
            "limits": asdict(limits),
            "folder": str(folder),
            "origins": settings.origins,
            "quiet": settings.quiet,
        }
    )
    config = uvicorn.Config(
        "georoutenet.web.server:application",
        factory=True,
        host=settings.host,
        port=settings.port,
        workers=settings.processes,
        loop="asyncio",
        http="h11",
        ws="none",
        access_log=False,
        log_level="warning",
        server_header=False,
        limit_concurrency=limits.connections,
        timeout_keep_alive=5,
        timeout_graceful_shutdown=int(limits.seconds) + 5,
        h11_max_incomplete_event_size=16_384,
    )
    try:
        with _bound(settings.host, settings.port) as listener:
            announce(_address(listener))
            if settings.processes == 1:
                uvicorn.Server(config).run(sockets=[listener])
            else:
                from uvicorn.supervisors import Multiprocess

                Multiprocess(config, [listener]).run()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


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
    """The service in one of the server's processes."""
    given = json.loads(os.environ[SETTINGS])
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level="WARNING")
    logging.getLogger("georoutenet.web").setLevel("WARNING" if given["quiet"] else "INFO")
    return create_app(
        Limits(**given["limits"]), folder=Path(given["folder"]), origins=tuple(given["origins"])
    )
