"""What stands before every request: bounds of bytes and seconds, headers, the log."""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from live import GIVE_UP, Live, answer, cities, everything, head, live, request, until
from starlette.testclient import TestClient

from georoutenet.web import app, messages
from georoutenet.web.app import Service, create_app
from georoutenet.web.guard import HEADERS
from georoutenet.web.limits import Limits


@pytest.fixture(scope="module")
def server() -> Iterator[Live]:
    with live(Limits(body_bytes=10_000)) as server:
        yield server


def problem(given: tuple[int, dict[str, str], bytes]) -> tuple[int, str]:
    status, headers, body = given
    assert headers["content-type"] == "application/problem+json"
    return status, json.loads(body)["detail"]


def test_a_body_that_says_it_is_too_long_is_not_read(server: Live) -> None:
    for length in ("10001", "9" * 19):
        with server.connect() as connection:
            connection.sendall(head("/api/solve", {"Host": "test", "Content-Length": length}))
            status, detail = problem(answer(connection))
        assert status == 413
        assert "this server allows 10,000" in detail


def test_chunks_are_counted_while_they_are_read(server: Live) -> None:
    with server.connect() as connection:
        connection.sendall(head("/api/solve", {"Host": "test", "Transfer-Encoding": "chunked"}))
        try:
            for _ in range(1_000):  # without end, but for the server
                connection.sendall(b"1000\r\n" + b"x" * 0x1000 + b"\r\n")
        except OSError:  # it has closed
            return
        assert problem(answer(connection))[0] == 413


def test_a_body_of_just_the_allowed_length_is_read(server: Live) -> None:
    body = b'{"coordinates": [[0, 0], [1, 1]]}'.ljust(10_000)
    with server.connect() as connection:
        connection.sendall(request("/api/solve", body))
        assert answer(connection)[0] == 200


def test_slow_bodies_and_slow_heads_are_cut_off() -> None:
    with live(Limits(body_seconds=0.3)) as server:
        _cut_off(server)


def _cut_off(server: Live) -> None:
    with server.connect() as connection:
        connection.sendall(head("/api/solve", {"Host": "test", "Content-Length": "100"}) + b"{")
        assert problem(answer(connection))[0] == 408
    with server.connect() as connection:
        connection.sendall(b"POST /api/solve HTTP/1.1\r\nHost: te")
        assert everything(connection) == b""
    with server.connect() as connection:
        assert everything(connection) == b""


async def flood(scope: Any, receive: Any, send: Any) -> None:
    """More than any buffer holds."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for _ in range(200):
        await send({"type": "http.response.body", "body": bytes(1 << 20), "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def test_a_client_that_never_reads_is_cut_off() -> None:
    limits = Limits(body_seconds=0.2, seconds=0.1, searches=1, queue=0)
    with live(limits, flood) as server, server.connect() as connection:
        connections = server._server.server_state.connections
        until(lambda: bool(connections))
        connection.sendall(request("/", b""))
        until(lambda: not connections)


def test_a_client_that_half_closes_is_a_client_that_left(server: Live) -> None:
    with server.connect() as connection:
        connection.sendall(head("/api/solve", {"Host": "test", "Content-Length": "100"}) + b"{")
        connection.shutdown(socket.SHUT_WR)
        everything(connection)
    assert server.ask("/api/solve", cities(5))[0] == 200


def test_too_many_bodies_at_a_time_are_sent_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("georoutenet.web.guard.BODIES", 1)
    with live(Limits(body_bytes=10_000, body_seconds=GIVE_UP)) as server:
        with server.connect() as first:
            start = head("/api/solve", {"Host": "test", "Content-Length": "9999"})
            first.sendall(start + b" " * 9_998)
            while True:
                status, headers, _ = server.ask("/api/solve", cities(20))
                if status == 503:  # the first has been read
                    break
                assert status == 200
            assert headers["retry-after"] == "1"
        while server.ask("/api/solve", cities(20))[0] == 503:
            pass  # until the first has been given up


@pytest.fixture
def client() -> Iterator[TestClient]:
    with TestClient(create_app(Service(Limits()), warm=False), raise_server_exceptions=False) as client:
        yield client


def test_every_answer_has_the_headers(client: TestClient) -> None:
    paths = ["/", "/api", "/api/limits", "/static/index.html", "/static/../app.py", "/nothing", "/api/solve"]
    for path in paths:
        found = client.get(path).headers
        for name, value in HEADERS.items():
            assert found[name] == value
        assert "access-control-allow-origin" not in found
        assert ("no-store" in found.get("cache-control", "")) == (not path.startswith("/static/index"))
    assert "unsafe" not in HEADERS["Content-Security-Policy"]
    assert client.get("/static/../app.py").status_code == 404
    assert client.get("/static/%2e%2e/app.py").status_code == 404


def test_other_pages_may_ask_only_when_allowed() -> None:
    origin = {"Origin": "https://a.example", "Access-Control-Request-Method": "POST"}
    allowed = create_app(Service(Limits()), origins=("https://a.example",), warm=False)
    with TestClient(allowed) as client:
        found = client.options("/api/solve", headers=origin)
        assert found.headers["access-control-allow-origin"] == "https://a.example"
        other = client.options("/api/solve", headers=origin | {"Origin": "https://b.example"})
        assert "access-control-allow-origin" not in other.headers


def test_a_body_must_be_called_json(client: TestClient) -> None:
    response = client.post("/api/solve", content=b"{}", headers={"Content-Type": "text/plain"})
    assert response.status_code == 415
    assert "got 'text/plain'" in response.json()["detail"]


def test_an_error_of_ours_is_logged_without_what_it_says(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("city 0 at 12.3456")

    monkeypatch.setattr(messages, "read_work", fail)
    caplog.set_level(logging.INFO, "georoutenet.web")
    response = client.post("/api/solve?secret=12.3456", json={"coordinates": [[12.3456, 1]]})
    assert response.status_code == 500
    assert response.json()["detail"] == app.FAILED.detail
    assert "RuntimeError at test_guard.py" in caplog.text
    assert "POST /api/solve 500" in caplog.text
    assert "12.3456" not in caplog.text + response.text
    assert "Traceback" not in response.text


def test_a_failure_within_a_stream_is_an_event(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("georoutenet.web.searches.solve_one", lambda *_, **__: 1 / 0)
    response = client.post("/api/solve/stream", json=cities(5))
    assert response.status_code == 200
    assert response.text.startswith("event: problem\ndata: {")
    assert "ZeroDivisionError" not in response.text
