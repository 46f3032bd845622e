"""The command ``georoutenet``. This module imports next to nothing, so that Ctrl-C finds it ready at once;
``georoutenet.cli.commands`` holds the command line itself."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from georoutenet.cli.commands import app as app


def __getattr__(name: str) -> Any:
    if name == "app":
        from georoutenet.cli.commands import app

        return app
    raise AttributeError(f"module 'georoutenet.cli' has no attribute {name!r}")


def main() -> None:
    """Run the command line; Ctrl-C ends it with status 130 at any time."""
    # An exception that breaks into an import may be lost or turned into another one. Nothing is open or
    # half-written yet, so the process can end on the spot.
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)
    from georoutenet.cli.commands import run

    try:
        signal.signal(signal.SIGINT, before)
        run()
    except KeyboardInterrupt:
        _end()


def _end(*_: object) -> None:
    os.write(2, b"stopped\n")
    os._exit(130)
