"""What stands before every request: bounds on bodies, headers for browsers, the log, and no traceback."""

from __future__ import annotations

import asyncio
import logging
import time
import traceback
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from georoutenet.web.limits import Limits
from georoutenet.web.problems import FAILED, Problem

LOG = logging.getLogger("georoutenet.web")
BODIES = 16
"""Bodies of full size that may be held at a time."""

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
_ENCODED = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]


class Guard:
    """Reads the body of a request, in bounds of bytes and seconds, before the application sees it."""

    def __init__(self, app: ASGIApp, limits: Limits) -> None:
        self._app, self._limits = app, limits
        self._held = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status = time.monotonic(), 0

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": [*message.get("headers", ()), *_own(scope, message)]}
            await send(message)

        body = bytearray()
        try:
            try:
                await self._read(scope, receive, body)
                await self._app(scope, _replay(bytes(body), receive), answer)
            except Problem as problem:
                if not status:
                    await problem.response()(scope, receive, answer)
            except Exception as error:
                LOG.error("%s", _places(error))
                if not status:
                    await FAILED.response()(scope, receive, answer)
        finally:
            self._held -= len(body)
            took = 1000 * (time.monotonic() - began)
            LOG.info("%s %s %d %d B %.0f ms", scope["method"], _path(scope), status, len(body), took)

    async def _read(self, scope: Scope, receive: Receive, body: bytearray) -> None:
        most = self._limits.body_bytes
        for name, value in scope["headers"]:
            if name == b"content-length" and value.isdigit() and int(value[:20]) > most:
                raise Problem(413, f"a body of {int(value[:20]):,} bytes; this server allows {most:,}")
        try:
            async with asyncio.timeout(self._limits.body_seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise Problem(400, "the request ended before its body did")
                    part = message.get("body", b"")
                    if len(body) + len(part) > most:
                        raise Problem(413, f"a body of more than {most:,} bytes, which this server allows")
                    if self._held + len(part) > BODIES * most:
                        raise Problem(503, "the server holds too many bodies; try again soon")
                    self._held += len(part)
                    body += part
                    if not message.get("more_body", False):
                        return
        except TimeoutError:
            seconds = self._limits.body_seconds
            raise Problem(408, f"the body did not come within {seconds:g} seconds") from None


def _replay(body: bytes, receive: Receive) -> Receive:
    """The body in one piece, then what comes later: that the client has left."""
    given = False

    async def replay() -> Message:
        nonlocal given
        if not given:
            given = True
            return {"type": "http.request", "body": body, "more_body": False}
        return await receive()

    return replay


def _own(scope: Scope, message: Message) -> list[tuple[bytes, bytes]]:
    """Headers to add; an answer that must not be cached says so."""
    caching = [] if scope["path"].startswith("/static/") else [(b"cache-control", b"no-store")]
    closing = [(b"connection", b"close")] if message["status"] in (408, 413) else []
    return [*_ENCODED, *caching, *closing]


def _path(scope: Scope) -> str:
    """The path without what is asked of it, in printable characters."""
    return ascii(scope["path"][:100])[1:-1]


def _places(error: BaseException) -> str:
    """Where an error came from. Not what it says: that may hold coordinates."""
    frames: Any = traceback.extract_tb(error.__traceback__)
    where = " < ".join(
        f"{frame.filename.rpartition('/')[2]}:{frame.lineno}" for frame in reversed(frames[-6:])
    )
    return f"{type(error).__name__} at {where}"
