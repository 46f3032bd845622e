"""Searches on the globe: tours that no flat map shows, by a table and by the formula."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

import georoutenet as grn
from georoutenet.jit import njit
from georoutenet.problem.globe import project
from georoutenet.problem.instance import Instance
from georoutenet.problem.tour import is_permutation, tour_length
from georoutenet.search import distances, local_search
from georoutenet.search.ascent import lower_bound
from georoutenet.search.construct import greedy_edge
from georoutenet.search.local_search import improve, kernel_coordinates
from georoutenet.search.neighbors import candidate_neighbors, spatial_points
from georoutenet.stop import MaxIterations

distance = njit(lambda *given: distances.distance(*given))


def worldwide(n: int, seed: int) -> NDArray[np.float64]:
    generator = np.random.default_rng(seed)
    return np.column_stack(
        [np.degrees(np.arcsin(generator.uniform(-1, 1, n))), generator.uniform(-180, 180, n)]
    )


@pytest.fixture(params=["table", "formula"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "formula":
        monkeypatch.setattr(local_search, "TABLE", 0)
    return str(request.param)


def test_the_kernels_measure_kilometers(way: str) -> None:
    earth = Instance(worldwide(80, 1), rule="GREAT_CIRCLE")
    code, x, y, scale = kernel_coordinates(earth)
    assert code == (distances.EXPLICIT if way == "table" else distances.GREAT_CIRCLE)
    i, j = np.triu_indices(80, 1)
    ours = np.array([distance(code, x, y, a, b) for a, b in zip(i, j, strict=True)]) / scale
    np.testing.assert_allclose(ours, earth.distance(i, j), rtol=1e-9)


def test_a_tour_of_the_world_is_shorter_than_that_of_its_map(way: str) -> None:
    places = worldwide(120, 3)
    earth, flat = Instance(places, rule="GREAT_CIRCLE"), Instance(project(places))
    found = improve(earth, greedy_edge(spatial_points(earth)), stop=MaxIterations(5000))
    on_map = improve(flat, greedy_edge(flat.coordinates), stop=MaxIterations(5000))
    assert found.length == tour_length(earth, found.tour)
    assert found.length < 0.98 * tour_length(earth, on_map.tour)
    assert 0.97 * found.length < lower_bound(earth, found.tour) <= found.length
    assert found.lower_bound <= found.length


@pytest.mark.parametrize(
    "options", [{}, {"closed": False}, {"start": 3, "end": 7}, {"closed": False, "end": 2}]
)
def test_table_formula_and_a_given_matrix_find_the_same_tour(
    options: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    earth = Instance(worldwide(90, 5), rule="GREAT_CIRCLE")
    lists, given = candidate_neighbors(earth), np.random.default_rng(6).permutation(90)

    def search(instance: Instance) -> local_search.Improved:
        return improve(instance, given, neighbors=lists, stop=MaxIterations(400), seed=1, **options)

    by_table, by_matrix = search(earth), search(Instance(matrix=earth.distance_matrix()))
    monkeypatch.setattr(local_search, "TABLE", 0)
    by_formula = search(earth)
    assert by_table.tour.tolist() == by_matrix.tour.tolist() == by_formula.tour.tolist()
    assert by_table.length == by_matrix.length == by_formula.length


def test_windows_on_the_globe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_search, "WHOLE", 100)
    places = worldwide(600, 7)
    places[:, 1] = 170 + places[:, 1] / 9  # across the antimeridian, some beyond 180
    earth = Instance(places, rule="GREAT_CIRCLE")
    given = greedy_edge(spatial_points(earth))
    found = improve(earth, given, stop=MaxIterations(3000))
    assert is_permutation(found.tour, 600)
    assert found.length == tour_length(earth, found.tour) < 0.95 * tour_length(earth, given)
    assert found.history[-1].length == pytest.approx(found.length, rel=1e-9)


def test_neighbors_across_the_antimeridian_and_at_the_pole() -> None:
    earth = Instance([[0, 179.5], [0, -179.5], [0, 170], [89.9, 0], [89.9, 180]], rule="GREAT_CIRCLE")
    nearest = candidate_neighbors(earth, nearest=1, per_quadrant=0)[:, 0]
    assert nearest[[0, 1, 3, 4]].tolist() == [1, 0, 4, 3]


@pytest.mark.parametrize("first", ["network", "greedy-edge", "curve"])
def test_every_first_tour_is_measured_on_the_globe(first: str) -> None:
    earth = Instance(worldwide(60, 8), rule="GREAT_CIRCLE")
    result = grn.solve(earth, first=first, improve=False)
    assert result.length == pytest.approx(tour_length(earth, result.tour), rel=1e-12)
    better = grn.solve(earth, first=first, stop=MaxIterations(2000))
    assert better.length <= result.length
    assert better.lower_bound is not None
    assert better.lower_bound <= better.length
    assert repr(better).count(" km")
