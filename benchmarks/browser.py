"""A playground and a Chromium to look at it with; for tests and measurements."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from research.serving import serving

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
    with serving(*options) as server:
        yield f"http://{server.host}:{server.port}/"


@contextmanager
def chromium() -> Iterator[Browser]:
    """A Chromium without a window, driven by Playwright."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()
