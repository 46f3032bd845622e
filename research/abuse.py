"""Hostile clients of the playground's service, seeded: whatever they do, a good request is answered soon.

``python -m research.abuse`` starts a server on this machine, sends it 10,000 malformed, oversized, slow and
endless requests, opens and drops 500 streams, and asks a good request all the while. Found wanting is an
answer of 5xx but 503, a traceback, a good request that takes more than a second (but for its own search), or
anything that is left over in the end.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import json
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field

from research.serving import Answer, Client, Server, everything, parse, request, serving
from research.torture import mutated

PATHS = (
    "/api/solve",
    "/api/solve/stream",
    "/api/scores",
    "/api/export?format=gpx",
    "/api/instance?format=csv",
)
VALUES = [
    "NaN", "Infinity", "-1e400", "1e308", "null", "true", "{}", "[]", '""', '"../../etc/passwd"', "-1", "0",
    '"\\ud800"', "9" * 400, "[" * 5000, '{"a":' * 500, '"beam-99999999"', '"beam-1000-views-9999"', "1e99",
    '"GEO"', '"EXPLICIT"', "0.1", '"http://127.0.0.1/"', "[[1e308,1e308],[-1e308,-1e308],[0,0],[1,1]]",
    "[NaN,NaN]", "[[0,0],[0]]",
]  # fmt: skip
NAMES = [
    "coordinates", "matrix", "rule", "name", "ids", "columns", "id_column", "weights", "decoder", "views",
    "beam_width", "first", "improve", "max_seconds", "seed", "start", "end", "closed", "workers", "stop",
    "progress", "initial_tour", "device", "tour", "__class__",
]  # fmt: skip
SQUARE = [[0, 0], [0, 3], [4, 3], [4, 0], [2, 1]]
GOOD = {"coordinates": SQUARE, "max_seconds": 0.05}


@dataclass
class Found:
    """What was counted."""

    statuses: collections.Counter[str] = field(default_factory=collections.Counter)
    good: list[float] = field(default_factory=list)
    """Seconds of the good requests that were answered with a tour, or told to come again."""
    solved: list[float] = field(default_factory=list)
    """Seconds until a good request had its tour, having come again as told."""
    wrong: list[str] = field(default_factory=list)

    def note(self, kind: str, answer: Answer, seed: int) -> None:
        self.statuses[f"{kind} {answer.status or 'cut off'}"] += 1
        if answer.status >= 500 and answer.status != 503:
            self.wrong.append(f"{kind} (seed {seed}): status {answer.status}")
        if b"Traceback" in answer.body or b'File \\"' in answer.body:
            self.wrong.append(f"{kind} (seed {seed}): a traceback")


def fuzzed_body(source: random.Random) -> bytes:
    """No good JSON, or a good one with bad values."""
    more: dict[str, object] = source.choice([{}, {"max_seconds": 0.01}, {"tour": [0, 1, 2, 3, 4]}])
    content = json.dumps({"coordinates": SQUARE, **more})
    kind = source.randrange(6)
    body = content
    if kind == 0:
        body = mutated(content, source)
    elif kind == 1:
        body = ",".join(f'"{source.choice(NAMES)}":{source.choice(VALUES)}' for _ in range(3)).join("{}")
    elif kind == 2:
        body = content[:-1] + f',"{source.choice(NAMES)}":{source.choice(VALUES)}' + "}"
    elif kind == 3:
        body = source.randbytes(source.choice([0, 1, 100, 5_000])).decode("latin-1")
    elif kind == 4:
        body = "x,y\n" + "\n".join(source.choice(["1,2", "a,b", "", "nan,1", '"', "1;2"]) for _ in range(20))
    return body.encode("utf-8", "surrogatepass")


def fuzzed(source: random.Random) -> bytes:
    """A request with such a body."""
    return request("POST", source.choice(PATHS), fuzzed_body(source))


def oversized(source: random.Random) -> bytes:
    """A million cities, bodies of megabytes, just below and above the limit."""
    kind = source.randrange(4)
    if kind == 0:
        return request(
            "POST", source.choice(PATHS), b"", **{"Content-Length": str(source.choice([10**7, 10**12]))}
        )
    if kind == 1:
        return request("POST", source.choice(PATHS), b'{"coordinates":[' + b"[0,0]," * 349_000 + b"[0,0]]}")
    if kind == 2:
        return request("POST", source.choice(PATHS), b"[" * 2_000_000)
    return request("POST", source.choice(PATHS), b'{"coordinates":[' + b"[0,0]," * 1_000_000 + b"[0,0]]}")


def malformed(source: random.Random) -> bytes:
    """No HTTP, or not quite."""
    good = request(source.choice(["GET", "POST", "PUT", "TRACE"]), source.choice(["/", *PATHS]), b"{}")
    kind = source.randrange(4)
    if kind == 0:
        return source.randbytes(200) + b"\r\n\r\n"
    if kind == 1:
        at = source.randrange(len(good))
        return good[:at] + source.randbytes(3) + good[at:] + b"\r\n\r\n"
    if kind == 2:
        return good.replace(b"Host: test", b"Host: test\r\nX: " + b"y" * 100_000)
    path = source.choice(
        ["/static/../app.py", "/static/%2e%2e/%2e%2e/x", "//x", "/api/examples/%00", "*", "/" * 9000]
    )
    return request("GET", path, b"")


async def plain(server: Client, make: Callable[[random.Random], bytes], source: random.Random) -> Answer:
    return await asyncio.wait_for(server.send(make(source)), 60)


async def slow(server: Client, source: random.Random) -> Answer:
    """A head or a body that comes a byte at a time and never ends; the server cuts it off."""
    data = request("POST", "/api/solve", b"{" + b" " * 1000)
    sent = source.choice([10, 60, data.index(b"{") + 2])
    return await _dripping(server, data, sent, source)


async def _dripping(server: Client, data: bytes, sent: int, source: random.Random) -> Answer:
    began = time.monotonic()
    reader, writer = await server.connect()
    reading = asyncio.create_task(everything(reader))
    try:
        writer.write(data[:sent])
        while not reading.done() and sent < len(data):
            await asyncio.sleep(source.uniform(0.2, 1.0))
            writer.write(data[sent : sent + 1])
            sent += 1
        return parse(await reading, time.monotonic() - began)
    finally:
        writer.close()


async def endless(server: Client, source: random.Random) -> Answer:
    """Chunks without end."""
    began = time.monotonic()
    reader, writer = await server.connect()
    reading = asyncio.create_task(everything(reader))
    try:
        head = b"POST /api/solve HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n"
        writer.write(head)
        with suppress(ConnectionError):
            while not reading.done():
                writer.write(b"4000\r\n" + b" " * 0x4000 + b"\r\n")
                await writer.drain()
                await asyncio.sleep(0)
        return parse(await reading, time.monotonic() - began)
    finally:
        writer.close()


async def half_closed(server: Client, source: random.Random) -> Answer:
    """A stream whose client has said that it will say no more, or sends but a part of its body."""
    began = time.monotonic()
    reader, writer = await server.connect()
    try:
        body = json.dumps({"coordinates": SQUARE, "max_seconds": 1.0}).encode()
        data = request("POST", "/api/solve/stream", body)
        writer.write(data[: source.choice([20, len(data) - 5, len(data)])])
        with suppress(OSError):
            writer.write_eof()
        return parse(await everything(reader), time.monotonic() - began)
    finally:
        writer.close()


async def dropped(server: Client, source: random.Random) -> Answer:
    """A long search, of which the client reads a little and leaves."""
    began = time.monotonic()
    points = [[source.random(), source.random()] for _ in range(300)]
    body = json.dumps({"coordinates": points, "max_seconds": 10}).encode()
    reader, writer = await server.connect()
    try:
        writer.write(request("POST", "/api/solve/stream", body))
        received = b""
        if source.random() < 0.7:
            with suppress(ConnectionError):
                received = await asyncio.wait_for(reader.read(1000), 30)
        return parse(received, time.monotonic() - began) if received else Answer(0, {}, b"", 0.0)
    finally:
        writer.transport.abort()


Attack = Callable[[Client, random.Random], Awaitable[Answer]]
ATTACKS: dict[str, tuple[Attack, int, int]] = {
    "fuzzed": (lambda server, source: plain(server, fuzzed, source), 7_000, 8),
    "malformed": (lambda server, source: plain(server, malformed, source), 2_350, 8),
    "oversized": (lambda server, source: plain(server, oversized, source), 400, 4),
    "half closed": (half_closed, 100, 8),
    "slow": (slow, 100, 100),
    "endless": (endless, 50, 4),
    "dropped stream": (dropped, 500, 25),
}
"""Each with how many of them are made, and how many at a time."""


async def good_requests(server: Client, found: Found, done: asyncio.Event) -> None:
    """One after the other, all the while: a small search, a page, whether the server is well."""
    while not done.is_set():
        began = time.monotonic()
        while True:
            answer = await server.ask("/api/solve", dict(GOOD))
            found.good.append(answer.seconds)
            if answer.status == 200:
                found.solved.append(time.monotonic() - began)
                assert sorted(json.loads(answer.body)["tour"]) == list(range(len(SQUARE)))
                break
            if answer.status not in (429, 503):
                found.wrong.append(f"a good request got {answer.status}: {answer.body[:200]!r}")
                break
            await asyncio.sleep(0.05)
        for path in ("/healthz", "/"):
            answer = await server.ask(path)
            found.good.append(answer.seconds)
            if answer.status != 200:
                found.wrong.append(f"{path} got {answer.status}")
        await asyncio.sleep(0.05)


async def attack(server: Client, name: str, scale: float, seed: int, found: Found) -> None:
    """All attacks of a kind, some at a time."""
    make, count, together = ATTACKS[name]
    numbers = iter(range(max(1, int(count * scale))))

    async def attacker() -> None:
        for number in numbers:
            own = seed * 1_000_000 + number
            try:
                answer = await make(server, random.Random(f"{name} {own}"))
            except (ConnectionError, asyncio.IncompleteReadError):
                answer = Answer(0, {}, b"", 0.0)
            except TimeoutError:
                found.wrong.append(f"{name} (seed {own}): no answer in a minute")
                continue
            found.note(name, answer, own)

    await asyncio.gather(*(attacker() for _ in range(together)))


async def abuse(server: Client, *, scale: float = 1.0, seed: int = 0) -> Found:
    """One kind after the other, slow clients beside them from the first to the last."""
    found, done = Found(), asyncio.Event()
    good = asyncio.create_task(good_requests(server, found, done))
    beside = asyncio.create_task(attack(server, "slow", scale, seed, found))
    for name in ATTACKS:
        if name != "slow":
            await attack(server, name, scale, seed, found)
    await beside
    await asyncio.sleep(0.2)
    done.set()
    await good
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="Share of the 10,500 attacks.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--rows", action="store_true", help="Append rows to benchmarks/results/serve_abuse.csv."
    )
    arguments = parser.parse_args()

    async def run(server: Server) -> tuple[Found, float, float, int]:
        await server.until_warm()
        before = server.megabytes
        found = await abuse(server, scale=arguments.scale, seed=arguments.seed)
        await asyncio.sleep(6)  # connections that are kept alive end
        return found, before, server.megabytes, server.descriptors

    with serving() as server:
        found, before, after, files = asyncio.run(run(server))
        alive = server.process.poll() is None
    rows = [(name, count, "answers") for name, count in sorted(found.statuses.items())]
    rows += [
        ("good requests", len(found.good), "answers"),
        ("good requests, slowest answer", round(1000 * max(found.good)), "ms"),
        ("good requests, slowest tour", round(1000 * max(found.solved)), "ms"),
        ("memory before", round(before), "MB"),
        ("memory after", round(after), "MB"),
        ("open files after", files, "files"),
        ("wrong", len(found.wrong), "findings"),
    ]
    for row in rows:
        print(*row, sep="  ")
    for finding in found.wrong[:50]:
        print("WRONG:", finding)
    if arguments.rows:
        from benchmarks.rows import append

        append("serve_abuse.csv", ("what", "value", "unit"), rows)
    if found.wrong or not alive:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
