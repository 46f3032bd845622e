"""The command ``georoutenet``. This module imports next to nothing, so that Ctrl-C finds it ready at once;
``georoutenet.cli.commands`` holds the command line itself."""

from __future__ import annotations

import os
import signal
import sys

TYPE_CHECKING = False  # see the package's first lines
if TYPE_CHECKING:
    from typing import Any

    from georoutenet.cli.commands import app as app


def __getattr__(name: str) -> Any:
    if name == "app":
        from georoutenet.cli.commands import app

        return app
    raise AttributeError(f"module 'georoutenet.cli' has no attribute {name!r}")


def main() -> None:
    """Run the command line; Ctrl-C ends it with status 130 at any time."""
    # An exception that breaks into an import may be lost or turned into another one. Until a subcommand
    # calls begin() nothing is open or half-written, so the process can end on the spot.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _stop)
    from georoutenet.cli.commands import run

    try:
        run()
    except KeyboardInterrupt:
        _stop()


def begin() -> None:
    """From here on Ctrl-C is an exception, and whoever has something to finish does so."""
    if signal.getsignal(signal.SIGINT) is _stop:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _stop(*_: object) -> None:
    from contextlib import suppress

    # Not by sys.exit: Python would kill itself where the signal had come in the midst of an eval.
    with suppress(OSError, ValueError):
        sys.stdout.flush()
        if os.isatty(2):
            os.write(2, b"\r\x1b[2K\x1b[?25h")  # a spinner may have hidden the cursor
        os.write(2, b"stopped\n")
    os._exit(130)
