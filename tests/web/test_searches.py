"""Searches that run and wait: admitted in order, sent away, ended by their clients or the server."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from live import LONG, Live, answer, cities, live, until

from georoutenet.web.limits import Limits

ENDLESS = cities(100, max_seconds=LONG)


@pytest.fixture
def server() -> Iterator[Live]:
    with live(Limits(seconds=LONG, searches=1, queue=1)) as server:
        yield server


def running(server: Live) -> int:
    return len(server.service.searches._running)


def waiting(server: Live) -> int:
    return len(server.service.searches._admission._line)


@pytest.mark.parametrize("path", ["/api/solve", "/api/solve/stream"])
def test_a_client_that_leaves_stops_its_search(server: Live, path: str) -> None:
    connection = server.post(path, ENDLESS)
    until(lambda: running(server) == 1)
    connection.close()
    until(lambda: running(server) == 0)
    assert server.ask("/api/solve", cities(5))[0] == 200


def test_one_runs_one_waits_others_are_sent_away(server: Live) -> None:
    with server.post("/api/solve", ENDLESS) as first:
        until(lambda: running(server) == 1)
        with server.post("/api/solve", cities(5)) as second:
            until(lambda: waiting(server) == 1)
            for path in ("/api/solve", "/api/solve/stream", "/api/scores"):
                status, headers, body = server.ask(path, cities(5))
                assert (status, headers["retry-after"]) == (429, "1")
                assert json.loads(body)["title"] == "Too Many Requests"
            first.close()
            assert answer(second)[0] == 200


def test_a_client_that_leaves_the_queue_makes_room(server: Live) -> None:
    with server.post("/api/solve", ENDLESS):
        until(lambda: running(server) == 1)
        for _ in range(3):
            second = server.post("/api/solve/stream", cities(5))
            until(lambda: waiting(server) == 1)
            second.close()
            until(lambda: waiting(server) == 0)


def test_a_server_that_ends_hands_out_the_best_tours(server: Live) -> None:
    with server.post("/api/solve", ENDLESS) as first:
        until(lambda: running(server) == 1)
        with server.post("/api/solve", cities(5)) as second:
            until(lambda: waiting(server) == 1)
            server.service.searches.close()
            status, _, body = answer(first)
            found = json.loads(body)
            assert (status, found["interrupted"]) == (200, True)
            assert sorted(found["tour"]) == list(range(100))
            assert answer(second)[0] == 503
    assert server.ask("/api/solve", cities(5))[0] == 503


def test_many_streams_that_are_dropped_leave_nothing(server: Live) -> None:
    for _ in range(50):
        server.post("/api/solve/stream", ENDLESS).close()
    until(lambda: server.ask("/api/solve", cities(5))[0] == 200)
    admission = server.service.searches._admission
    until(lambda: not admission._running.taken and not admission._waiting.taken)
