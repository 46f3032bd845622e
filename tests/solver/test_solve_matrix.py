"""``solve`` under the caller's own distances."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import georoutenet as grn
from georoutenet.cli import app
from georoutenet.errors import GeoRouteNetWarning
from georoutenet.problem.tour import is_permutation
from georoutenet.solver.options import CPU_NOTE


def random_matrix(n: int, seed: int = 0) -> np.ndarray:
    matrix = np.random.default_rng(seed).integers(1, 100, (n, n))
    return np.minimum(matrix, matrix.T)


def check(result: grn.Result) -> None:
    assert is_permutation(result.tour, result.instance.n)
    assert result.length == grn.tour_length(result.instance, result.tour, closed=result.closed)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 8])
def test_small_matrices_are_solved(n: int) -> None:
    instance = grn.Instance(matrix=random_matrix(n))
    result = grn.solve(instance, stop=grn.MaxIterations(200))
    check(result)
    tours = ([0, *rest] for rest in itertools.permutations(range(1, n)))
    assert result.length == min(grn.tour_length(instance, tour) for tour in tours)
    assert type(result.length) is int


def test_without_coordinates_the_first_tour_is_constructed() -> None:
    instance = grn.Instance(matrix=random_matrix(60), name="mine")
    result = grn.solve(instance, stop=grn.MaxIterations(100), device="cpu")
    check(result)
    assert result.method == "greedy edge"
    assert result.length < result.initial_length
    assert result.notes == [CPU_NOTE]  # nobody would have asked the network
    named = grn.solve(instance, stop=grn.MaxIterations(0), weights="georoutenet-50")
    assert named.notes == ["the network needs coordinates; the first tour was constructed"]
    for options in ({"decoder": "greedy"}, {"improve": False}):
        with pytest.raises(
            grn.InputError, match="'mine' has distances but no coordinates, which the network"
        ):
            grn.solve(instance, **options)  # type: ignore[arg-type]
    with pytest.raises(grn.InputError, match="no coordinates"):
        result.plot(probabilities=True)


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 40), st.integers(0, 10**6))
def test_euclidean_distances_give_the_tours_of_the_coordinates(n: int, seed: int) -> None:
    """So few cities are solved to the end; the two searches go different ways there."""
    points = np.random.default_rng(seed).random((n, 2))
    by_points = grn.Instance(points)
    by_matrix = grn.Instance(matrix=by_points.distance_matrix())
    expected, found = (
        grn.solve(instance, stop=grn.MaxIterations(300), seed=seed, device="cpu")
        for instance in (by_points, by_matrix)
    )
    assert found.length == pytest.approx(expected.length, rel=1e-12)
    np.testing.assert_array_equal(grn.canonical(found.tour), grn.canonical(expected.tour))


def test_coordinates_let_the_network_be_asked_and_the_matrix_counts() -> None:
    points = np.random.default_rng(1).random((30, 2))
    matrix = random_matrix(30, 1)
    for improve in (True, False):
        result = grn.solve(
            grn.Instance(points, matrix=matrix), improve=improve, stop=grn.MaxIterations(50), first="network"
        )
        check(result)
        assert result.method.startswith("georoutenet")


def test_no_time_at_all() -> None:
    with pytest.warns(GeoRouteNetWarning, match="too short"):
        result = grn.solve(grn.Instance(matrix=random_matrix(200)), max_seconds=0.0)
    check(result)
    assert result.method == "nearest neighbor"


def test_many_with_and_without_coordinates() -> None:
    points = np.random.default_rng(2).random((12, 2))
    problems = [
        grn.Instance(matrix=random_matrix(12)),
        grn.Instance(points),
        grn.Instance(points, matrix=random_matrix(12, 1)),
        grn.Instance(matrix=random_matrix(5)),
    ]
    results = grn.solve_many(problems, stop=grn.MaxIterations(20), weights="georoutenet-50")
    for problem, result in zip(problems, results, strict=True):
        assert result.instance is problem
        check(result)
    assert [result.method == "greedy edge" for result in results] == [True, False, False, True]


@pytest.mark.parametrize("seed", range(5))
def test_asymmetric_problems_by_their_doubled_instance(seed: int) -> None:
    matrix = np.random.default_rng(seed).integers(1, 50, (7, 7))
    problem = grn.Asymmetric(matrix)
    result = grn.solve(problem.doubled(), stop=grn.MaxIterations(500))
    tour = problem.tour(result.tour)
    assert is_permutation(tour, 7)
    assert problem.length(tour) == result.length - 7 * problem.bonus
    tours = ([0, *rest] for rest in itertools.permutations(range(1, 7)))
    assert problem.length(tour) == min(problem.length(tour) for tour in tours)


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    grn.write_instance("own.csv", grn.Instance(matrix=random_matrix(9)))
    done = CliRunner().invoke(app, ["solve", "own.csv", "--matrix", "--json", "--output", "own.csv.tour"])
    assert done.exit_code == 0, done.output
    (result,) = json.loads(done.stdout)["results"]
    assert (result["rule"], result["n"], result["unit"]) == ("EXPLICIT", 9, None)
    assert grn.read_tour("own.csv.tour", 9).tolist() == result["tour"]
    refused = CliRunner().invoke(app, ["solve", "own.csv", "--matrix", "--plot", "own.png"])
    assert refused.exit_code == 1
    assert "no coordinates" in refused.output
    assert not Path("own.png").exists()
