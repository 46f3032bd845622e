"""``georoutenet serve``: the playground in a browser, and its HTTP service."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from georoutenet.cli.screen import say
from georoutenet.errors import MissingDependencyError, whole


def register(app: typer.Typer) -> None:
    app.command("serve")(serve)


def serve(
    host: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0 is every one of this machine.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.")] = 8000,
    processes: Annotated[int, typer.Option(help="Processes; all limits hold for them together.")] = 1,
    searches: Annotated[int, typer.Option(help="Searches at a time; 0: one per core.")] = 0,
    queue: Annotated[int, typer.Option(help="Requests that wait; others get status 429.")] = 4,
    max_cities: Annotated[int, typer.Option(help="Cities of an instance at most.")] = 5_000,
    max_seconds: Annotated[float, typer.Option(help="Seconds of a search at most.")] = 10.0,
    max_bytes: Annotated[int, typer.Option(help="Bytes of a request's body at most.")] = 2 << 20,
    allow_origin: Annotated[
        list[str] | None,
        typer.Option(help="A page of another host that may use the service, as https://host."),
    ] = None,
    warm_up: Annotated[
        bool,
        typer.Option("--warm-up/--no-warm-up", help="Load the network at the start, not when first asked."),
    ] = True,
    quiet: Annotated[bool, typer.Option("--quiet", help="Log errors only, not each request.")] = False,
) -> None:
    """Serve the playground: a page on which to place cities and watch the solver, and an HTTP service."""
    try:
        from georoutenet.web.server import Settings, serve
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in ("fastapi", "starlette", "uvicorn"):
            raise
        raise MissingDependencyError("serve needs FastAPI and Uvicorn: pip install fastapi uvicorn") from None
    from georoutenet.web.limits import Limits

    limits = Limits(
        cities=max_cities, seconds=max_seconds, body_bytes=max_bytes, searches=searches, queue=queue
    )
    settings = Settings(
        limits=limits,
        host=host,
        port=whole("port", port, least=0, most=65_535),
        processes=whole("processes", processes),
        origins=tuple(allow_origin or ()),
        quiet=quiet,
        warm=warm_up,
    )

    def announce(address: str) -> None:
        say(f"the playground is at {address} (Ctrl-C ends it)", err=True)
        if host in ("127.0.0.1", "::1", "localhost"):
            say("only this machine reaches it; --host 0.0.0.0 lets others in", err=True)

    status = 0
    try:
        serve(settings, announce)  # comes back where a shell had Ctrl-C ignored, as in a script's background
    except SystemExit as end:  # by SIGTERM
        status = end.code if isinstance(end.code, int) else 1
    sys.stderr.flush()
    os._exit(status)  # a thread that still loads would break an orderly end
