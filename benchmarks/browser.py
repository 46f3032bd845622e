"""A playground and a Chromium to look at it with; for tests and measurements."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Browser

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # As with the cable pulled: no name leads anywhere, and no address but this machine's.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
]


@contextmanager
def playground(*options: str) -> Iterator[str]:
    """``georoutenet serve`` on a free port; gives its address."""
    command = [sys.executable, "-m", "georoutenet", "serve", "--port", "0", "--quiet", *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        try:
            said = server.stderr.readline()
            found = re.search(r"http://[\d.]+:\d+", said)
            if found is None:
                raise RuntimeError(f"no address in {said!r}{server.stderr.read()}")
            yield found.group() + "/"
        finally:
            server.send_signal(signal.SIGINT)


@contextmanager
def chromium() -> Iterator[Browser]:
    """A Chromium without a window, driven by Playwright."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()
