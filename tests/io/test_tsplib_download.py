"""Fetching TSPLIB: from a mirror of its own here, with what servers do wrong."""

from __future__ import annotations

import gzip
import hashlib
import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from socketserver import BaseRequestHandler, ThreadingTCPServer

import pytest

from georoutenet.errors import InputError
from georoutenet.io.tsplib_download import (
    TSPLIB_ADDRESS,
    DownloadError,
    download_tsplib,
)

ONE = b"NAME : one\nDIMENSION : 3\nEDGE_WEIGHT_TYPE : EUC_2D\nNODE_COORD_SECTION\n1 0 0\n2 3 4\n3 1 5\nEOF\n"
FILES = {"one.tsp": ONE, "one.opt.tour": b"TOUR_SECTION\n1\n2\n3\n-1\n", "two.tsp": b"two"}
SUMS = {name: hashlib.sha256(data).hexdigest() for name, data in FILES.items()}


class Mirror:
    """A web server on this machine whose answers the tests choose; it counts the requests."""

    def __init__(self) -> None:
        self.answers = {f"/tsp/{name}.gz": gzip.compress(data) for name, data in FILES.items()}
        self.requests: list[str] = []
        mirror = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                mirror.requests.append(self.path)
                data = mirror.answers.get(self.path)
                self.send_response(404 if data is None else 200)
                self.end_headers()
                self.wfile.write(data or b"")

            def log_message(self, *_: object) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_port}/tsp"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})

    def close(self) -> None:
        if self.thread.is_alive():
            self.server.shutdown()
            self.server.server_close()
            self.thread.join()


@pytest.fixture
def mirror(monkeypatch: pytest.MonkeyPatch) -> Iterator[Mirror]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    server = Mirror()
    server.thread.start()
    yield server
    server.close()


def test_download_and_resume(mirror: Mirror, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "tsplib"
    calls: list[tuple[int, int, str]] = []

    def fetch() -> list[Path]:
        return download_tsplib(folder, checksums=SUMS, progress=lambda *call: calls.append(call))

    monkeypatch.setenv("GEOROUTENET_TSPLIB_ADDRESS", mirror.address)
    assert fetch() == [folder / name for name in FILES]
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == FILES
    assert calls == [(k, 3, name) for k, name in enumerate(FILES, 1)]
    assert fetch() == []
    assert len(mirror.requests) == 3
    (folder / "two.tsp").write_bytes(b"tw")
    (folder / "one.tsp").unlink()
    assert fetch() == [folder / "one.tsp", folder / "two.tsp"]
    assert mirror.requests[3:] == ["/tsp/one.tsp.gz", "/tsp/two.tsp.gz"]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (None, "one.tsp: the server answered 404"),
        (gzip.compress(b"other", mtime=0), "one.tsp: other contents than published"),
        (b"not gzip", "one.tsp: broken gzip data"),
        (gzip.compress(FILES["one.tsp"], mtime=0)[:-9], "one.tsp: broken gzip data"),
        (gzip.compress(FILES["one.tsp"], mtime=0)[:20] + b"\xff" * 40, "one.tsp: broken gzip data"),
        (b"", "one.tsp: other contents"),
    ],
)
def test_wrong_contents_are_not_kept(
    mirror: Mirror, tmp_path: Path, answer: bytes | None, message: str
) -> None:
    mirror.answers["/tsp/one.tsp.gz"] = answer  # type: ignore[assignment]
    with pytest.raises(DownloadError, match=f"1 of 3 files not fetched: {message}"):
        download_tsplib(tmp_path, address=mirror.address, checksums=SUMS)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["one.opt.tour", "two.tsp"]


def test_a_bomb_is_not_unpacked(mirror: Mirror, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither much that unpacks from little, nor more than any file of TSPLIB has."""
    monkeypatch.setattr("georoutenet.io.tsplib_download._LARGEST_FILE", 2**16)
    mirror.answers["/tsp/one.tsp.gz"] = gzip.compress(bytes(2**22))
    mirror.answers["/tsp/two.tsp.gz"] = gzip.compress(os.urandom(2**18))
    with pytest.raises(DownloadError, match=r"one\.tsp: more than 65,536 bytes; two\.tsp: more than 65,536"):
        download_tsplib(tmp_path, address=mirror.address, checksums=SUMS)
    assert [p.name for p in tmp_path.iterdir()] == ["one.opt.tour"]


@pytest.mark.parametrize("first", [b"X-Long: ", b"\r\n" + gzip.compress(FILES["one.tsp"], mtime=0)[:30]])
def test_a_server_that_drips_is_cut_off(tmp_path: Path, first: bytes) -> None:
    """A byte now and then, of headers or of contents, keeps a socket's own timeout from ever passing."""
    done = threading.Event()

    class Drip(BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(4096)
            with suppress(OSError):
                self.request.sendall(b"HTTP/1.0 200 OK\r\n" + first)
                while not done.wait(0.02):
                    self.request.sendall(b"x")

    with ThreadingTCPServer(("127.0.0.1", 0), Drip) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_address[1]}"
        try:
            with pytest.raises(DownloadError, match=r"cannot fetch .*one\.tsp\.gz: not complete after 0.5 s"):
                download_tsplib(tmp_path, address=address, checksums=SUMS, deadline=0.5)
        finally:
            done.set()
            server.shutdown()
    assert list(tmp_path.iterdir()) == []


def test_the_default_address_is_encrypted() -> None:
    assert TSPLIB_ADDRESS.startswith("https://")


def test_an_address_that_is_none(tmp_path: Path) -> None:
    for address in ("http://[", "http://a b/", "http://:x/"):
        with pytest.raises(DownloadError, match="cannot fetch"):
            download_tsplib(tmp_path, address=address, checksums=SUMS, timeout=5)


def test_no_network(tmp_path: Path, mirror: Mirror) -> None:
    mirror.close()
    with pytest.raises(DownloadError, match=r"cannot fetch .*one\.tsp\.gz: .*refused"):
        download_tsplib(tmp_path, address=mirror.address, checksums=SUMS, timeout=5)
    with pytest.raises(InputError, match="starts with http"):
        download_tsplib(tmp_path, address="file:///etc", checksums=SUMS)
    assert list(tmp_path.iterdir()) == []
