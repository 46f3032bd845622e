"""The routes: what they answer, and what they refuse."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from live import until
from starlette.testclient import TestClient

import georoutenet as grn
from georoutenet.errors import InputError
from georoutenet.io.files import read_tour
from georoutenet.problem.generate import uniform
from georoutenet.web import messages
from georoutenet.web.app import Service, create_app
from georoutenet.web.limits import Limits
from georoutenet.web.messages import read_work

SQUARE = [[0, 0], [0, 3], [4, 3], [4, 0]]


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    limits = Limits(cities=500, seconds=60.0, body_bytes=100_000, searches=2)
    with TestClient(create_app(Service(limits), warm=False)) as client:
        yield client


def events(text: str) -> list[tuple[str, dict[str, Any]]]:
    """The events of a stream, read as the standard has it: blocks of fields."""
    blocks = [dict(line.split(": ", 1) for line in block.split("\n")) for block in text.strip().split("\n\n")]
    return [(block["event"], json.loads(block["data"])) for block in blocks]


def test_information(client: TestClient) -> None:
    assert client.get("/healthz").json() == {"status": "ok", "version": grn.__version__, "loaded": False}
    limits = client.get("/api/limits").json()
    assert (limits["cities"], limits["seconds"], limits["body_bytes"]) == (500, 60.0, 100_000)
    names = {each["name"] for each in client.get("/api/weights").json()}
    assert names == {"georoutenet", "georoutenet-50"}


def test_examples_are_instances_that_solve_takes_back(client: TestClient) -> None:
    listed = client.get("/api/examples").json()
    for each in listed:
        given = client.get(f"/api/examples/{each['name']}").json()
        assert len(given["coordinates"]) == len(given["plane"]) == each["cities"]
        assert given["optimum"] == each["optimum"]
    capitals = client.get("/api/examples/us-capitals").json()
    answer = client.post("/api/solve", json=capitals | {"start": "Denver"}).json()
    assert answer["length"] == pytest.approx(capitals["optimum"])
    assert capitals["ids"][answer["tour"][0]] == "Denver"


def test_solve_answers_as_the_python_function_does(client: TestClient) -> None:
    points = uniform(1, 60, 3)[0].astype(float)
    options = {"seed": 5, "closed": False, "start": 3}
    answer = client.post("/api/solve", json={"coordinates": points.tolist(), "name": "x"} | options).json()
    result = grn.solve(points, workers=1, **options)
    assert answer["tour"] == result.tour.tolist()
    assert answer["length"] == pytest.approx(result.length)
    assert answer["name"] == "x"


def test_a_stream_ends_with_what_solve_answers(client: TestClient) -> None:
    points = uniform(1, 200, 3)[0].astype(float)
    given = {"coordinates": points.tolist(), "rule": "EUCLIDEAN"}
    response = client.post("/api/solve/stream", json=given)
    assert response.headers["content-type"].startswith("text/event-stream")
    found = events(response.text)
    names = [name for name, _ in found]
    assert names[0] == "first"
    assert names[-1] == "done"
    assert set(names[1:-1]) <= {"tour", "bound"}
    assert "bound" in names
    assert found[0][1]["method"] == "greedy edge"
    lengths = []
    for name, content in found:
        if name != "bound":
            assert sorted(content["tour"]) == list(range(200))
            assert content["length"] == pytest.approx(grn.tour_length(grn.Instance(points), content["tour"]))
            lengths.append(content["length"])
    assert all(later <= earlier * (1 + 1e-12) for earlier, later in pairwise(lengths))
    assert len(set(lengths)) >= 2
    assert found[-1][1]["tour"] == client.post("/api/solve", json=given).json()["tour"]


@pytest.mark.parametrize(
    ("path", "given", "words"),
    [
        ("/api/solve", {"coordinates": SQUARE, "foo": 1}, "solve has no option 'foo'"),
        ("/api/solve", {"coordinates": SQUARE, "progress": 1}, "solve has no option 'progress'"),
        ("/api/solve", {"coordinates": SQUARE, "max_seconds": 61}, "this server allows 60"),
        ("/api/solve", {"coordinates": SQUARE, "max_seconds": "1"}, "max_seconds must be a number"),
        ("/api/solve", {"coordinates": SQUARE, "workers": 2}, "this server allows 1"),
        ("/api/solve", {"coordinates": SQUARE, "weights": "/etc/passwd"}, "no weights '/etc/passwd'"),
        ("/api/solve", {"coordinates": SQUARE, "decoder": "beam-9999"}, "this server allows 2,000"),
        (
            "/api/solve",
            {"coordinates": [[0, 0]] * 500, "beam_width": 1001},
            "500 cities is 1001; this server allows 1,000",
        ),
        ("/api/solve", {"coordinates": SQUARE, "rule": "ROUND"}, "unknown distance rule 'ROUND'"),
        ("/api/solve", {"coordinates": [[0, 0]] * 501}, "501 cities; this server allows 500"),
        ("/api/solve", {"coordinates": [[0, 0], [0]]}, "coordinates"),
        ("/api/solve", {"coordinates": "0,0"}, "coordinates must be a list of rows"),
        ("/api/solve", {}, "an instance needs coordinates"),
        ("/api/solve", {"coordinates": SQUARE, "start": "Rome"}, "no city is called 'Rome'"),
        ("/api/solve", [1], "expected a JSON object"),
        ("/api/solve", {"name": [[]] * 5_000}, "5,002 lists and objects"),
        ("/api/scores", {"coordinates": SQUARE, "seed": 1}, "scores has no option 'seed'"),
        ("/api/export?format=tour", {"coordinates": SQUARE, "tour": [0, 1, 2]}, "3 entries for 4 cities"),
        ("/api/export?format=exe", {"coordinates": SQUARE, "tour": [0]}, "unknown format 'exe'"),
        ("/api/export?format=gpx", {"coordinates": SQUARE, "tour": [0, 1, 2, 3]}, "needs latitudes"),
    ],
)
def test_bad_requests_get_the_words_of_the_python_errors(
    client: TestClient, path: str, given: Any, words: str
) -> None:
    response = client.post(path, json=given)
    problem = response.json()
    assert response.headers["content-type"] == "application/problem+json"
    assert (response.status_code, problem["status"], problem["title"]) == (400, 400, "Bad Request")
    assert words in problem["detail"]


def test_an_export_is_what_our_readers_read(client: TestClient, tmp_path: Path) -> None:
    capitals = client.get("/api/examples/us-capitals").json()
    tour = np.random.default_rng(0).permutation(48).tolist()
    for form in ("tour", "csv", "json", "geojson", "gpx"):
        given = capitals | {"tour": tour, "name": "../évil\n"}
        response = client.post(f"/api/export?format={form}", json=given)
        assert response.status_code == 200
        name = response.headers["content-disposition"]
        assert name.endswith(f"filename*=UTF-8''_%C3%A9vil_.{form}")
        file = tmp_path / f"out.{form}"
        file.write_bytes(response.content)
        if form in ("tour", "csv", "json"):
            assert read_tour(file, 48).tolist() == tour
        if form == "geojson":
            ids = grn.read_instance(file).ids
            assert ids is not None
            assert list(ids) == [capitals["ids"][city] for city in tour]


@pytest.mark.parametrize("form", ["csv", "geojson", "json"])
def test_half_a_pair_of_surrogates_is_written_out(client: TestClient, form: str) -> None:
    given = {"coordinates": SQUARE, "rule": "GREAT_CIRCLE", "ids": ["\ud800", "b", "c", "d"]}
    body = json.dumps(given | {"tour": [0, 1, 2, 3]})
    headers = {"Content-Type": "application/json"}
    response = client.post(f"/api/export?format={form}", content=body, headers=headers)
    assert response.status_code == 200
    assert b"\\ud800" in response.content


@pytest.mark.parametrize("more", [{}, {"workers": None}, {"workers": 1}])
def test_a_search_has_the_one_thread_that_the_limits_allow(more: dict[str, Any]) -> None:
    body = json.dumps({"coordinates": SQUARE, **more}).encode()
    assert read_work(body, Limits()).options.workers == 1


def test_files_are_read_by_our_readers(client: TestClient) -> None:
    def read(form: str, data: bytes) -> Any:
        return client.post(f"/api/instance?format={form}", content=data)

    found = read("csv", b"name,lat,lon\nRome,41.9,12.5\nOslo,59.9,10.7\n").json()
    assert (found["rule"], found["ids"], found["unit"]) == ("GREAT_CIRCLE", ["Rome", "Oslo"], "km")
    assert found["coordinates"] == [[41.9, 12.5], [59.9, 10.7]]
    assert read("csv", "name,x,y\nÄ,1,2\n".encode("cp1252")).json()["notes"] == [
        "not UTF-8 text: read as Windows-1252"
    ]
    assert "the file:2" in read("csv", b"x,y\n1,b\n").json()["detail"]
    assert read("csv", b" ").json()["detail"] == "the file: empty"
    assert "unknown format" in read("npy", b"x").json()["detail"]
    assert "allows 500" in read("csv", b"1,2\n" * 501).json()["detail"]


def test_numbers_that_json_does_not_have_are_left_out(client: TestClient) -> None:
    """They are numbers of a table like others, and made the answer fail."""
    answer = client.post("/api/instance?format=csv", content=b"id,x,y,s\n1,2,3,nan\n2,3,4,inf\n")
    assert answer.status_code == 200
    assert answer.json()["columns"] == {"id": [1, 2], "s": [None, "inf"]}
    places = b'[{"x":1,"y":2,"id":NaN,"s":[1e999]},{"x":1,"y":3,"id":1}]'
    assert client.post("/api/instance?format=json", content=places).status_code == 200


def test_columns_of_an_answer_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small body can make a large table: places that have other properties each."""
    places = [{"x": k, "y": 0, **{f"{k}_{j}": 1 for j in range(5)}} for k in range(100)]
    data = json.dumps(places).encode()
    assert len(data) < 10_000
    assert messages.read_file(data, "json", Limits(body_bytes=50_000))["name"] == "instance"
    with pytest.raises(InputError, match="50,000 cells in columns; this server allows 10,000"):
        messages.read_file(data, "json", Limits(body_bytes=10_000))


def test_scores_are_of_undirected_edges(client: TestClient) -> None:
    points = uniform(1, 30, 3)[0].astype(float)
    answer = client.post(
        "/api/scores", json={"coordinates": points.tolist(), "weights": "georoutenet-50"}
    ).json()
    result = grn.solve(points, weights="georoutenet-50", improve=False, decoder="greedy")
    expected = result.edge_marginals()  # as many views: thirty cities are few
    found = {(i, j): p for i, j, p in answer["edges"]}
    assert found.keys() == set(map(tuple, expected.edges.tolist()))
    for pair, p in zip(expected.edges.tolist(), expected.probabilities.tolist(), strict=True):
        assert found[pair[0], pair[1]] == pytest.approx(p, abs=1e-6)
    order = [p for _, _, p in answer["edges"]]
    assert order == sorted(order, reverse=True)
    assert sum(answer["start"]) == pytest.approx(1.0, abs=1e-3)
    few = client.post("/api/scores", json={"coordinates": [*SQUARE, [1, 1]]}).json()["edges"]
    assert all(i < j for i, j, _ in few)
    assert client.post("/api/scores", json={"coordinates": [[1, 2]]}).json() == {"edges": [], "start": [1.0]}


def test_the_service_describes_itself(client: TestClient) -> None:
    description = client.get("/openapi.json").json()
    page = client.get("/api").text
    for path in (
        "/api/solve",
        "/api/solve/stream",
        "/api/scores",
        "/api/export",
        "/api/instance",
        "/healthz",
    ):
        assert path in description["paths"]
        assert f" {path}</code>" in page
    schema = description["paths"]["/api/solve"]["post"]["requestBody"]["content"]["application/json"][
        "schema"
    ]
    assert schema["properties"]["max_seconds"]["maximum"] == 60.0
    assert {"coordinates", "matrix", "decoder", "closed", "initial_tour"} <= set(schema["properties"])
    assert not {"device", "stop", "progress"} & set(schema["properties"])
    assert "<script" not in page
    assert "style=" not in page


def test_a_tour_to_begin_with(client: TestClient) -> None:
    given = {"coordinates": SQUARE, "initial_tour": [0, 2, 1, 3], "improve": False}
    assert client.post("/api/solve", json=given).json()["length"] == 5 + 4 + 5 + 4
    assert "not both" in client.post("/api/solve", json=given | {"first": "curve"}).json()["detail"]


def test_a_server_that_is_asked_to_loads_the_network() -> None:
    service = Service(Limits())
    with TestClient(create_app(service)) as client:
        until(lambda: client.get("/healthz").json()["loaded"], 300.0)  # it may have to compile


def test_what_cannot_be_loaded_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("georoutenet.web.app.load", lambda _: 1 / 0)
    Service(Limits()).load()
    assert "loading failed: division by zero" in caplog.text


@pytest.mark.parametrize(
    ("more", "width"),
    [
        ({"decoder": "beam"}, 250),
        ({"improve": False}, 250),
        ({"views": 2, "first": "network"}, 250),
        ({"decoder": "beam", "beam_width": 100}, 100),
        ({"decoder": "sample"}, None),
        ({"decoder": "beam-30"}, None),
        ({"improve": False, "first": "curve"}, None),
        ({"improve": False, "first": "greedy-edge"}, None),
        ({}, None),
    ],
)
def test_a_width_that_nobody_wrote_fits_the_limit(more: dict[str, Any], width: int | None) -> None:
    points = [[k, k * k % 97] for k in range(2000)]
    body = json.dumps({"coordinates": points, **more}).encode()
    assert read_work(body, Limits(decoded=500_000)).options.beam_width == width
    narrow = 100 if width else None
    assert read_work(body, Limits(beam_width=100)).options.beam_width == narrow
