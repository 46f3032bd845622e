"""Places on Earth: distances against vectors in space, maps, and what instances of degrees promise."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from georoutenet.errors import InputError
from georoutenet.io.export import degrees
from georoutenet.io.tsplib_format import format_tsp
from georoutenet.problem.globe import (
    EARTH_RADIUS_KM,
    cut_at_border,
    map_turn,
    on_sphere,
    project,
    stereographic,
)
from georoutenet.problem.instance import DistanceRule, Instance, normalize
from georoutenet.problem.tour import tour_length

RULE = DistanceRule.GREAT_CIRCLE


def angle(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    """Between two places, from their vectors in space: by the cross and the dot product."""

    def vector(place: NDArray[np.float64]) -> NDArray[np.float64]:
        latitude, longitude = math.radians(place[0]), math.radians(place[1])
        ring = math.cos(latitude)
        return np.array([ring * math.cos(longitude), ring * math.sin(longitude), math.sin(latitude)])

    u, v = vector(a), vector(b)
    return math.atan2(float(np.linalg.norm(np.cross(u, v))), float(u @ v))


def worldwide(n: int, seed: int) -> NDArray[np.float64]:
    generator = np.random.default_rng(seed)
    return np.column_stack(
        [np.degrees(np.arcsin(generator.uniform(-1, 1, n))), generator.uniform(-180, 360, n)]
    )


def test_distances_are_angles_between_vectors() -> None:
    places = worldwide(60, 1)
    places[:4] = [[90, 10], [-90, -70], [0, 180], [0, -180]]
    matrix = Instance(places, rule=RULE).distance_matrix()
    assert matrix.dtype == np.float64
    np.testing.assert_array_equal(matrix, matrix.T)
    for i in range(60):
        for j in range(60):
            # Next to the other side of the Earth the formula has half the digits: 0.1 m.
            far = matrix[i, j] > 20_000
            expected = EARTH_RADIUS_KM * angle(places[i], places[j])
            assert matrix[i, j] == pytest.approx(expected, rel=1e-12, abs=1e-4 if far else 1e-9)


def test_known_distances() -> None:
    half = math.pi * 6371.0088
    places = [[90, 0], [-90, 0], [0, 0], [0, 180], [0, -180], [0, 360], [90, 123]]
    earth = Instance(places, rule=RULE)
    assert earth.distance(0, 1) == pytest.approx(half)
    assert earth.distance(2, 3) == pytest.approx(half)
    assert earth.distance([0, 2, 3], [2, 0, 1]) == pytest.approx(half / 2)
    assert earth.distance([3, 2, 0], [4, 5, 6]) == pytest.approx(0, abs=1e-9)  # the same place by other names
    # Two places 1 m apart.
    near = Instance([[48.0, 11.0], [48.0 + 0.001 / math.radians(6371.0088), 11.0]], rule=RULE)
    assert near.distance(0, 1) == pytest.approx(0.001, rel=1e-8)
    assert near.distance(1, 1) == 0


def test_chords_order_as_distances_do() -> None:
    places = worldwide(40, 2)
    points = on_sphere(places)
    chords = np.sqrt(np.square(points[:, None] - points).sum(axis=-1))
    km = Instance(places, rule=RULE).distance_matrix()
    np.testing.assert_allclose(2 * EARTH_RADIUS_KM * np.arcsin(np.minimum(chords / 2, 1)), km, atol=1e-3)


@pytest.mark.parametrize(
    "places",
    [
        worldwide(300, 4),
        np.array([[0.0, 0.0], [0.0, 0.1], [0.0, -0.1], [0.0, 180.0]]),  # one opposite the middle
        np.array([[90.0, 0.0], [-90.0, 0.0], [90.0, 90.0]]),  # no middle
        np.array([[48.0, 11.0], [48.0, 11.0], [48.000001, 11.0]]),
        np.array([[0.0, 0.0]]),
    ],
    ids=["worldwide", "opposite", "poles", "near", "one"],
)
def test_a_stereographic_map_keeps_haversines(places: NDArray[np.float64]) -> None:
    points = stereographic(places)
    assert np.isfinite(points).all()
    sizes = 1 + np.square(points).sum(axis=1)
    haversines = np.square(points[:, None] - points).sum(axis=-1) / (sizes[:, None] * sizes)
    km = 2 * EARTH_RADIUS_KM * np.arcsin(np.sqrt(np.minimum(haversines, 1)))
    expected = Instance(places, rule=RULE).distance_matrix()
    np.testing.assert_allclose(km, expected, rtol=1e-12, atol=1e-8)


@settings(deadline=None)
@given(st.floats(-180, 180), st.floats(-60, 60))
def test_the_antimeridian_is_no_border(longitude: float, latitude: float) -> None:
    offsets = np.array([[0.0, 0.0], [0.1, 0.2], [-0.1, 0.3], [0.05, -0.25]])
    here = Instance(offsets + np.array([latitude, 0.0]), rule=RULE)
    there = offsets + np.array([latitude, longitude])
    for turned in ((there[:, 1] + 180) % 360 - 180, there[:, 1] % 360):
        moved = Instance(np.column_stack([there[:, 0], turned]), rule=RULE)
        np.testing.assert_allclose(moved.distance_matrix(), here.distance_matrix(), atol=1e-6)
        np.testing.assert_allclose(moved.plane, here.plane, atol=1e-6)
        np.testing.assert_allclose(moved.normalized(), here.normalized(), atol=1e-6)


def test_maps_of_one_city_the_poles_and_a_whole_circle() -> None:
    assert project(np.array([[48.0, 11.0]])).tolist() == [[0.0, 0.0]]
    assert np.isfinite(project(np.array([[90.0, 0.0], [90.0, 0.0]]))).all()
    circle = project(np.column_stack([np.zeros(4), [0.0, 90.0, 180.0, 270.0]]))
    assert np.ptp(circle[:, 0]) == pytest.approx(0.75 * 2 * math.pi * 6371.0088)


@pytest.mark.parametrize("pole", [90, -90])
def test_a_map_of_a_pole_is_not_torn(pole: int) -> None:
    """Of the eight neighbors on a ring around it, and the pole itself, all distances are nearly right."""
    ring = [[pole * 8 / 9, longitude] for longitude in range(-180, 180, 45)]
    earth = Instance([*ring, [pole, 0]], rule=RULE)
    seen = Instance(earth.plane).distance_matrix()
    np.testing.assert_allclose(seen, earth.distance_matrix(), rtol=0.02)


def test_the_network_sees_a_map_with_north_up() -> None:
    earth = Instance([[52.52, 13.405], [52.41, 12.53], [52.76, 13.24]], rule="GREAT_CIRCLE")
    east, north = earth.plane.T
    assert east[0] > east[2] > east[1]
    assert north[2] > north[0] > north[1]
    np.testing.assert_array_equal(earth.normalized(), normalize(earth.plane))
    arctic = Instance([[80.0, 10.0], [80.0, 14.0], [81.0, 12.0]], rule="GREAT_CIRCLE")
    east, north = arctic.plane.T
    assert east[0] < east[2] < east[1]
    assert north[2] > north[0]
    plane = Instance([[52.52, 13.405]])
    assert plane.plane is plane.coordinates


def test_an_instance_of_degrees_keeps_them() -> None:
    places = [[10.0, 190.0], [20.0, -30.0]]
    earth = Instance(places, name="two", rule="GREAT_CIRCLE")
    assert repr(earth) == "Instance('two', n=2, rule=GREAT_CIRCLE)"
    assert (earth.unit, earth.is_integer) == ("km", False)
    assert earth.coordinates.tolist() == places
    assert earth.latlon is earth.coordinates
    assert degrees(earth).tolist() == [[10.0, -170.0], [20.0, -30.0]]
    assert replace(earth, name="again").latlon is not None
    moved = earth.replaced(coordinates=[[0.0, 0.0], [0.0, 1.0]])
    assert moved.latlon is moved.coordinates
    assert tour_length(moved, [0, 1]) == pytest.approx(2 * 111.195, rel=1e-5)
    assert "<svg" in earth._repr_html_()


@pytest.mark.parametrize("place", [[90.1, 0], [-91, 0], [0, -180.5], [0, 361]])
def test_degrees_out_of_range_are_refused(place: list[float]) -> None:
    with pytest.raises(InputError, match=r"latitude must be in -90\.\.90 and .*: row 1 \(counting from 0\)"):
        Instance([[0, 0], place], rule=RULE)


def test_tsplib_has_no_such_rule() -> None:
    with pytest.raises(InputError, match=r"no rule for unrounded great-circle lengths: .* \.csv"):
        format_tsp(Instance([[0, 0], [1, 1]], rule=RULE))


@pytest.mark.parametrize(
    "places", [[[40.0, 10.0], [50.0, -5.0]], [[0.0, 179.0], [3.0, -178.0]], [[80.0, 5.0], [85.0, 90.0]]]
)
def test_a_map_goes_on_beyond_its_places(places: list[list[float]]) -> None:
    """What lies where a place lies is drawn there, and what lies beside it beside it."""
    own = np.array(places)
    drawn = project(own)
    np.testing.assert_allclose(project(own, own), drawn, atol=1e-9)
    np.testing.assert_allclose(project(own[:1] + np.array([0.0, 360.0]), own), drawn[:1], atol=1e-6)
    beside = project(own + 0.01, own)
    assert np.hypot(*(beside - drawn).T).max() < 2.0
    with_others = project(np.concatenate([own, own + 1.0]), own)
    np.testing.assert_allclose(with_others[: len(own)], drawn, atol=1e-9)


def test_lines_that_go_around_are_cut_at_the_border() -> None:
    places = np.array([[10.0, -170.0], [0.0, -60.0], [-10.0, 60.0], [5.0, 170.0]])
    turn = map_turn(places)
    assert turn == pytest.approx(2 * math.pi * EARTH_RADIUS_KM * math.cos(math.radians(1.25)))
    line = project(places)[[0, 1, 2, 3, 0]]
    parts = cut_at_border(line, turn)
    whole = np.concatenate(parts)
    kept = np.array([any((point == city).all() for city in line) for point in whole])
    np.testing.assert_array_equal(whole[kept], line)  # nothing is lost, in order
    assert len(parts) == 2
    assert len(whole) == len(line) + 2
    for before, after in itertools.pairwise(parts):
        assert before[-1, 0] == -after[0, 0] == pytest.approx(math.copysign(turn / 2, before[-1, 0]))
        assert before[-1, 1] == after[0, 1]  # it comes in at the height where it went out
    assert all(np.abs(np.diff(part[:, 0])).max(initial=0) <= turn / 2 for part in parts)
    assert map_turn(np.array([[80.0, 0.0], [85.0, 120.0], [82.0, -120.0]])) == math.inf
    assert len(cut_at_border(line, math.inf)) == 1
