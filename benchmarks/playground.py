"""The playground's page in Chromium: first picture, frames while dragging and panning, tours of a stream.

    python benchmarks/playground.py

Needs the extras ``web`` and ``browser`` and a Chromium on the PATH, which runs without a window and without a
GPU. Prints its rows and appends them to benchmarks/results/playground.csv. Frames are counted by
``requestAnimationFrame``, which comes at most 60 times a second.
"""

from __future__ import annotations

import statistics
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.browser import chromium, playground
from benchmarks.rows import append

COLUMNS = ("task", "cities", "value", "unit", "wanted")
SIZE = {"width": 1440, "height": 900}
PICTURE = "Boolean(window.playground?.panes[0].key[0]?.n)"
"""Whether cities have been painted."""
WATCH = """() => {
    window.frames_seen = [];
    const tick = (now) => { window.frames_seen.push(now); window.watching = requestAnimationFrame(tick); };
    requestAnimationFrame(tick);
}"""
UNWATCH = "() => { cancelAnimationFrame(window.watching); return window.frames_seen; }"
DRAWN = """() => {
    const pane = window.playground.panes[0];
    window.drawn = 0;
    pane.draw = (...given) => { window.drawn += 1; Object.getPrototypeOf(pane).draw.apply(pane, given); };
}"""

Row = tuple[str, int, str, str, str]


def until(page: Any, expression: str) -> float:
    """The time when it holds, looked at every few milliseconds."""
    while not page.evaluate(expression):
        time.sleep(0.002)
    return time.perf_counter()


def first_picture(browser: Any) -> list[Row]:
    """From the server's address, and from its first answer, to painted cities; a new server each time."""
    taken = []
    for _ in range(5):
        page = browser.new_page(viewport=SIZE)
        with playground() as address:
            said = time.perf_counter()
            with urllib.request.urlopen(f"{address}healthz"):
                ready = time.perf_counter()
            page.goto(address, wait_until="commit")
            painted = until(page, PICTURE)
            taken.append((painted - said, painted - ready))
            page.close()
    since = ("the address is printed", ""), ("the server's first answer", "< 1")
    return [
        (f"first picture after {what} (median of 5)", 48, f"{statistics.median(each):.3f}", "s", wanted)
        for (what, wanted), each in zip(since, zip(*taken, strict=True), strict=True)
    ]


def first_tour(page: Any, method: str) -> Row:
    """From the click on Solve to the first tour on the page, at 200 cities, everything loaded."""
    page.select_option("#example", "uniform-200")
    page.select_option("#method-a [data-part=first]", method)
    page.fill("#seconds", "1")
    taken = []
    for _ in range(7):
        page.wait_for_timeout(1500)
        page.evaluate(
            """() => {
                const { panes } = window.playground;
                const began = performance.now();
                window.first_tour = null;
                document.getElementById("solve").click();
                const look = () => {
                    if (panes[0].run?.frames.length) window.first_tour = performance.now() - began;
                    else requestAnimationFrame(look);
                };
                look();
            }"""
        )
        until(page, "window.first_tour !== null")
        taken.append(page.evaluate("window.first_tour") / 1000)
    middle = statistics.median(taken[1:])
    return f"first tour after Solve, {method} (median of 6)", 200, f"{middle:.3f}", "s", "< 0.2"


def moving(page: Any, task: str, n: int, begin: tuple[float, float]) -> Row:
    """Frames a second while the mouse goes to and fro with its button down."""
    page.mouse.move(*begin)
    page.mouse.down()
    page.mouse.move(begin[0] + 20, begin[1] + 20)
    page.wait_for_timeout(300)
    page.evaluate(WATCH)
    page.evaluate(DRAWN)
    x, y = begin
    for step in range(240):
        page.mouse.move(x + (step % 80), y + (step % 60))
        page.wait_for_timeout(8)
    seen, drawn = page.evaluate(UNWATCH), page.evaluate("window.drawn")
    page.mouse.up()
    rate = 1000 * (len(seen) - 1) / (seen[-1] - seen[0])
    share = drawn / len(seen)
    wanted = "60" if n == 1000 and task == "dragging a city" else ""
    return f"{task}; {share:.0%} of the frames painted anew", n, f"{rate:.1f}", "frames/s", wanted


def city_place(page: Any) -> tuple[float, float]:
    """A city on the screen, near the middle of the map."""
    box = page.locator("#pane-a canvas").bounding_box()
    x, y = page.evaluate(
        """() => {
            const { store: { problem }, view } = window.playground;
            const city = problem.nearest(...view.center, Infinity);
            return [view.screenX(problem.x[city]), view.screenY(problem.y[city])];
        }"""
    )
    return box["x"] + x, box["y"] + y


def streamed(page: Any) -> list[Row]:
    """Tours a second that reach the page while 1,000 cities are searched for five seconds."""
    page.select_option("#example", "random-1000")
    page.wait_for_timeout(1500)
    page.fill("#seconds", "5")
    page.click("#solve")
    until(page, "Boolean(window.playground.panes[0].run?.result)")
    times = page.evaluate("window.playground.panes[0].run.frames.map((frame) => frame.seconds)")
    first = times[0]
    rows = []
    for seconds in (1, 2, 4):
        count = sum(first < each <= first + seconds for each in times)
        task = f"tours of a stream, first {seconds} s of the search"
        rows.append((task, 1000, f"{count / seconds:.1f}", "tours/s", ">= 10"))
    return rows


def main() -> None:
    rows: list[Row] = []

    def record(*made: Row) -> None:
        rows.extend(made)
        for row in made:
            print(*row, sep=", ", flush=True)

    with chromium() as browser:
        record(*first_picture(browser))
        with playground() as address:
            page = browser.new_page(viewport=SIZE)
            page.goto(address)
            until(page, PICTURE)
            page.wait_for_timeout(4000)
            record(*(first_tour(page, method) for method in ("greedy-edge", "network-greedy")))
            record(*streamed(page))
            for n in (1000, 10_000):
                if n == 10_000:
                    page.fill("#size", str(n))
                    page.keyboard.press("Enter")
                    page.wait_for_timeout(1500)
                record(moving(page, "dragging a city", n, city_place(page)))
                page.wait_for_timeout(500)
                box = page.locator("#pane-a canvas").bounding_box()
                record(moving(page, "moving the map", n, (box["x"] + box["width"] - 200, box["y"] + 200)))
                page.click("#fit")
    append("playground.csv", COLUMNS, rows)


if __name__ == "__main__":
    main()
