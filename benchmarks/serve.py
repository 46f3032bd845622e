"""The service under load: time to the first tour, many users at once, memory over many requests.

``python benchmarks/serve.py``: about three minutes, server and users on this machine. Rows are appended to
``results/serve.csv``.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import time

import numpy as np
from rows import append

from georoutenet.problem.generate import uniform
from research.serving import Server, serving

COLUMNS = ("measurement", "users", "n", "search_seconds", "value", "unit")
Rows = list[tuple[object, ...]]


def cities(n: int, seed: int) -> dict[str, object]:
    return {"coordinates": uniform(1, n, seed)[0].tolist()}


def spread(name: str, about: tuple[object, ...], seconds: list[float]) -> Rows:
    shares = {"median": 50, "p95": 95, "p99": 99, "max": 100}
    return [
        (f"{name}, {label}", *about, round(1000 * float(np.percentile(seconds, share)), 1), "ms")
        for label, share in shares.items()
    ]


async def first_tours(server: Server, repeats: int) -> Rows:
    """From sending a request to its first tour, one at a time."""
    rows: Rows = []
    for first in ("auto", "network"):
        seconds = []
        for k in range(repeats):
            given = cities(200, k) | {"first": first, "max_seconds": 1.0}
            async for name, content, at in server.events(given):
                if name == "first":
                    assert ("greedy edge" in content["method"]) == (first == "auto"), content["method"]
                    seconds.append(at)
                    break
            await asyncio.sleep(0.05)  # the search that nobody listens to ends
        rows += spread(f"first tour, first={first}", (1, 200, 1.0), seconds)
    return rows


async def frames(server: Server) -> Rows:
    """Tours in the first second of a stream, while the search shortens 1,000 cities quickly."""
    counts = []
    for k in range(5):
        came = [
            at
            async for name, _, at in server.events(cities(1_000, k) | {"max_seconds": 2.0})
            if name == "tour"
        ]
        counts.append(sum(at <= came[0] + 1.0 for at in came))
    return [("tours in a second after the first", 1, 1_000, 2.0, float(np.median(counts)), "tours")]


async def load(server: Server, users: int, seconds: float) -> Rows:
    """Users who ask again as soon as they have an answer, or when they were told to come again."""
    statuses: collections.Counter[int] = collections.Counter()
    accepted: list[float] = []
    refused: list[float] = []
    end = time.monotonic() + seconds
    before = server.megabytes

    async def user(number: int) -> None:
        request = 0
        while time.monotonic() < end:
            request += 1
            given = cities(100, 1000 * number + request) | {"max_seconds": 0.2}
            answer = await server.ask("/api/solve", given)
            statuses[answer.status] += 1
            (accepted if answer.status == 200 else refused).append(answer.seconds)
            if answer.status == 429:
                await asyncio.sleep(float(answer.headers["retry-after"]))

    await asyncio.gather(*(user(number) for number in range(users)))
    about = (users, 100, 0.2)
    rows: Rows = [(f"load, status {status}", *about, count, "answers") for status, count in statuses.items()]
    rows += spread("load, accepted", about, accepted) + spread("load, refused", about, refused)
    return [*rows, ("load, growth of memory", *about, round(server.megabytes - before, 1), "MB")]


async def memory(server: Server, requests: int) -> Rows:
    """Short searches, as many at a time as run; a part of them streams."""
    growth: list[float] = []

    async def worker(first: int, count: int) -> None:
        for k in range(first, first + count):
            given = cities(100, k) | {"max_seconds": 0.02}
            if k % 4:
                assert (await server.ask("/api/solve", given)).status == 200
            else:
                names = [name async for name, _, _ in server.events(given)]
                assert names[-1] == "done"

    for _ in range(5):
        await asyncio.gather(worker(0, requests // 10), worker(100_000, requests // 10))
        growth.append(server.megabytes)
    about = (2, 100, 0.02)
    total = f"memory after {requests:,} requests less after {requests // 5:,}"
    return [
        (total, *about, round(growth[-1] - growth[0], 1), "MB"),
        (f"memory after {requests:,} requests", *about, round(growth[-1], 1), "MB"),
        ("open files afterwards", *about, server.descriptors, "files"),
    ]


async def measure(server: Server, arguments: argparse.Namespace) -> Rows:
    await server.until_warm()
    start = server.megabytes
    rows = await first_tours(server, arguments.repeats)
    rows += await frames(server)
    rows += await load(server, arguments.users, arguments.seconds)
    rows += await memory(server, arguments.requests)
    return [*rows, ("memory when loaded", 0, 0, 0, round(start, 1), "MB")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--users", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--requests", type=int, default=5_000)
    parser.add_argument("--repeats", type=int, default=40)
    parser.add_argument("--dry", action="store_true", help="Print only.")
    arguments = parser.parse_args()
    with serving() as server:
        rows = asyncio.run(measure(server, arguments))
    for row in rows:
        print(*row, sep="  ")
    if not arguments.dry:
        append("serve.csv", COLUMNS, rows)


if __name__ == "__main__":
    main()
