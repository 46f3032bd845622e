"""A server to measure and to attack, in a process of its own, and a small client that can misbehave."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

Content = dict[str, Any]


class Answer(NamedTuple):
    status: int
    """0: the connection ended without an answer."""
    headers: dict[str, str]
    body: bytes
    seconds: float


class Client:
    """Of a server at an address."""

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(self.host, self.port, limit=1 << 22)

    async def ask(self, path: str, content: Content | None = None) -> Answer:
        """A proper request and its answer; without content a GET."""
        body = b"" if content is None else json.dumps(content).encode()
        return await self.send(request("GET" if content is None else "POST", path, body))

    async def send(self, data: bytes) -> Answer:
        """Any bytes, and what comes back."""
        began = time.monotonic()
        reader, writer = await self.connect()
        try:
            with suppress(ConnectionError):
                writer.write(data)
                await writer.drain()
            received = await everything(reader)
        finally:
            writer.close()
        return parse(received, time.monotonic() - began)

    async def events(self, content: Content) -> AsyncIterator[tuple[str, Content, float]]:
        """The events of a stream, and when each came, in seconds."""
        began = time.monotonic()
        reader, writer = await self.connect()
        try:
            writer.write(request("POST", "/api/solve/stream", json.dumps(content).encode()))
            name = ""
            while line := await reader.readline():
                if line.startswith(b"event: "):
                    name = line[7:].decode().strip()
                elif line.startswith(b"data: "):
                    yield name, json.loads(line[6:]), time.monotonic() - began
        finally:
            writer.close()

    async def until_warm(self) -> None:
        """Until the server has loaded what requests need."""
        while not json.loads((await self.ask("/healthz")).body)["loaded"]:
            await asyncio.sleep(0.2)


class Server(Client):
    """``georoutenet serve`` on a free port of this machine, and a client of it."""

    def __init__(self, *options: str) -> None:
        command = [sys.executable, "-m", "georoutenet", "serve", "--port", "0", "--quiet", *options]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        said = self.process.stderr.readline()
        found = re.search(r"http://([\d.]+):(\d+)", said)
        if found is None:
            raise RuntimeError(f"no address in {said!r}{self.process.stderr.read()}")
        super().__init__(found[1], int(found[2]))

    @property
    def megabytes(self) -> float:
        """Resident memory of the server's process."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
        raise AssertionError("a process has a resident set")

    @property
    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))


@contextmanager
def serving(*options: str) -> Iterator[Server]:
    server = Server(*options)
    try:
        yield server
    finally:
        server.process.terminate()
        try:
            server.process.wait(20)
        finally:
            server.process.kill()


def request(method: str, path: str, body: bytes, **headers: str) -> bytes:
    fields = {"Host": "test", "Content-Type": "application/json", "Content-Length": str(len(body))}
    fields |= {"Connection": "close"} | headers
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items()), "", ""]
    return "\r\n".join(lines).encode("utf-8", "surrogatepass") + body


async def everything(reader: asyncio.StreamReader) -> bytes:
    parts = []
    with suppress(ConnectionError):
        while part := await reader.read(65536):
            parts.append(part)
    return b"".join(parts)


def parse(received: bytes, seconds: float) -> Answer:
    start, _, body = received.partition(b"\r\n\r\n")
    if not start.startswith(b"HTTP/1.1 "):
        return Answer(0, {}, b"", seconds)
    first, *lines = start.decode("latin-1").split("\r\n")
    return Answer(int(first.split()[1]), dict(line.lower().split(": ", 1) for line in lines), body, seconds)
