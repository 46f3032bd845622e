"""Cities in, short tour out."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from solved import VARIANTS, check, random_instance

import georoutenet as grn
from georoutenet.decode import RECOMMENDED, decode_views
from georoutenet.errors import InputError
from georoutenet.policy.weights import load_policy
from georoutenet.problem.instance import DistanceRule, Instance
from georoutenet.problem.tour import canonical, tour_length
from georoutenet.solver.edges import LIKELY
from georoutenet.solver.options import GPU_NOTE
from georoutenet.stop import Progress


def test_one_call_solves_an_instance(tmp_path: Path) -> None:
    result = grn.solve(np.random.default_rng(0).random((50, 2)), first="network")
    check(result)
    assert set(result.timings) - {"compile"} == {"load", "network", "decode", "improve", "total"}
    assert result.method == "georoutenet, beam-1000-views-4-dominance-length-60-merge"
    assert [note for note in result.notes if "compiling" not in note] == []
    assert 0.95 * result.length < result.lower_bound <= result.length
    assert result.gap_bound == pytest.approx(100 * (result.length / result.lower_bound - 1))
    assert result.gap is None
    assert result.optimum is None
    result.plot(tmp_path / "tour.png", probabilities=True)
    result.plot_progress(tmp_path / "progress.png")
    assert (tmp_path / "tour.png").stat().st_size > 10_000
    assert (tmp_path / "progress.png").stat().st_size > 5_000


def test_on_a_cpu_the_first_tour_is_greedy_edge_and_a_note_says_why() -> None:
    for device in ("cpu", "auto"):
        result = grn.solve(random_instance(40), device=device)
        if device == "cpu":
            assert result.method == "greedy edge"
            assert "first='network' asks it" in result.notes[0]
        check(result)
        assert result.lower_bound <= result.length
    assert grn.solve(random_instance(40), device="cpu", weights="georoutenet-50").edges is not None


def test_without_a_limit_walks_that_agree_end_the_search() -> None:
    instance = random_instance(40)
    found = grn.solve(instance, device="cpu")
    again = grn.solve(instance, device="cpu", seed=5)
    assert found.length == pytest.approx(again.length)
    assert found.iterations < 10_000
    np.testing.assert_array_equal(found.tour, grn.solve(instance, device="cpu").tour)


def test_a_gap_to_the_bound_stops_the_search() -> None:
    instance = random_instance(300, 4)
    loose = grn.solve(instance, stop=grn.AnyOf(grn.Gap(3.0), grn.MaxIterations(50_000)), device="cpu")
    assert loose.gap_bound is not None
    assert loose.gap_bound <= 3.0
    assert loose.iterations < 50_000
    path = grn.solve(instance, closed=False, stop=grn.MaxIterations(10), device="cpu")
    assert path.lower_bound is None
    assert path.gap_bound is None


def test_the_neural_tour_is_the_decoder_s() -> None:
    """Without local search: the recommended settings, and exactly what they give; by name the plain beam."""
    instance = random_instance(40, 3)
    result = grn.solve(instance, improve=False)
    policy = load_policy("georoutenet")
    expected = decode_views(policy, [instance], RECOMMENDED)
    assert expected.lengths is not None
    assert result.length == pytest.approx(float(expected.lengths[0, 0]), rel=1e-12)
    plain = decode_views(policy, [instance], "beam-1000")
    assert plain.lengths is not None
    named = grn.solve(instance, improve=False, decoder="beam")
    assert named.length == pytest.approx(float(plain.lengths[0, 0]), rel=1e-12)
    np.testing.assert_array_equal(canonical(result.tour), canonical(expected.tours[0, 0].numpy()))
    assert "improve" not in result.timings
    assert result.iterations == 0

    views = grn.solve(instance, improve=False, decoder="beam", views=3, beam_width=100)
    expected = decode_views(policy, [instance], "beam-100-views-3")
    assert expected.lengths is not None
    assert views.length == pytest.approx(float(expected.lengths[0, 0]), rel=1e-12)
    assert views.method == "georoutenet, beam-100-views-3"


@pytest.mark.parametrize("options", VARIANTS)
@pytest.mark.parametrize("decoder", ["greedy", "sample", "beam"])
def test_every_decoder_and_variant(decoder: str, options: dict[str, Any]) -> None:
    instance = Instance(random_instance(12, 5).coordinates.round(), rule=DistanceRule.EUC_2D)
    stop = grn.MaxIterations(30)
    plain = grn.solve(instance, decoder=decoder, beam_width=8, views=2, improve=False, **options)
    check(plain, options)
    better = grn.solve(instance, decoder=decoder, beam_width=8, views=2, stop=stop, **options)
    check(better, options)
    assert better.length <= plain.length == better.initial_length


@pytest.mark.parametrize("options", VARIANTS)
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
def test_tiny_instances(n: int, options: dict[str, Any]) -> None:
    if n == 1:
        options = {**options, "start": None if options["start"] is None else 0}
    check(grn.solve(random_instance(n, n), **options), options)
    check(grn.solve(random_instance(n, n), improve=False, **options), options)


@pytest.mark.parametrize(
    "points",
    [
        [[5, 5]] * 7,
        [[k, 0] for k in range(9)],
        [[1e-200 * k, 1e-200 * (k * k % 7)] for k in range(9)],
        [[1e12 + k, -1e12 + k * k % 5] for k in range(9)],
        [[1e150 * math.cos(k), 1e150 * math.sin(k)] for k in range(9)],
        [[k % 2, 0] for k in range(8)],
    ],
)
def test_degenerate_cities(points: list[list[float]]) -> None:
    for improve in (True, False):
        check(grn.solve(points, improve=improve))


cities = st.lists(st.tuples(st.integers(-3, 3), st.integers(-3, 3)), min_size=1, max_size=12)


RULES = [rule for rule in DistanceRule if rule is not DistanceRule.EXPLICIT]


@settings(max_examples=25, deadline=None)
@given(cities, st.sampled_from(RULES), st.booleans(), st.sampled_from([None, 1e-6, 1e6]))
def test_any_small_instance(
    points: list[tuple[int, int]], rule: DistanceRule, closed: bool, scale: float | None
) -> None:
    coordinates = np.array(points, dtype=float)
    if scale is not None and rule is DistanceRule.EUCLIDEAN:
        coordinates = coordinates * scale + scale
    result = grn.solve(Instance(coordinates, rule=rule), stop=grn.MaxIterations(20), closed=closed)
    check(result, {"closed": closed})


def test_scale_and_offset_do_not_matter() -> None:
    points = random_instance(40, 8).coordinates
    stop = grn.MaxIterations(200)
    one = grn.solve(points, stop=stop)
    other = grn.solve(points * 2.0**20 + 2.0**24, stop=stop)
    assert other.length == pytest.approx(one.length * 2.0**20, rel=1e-9)


def test_larger_instances_use_candidate_lists() -> None:
    result = grn.solve(random_instance(400, 2), first="network", stop=grn.MaxIterations(50))
    check(result)
    assert result.method == "georoutenet, greedy-candidates-16"
    assert result.edges is not None
    assert result.edges.neighbors.shape == (400, LIKELY)


def test_the_network_is_not_asked_about_very_large_instances(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("georoutenet.solver.stages.NETWORK", 60)
    result = grn.solve(random_instance(61), stop=grn.MaxIterations(10))
    check(result)
    assert result.method == "greedy edge"
    assert "network" not in result.timings
    assert "not asked above 60 cities" in result.notes[0]
    assert grn.solve(random_instance(61), stop=grn.MaxIterations(10), decoder="greedy").edges is not None


def test_a_first_tour_by_a_gpu_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU is taken for a GPU."""
    monkeypatch.setattr("georoutenet.solver.stages.gpu_possible", lambda name: name != "cpu")
    monkeypatch.setattr("georoutenet.solver.stages.choose_device", lambda name: torch.device("cpu"))
    result = grn.solve(random_instance(30), device="cuda", stop=grn.MaxIterations(10))
    assert result.method.startswith("georoutenet, beam")
    assert result.notes == [GPU_NOTE]
    told = grn.solve(random_instance(30), device="cuda", first="network", stop=grn.MaxIterations(10))
    assert not told.notes
    late = grn.solve(random_instance(30), device="cuda", max_seconds=1e-3)
    assert "network" not in late.timings
    assert GPU_NOTE not in late.notes


def test_the_bound_of_one_instance_is_tighter() -> None:
    """Of many, what each may cost counts; the tours are the same."""
    instance = random_instance(150, 4)
    one = grn.solve(instance, stop=grn.MaxIterations(100), device="cpu")
    (many,) = grn.solve_many([instance], stop=grn.MaxIterations(100), device="cpu")
    np.testing.assert_array_equal(one.tour, many.tour)
    assert many.lower_bound < one.lower_bound <= one.length


def test_same_seed_same_tour() -> None:
    instance = random_instance(80, 6)
    options: dict[str, Any] = {"decoder": "sample", "beam_width": 16, "stop": grn.MaxIterations(100)}
    first = grn.solve(instance, seed=3, **options)
    again = grn.solve(instance, seed=3, **options)
    other = grn.solve(instance, seed=4, improve=False, decoder="sample", beam_width=16)
    np.testing.assert_array_equal(first.tour, again.tour)
    assert other.length != first.initial_length


def test_an_initial_tour_takes_the_place_of_the_network() -> None:
    instance = random_instance(60, 4)
    given_tour = np.random.default_rng(0).permutation(60)
    result = grn.solve(instance, initial_tour=given_tour, stop=grn.MaxIterations(0))
    check(result)
    assert result.initial_length == tour_length(instance, given_tour)
    assert result.method == "given tour"
    assert "network" not in result.timings
    kept = grn.solve(instance, initial_tour=given_tour, improve=False)
    np.testing.assert_array_equal(kept.tour, given_tour)
    with pytest.raises(InputError, match="the tour has 3 entries for 60 cities"):
        grn.solve(instance, initial_tour=[0, 1, 2])


def test_many_instances_of_mixed_sizes() -> None:
    instances = [random_instance(n, k) for k, n in enumerate([20, 7, 20, 1, 350, 7, 2])]
    results = grn.solve_many(instances, improve=False, beam_width=50)
    for instance, result in zip(instances, results, strict=True):
        check(result)
        assert result.instance is instance
        alone = grn.solve(instance, improve=False, beam_width=50)
        assert result.length == pytest.approx(alone.length, rel=1e-9)
    for result in grn.solve_many(instances, stop=grn.MaxIterations(10), closed=False):
        check(result, {"closed": False})
    assert grn.solve_many([]) == []


@pytest.mark.parametrize("options", [{}, {"closed": False, "start": 2}])
def test_searches_side_by_side_find_the_same(options: dict[str, Any]) -> None:
    instances = [random_instance(n, n) for n in (60, 90, 60, 5, 310, 3, 60)]
    stop = grn.MaxIterations(300)
    alone, together = (
        grn.solve_many(instances, stop=stop, workers=workers, seed=4, **options) for workers in (1, 4)
    )
    for one, other in zip(alone, together, strict=True):
        check(other, options)
        assert one.iterations == other.iterations
        np.testing.assert_array_equal(one.tour, other.tour)


@pytest.mark.parametrize(
    "single", [Instance([[0, 0], [1, 1]]), "cities.csv", Path("cities.csv"), np.zeros((5, 2)), None, 3]
)
def test_solve_many_wants_many(single: Any) -> None:
    """A path would be taken for its letters, an array for its rows."""
    with pytest.raises(InputError, match=r"takes a list of problems, got .*; solve takes one"):
        grn.solve_many(single)


def test_solve_many_takes_whatever_can_be_gone_through() -> None:
    cities = np.random.default_rng(0).random((2, 9, 2))
    wanted = [result.length for result in grn.solve_many(list(cities))]
    for many in (cities, (each for each in cities), tuple(cities)):
        assert [result.length for result in grn.solve_many(many)] == wanted  # type: ignore[arg-type]


def test_a_size_that_cannot_be_solved_is_an_error_of_solve_many() -> None:
    with pytest.raises(InputError, match=r"start must be a city in 0..4, got 7"):
        grn.solve_many([random_instance(9), random_instance(5)], start=7)
    with pytest.raises(
        InputError, match="workers must be a whole number of at least 1 and at most 1,024, got 0"
    ):
        grn.solve_many([random_instance(9)], workers=0)


@pytest.mark.parametrize("n", [1, 2, 3, 30, 310])
def test_probabilities_are_asked_for_when_a_picture_needs_them(n: int) -> None:
    instance = random_instance(n, 1)
    unasked = grn.solve(instance, initial_tour=np.arange(n), stop=grn.MaxIterations(0))
    assert unasked.edges is None
    (drawn,) = unasked.plot(probabilities=True).axes[0].collections
    assert (len(drawn.get_segments()) == 0) == (n == 1)
    if n == 30:
        asked = grn.solve(instance, stop=grn.MaxIterations(0), decoder="greedy")
        assert asked.edges is not None
        (again,) = asked.plot(probabilities=True).axes[0].collections
        np.testing.assert_array_equal(drawn.get_segments(), again.get_segments())
    bare = replace(unasked, score=None)
    with pytest.raises(InputError, match="no edge probabilities: the result names no network"):
        bare.plot(probabilities=True)


def test_no_picture_of_a_search_that_was_not_made(tmp_path: Path) -> None:
    for result in (grn.solve(random_instance(20), improve=False), grn.solve(random_instance(3))):
        with pytest.raises(InputError, match="no progress to draw: no search was made"):
            result.plot_progress(tmp_path / "search.png")
    assert list(tmp_path.iterdir()) == []


def test_paths_files_and_progress(tmp_path: Path) -> None:
    file = tmp_path / "cities.csv"
    file.write_text("x,y\n0,0\n3,0\n3,4\n0,4\n1,1\n")
    seen: list[tuple[str, Progress]] = []
    stop = grn.MaxIterations(5)
    report = lambda stage, at: seen.append((stage, at))  # noqa: E731
    result = grn.solve(file, stop=stop, first="network", progress=report)
    check(result)
    assert [stage for stage, _ in seen][:2] == ["load", "network"]
    assert seen[-1][0] == "improve"
    assert seen[-1][1].length == pytest.approx(result.length)


def test_latitudes_and_longitudes_give_kilometers_and_geojson(tmp_path: Path) -> None:
    file = tmp_path / "capitals.csv"
    file.write_text(
        "city,lat,lon\nBern,46.95,7.44\nParis,48.86,2.35\nBerlin,52.52,13.40\nVienna,48.21,16.37\n"
    )
    instance = grn.read_instance(file)
    result = grn.solve(instance)
    assert 2000 < result.length < 3500
    result.save(tmp_path / "tour.geojson")
    line, *places = json.loads((tmp_path / "tour.geojson").read_text())["features"]
    assert line["geometry"]["type"] == "LineString"
    assert len(line["geometry"]["coordinates"]) == 5
    assert line["properties"]["length_km"] == pytest.approx(result.length)
    assert [place["properties"]["city"] for place in places] == result.tour.tolist()
    first = result.tour[0]
    assert instance.latlon is not None
    assert places[0]["geometry"]["coordinates"] == instance.latlon[first][::-1].tolist()
    with pytest.raises(InputError, match="GeoJSON needs latitudes and longitudes"):
        grn.solve([[0, 0], [1, 1]]).save(tmp_path / "plane.geojson")
    assert not (tmp_path / "plane.geojson").exists()


@pytest.mark.parametrize("extension", [".tour", ".csv", ".json"])
def test_saved_tours_are_read_back(extension: str, tmp_path: Path) -> None:
    result = grn.solve(random_instance(15), stop=grn.MaxIterations(5), closed=False)
    path = tmp_path / f"result{extension}"
    result.save(path)
    np.testing.assert_array_equal(grn.read_tour(path, 15), result.tour)
    if extension == ".json":
        content = json.loads(path.read_text())
        assert content["length"] == result.length
        assert content["closed"] is False
        assert content["timings"]["total"] > 0


@pytest.mark.parametrize("improve", [True, False])
@pytest.mark.parametrize(
    ("first", "method"), [("greedy-edge", "greedy edge"), ("curve", "space-filling curve")]
)
def test_the_first_tour_may_come_from_a_construction(first: str, method: str, improve: bool) -> None:
    stop = grn.MaxIterations(5)
    result = grn.solve(random_instance(30), first=first, improve=improve, stop=stop)
    check(result)
    assert result.method == method
    assert result.notes == []
    assert "network" not in result.timings


def test_the_first_tour_may_be_asked_of_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("georoutenet.solver.stages.NETWORK", 60)
    result = grn.solve(random_instance(61), stop=grn.MaxIterations(5), first="network")
    assert result.edges is not None
    assert result.notes == []


def test_a_policy_of_your_own() -> None:
    from georoutenet.model.config import PolicyConfig
    from georoutenet.policy import Policy

    policy = Policy(PolicyConfig(hidden=16, heads=2, layers=1)).eval()
    check(grn.solve(random_instance(25), weights=policy, stop=grn.MaxIterations(5)))


@pytest.mark.gpu
@pytest.mark.parametrize("decoder", ["greedy", "sample", "beam"])
def test_a_gpu_gives_tours_like_the_cpu_s(decoder: str) -> None:
    instances = [random_instance(n, k) for k, n in enumerate([30, 30, 400, 30])]
    options: dict[str, Any] = {"decoder": decoder, "beam_width": 32, "improve": False, "views": 2}
    gpu = grn.solve_many(instances, device="cuda", **options)
    cpu = grn.solve_many(instances, device="cpu", **options)
    for a, b in zip(gpu, cpu, strict=True):
        check(a)
        assert a.length == pytest.approx(b.length, rel=0.25)
    check(grn.solve(instances[0], device="cuda", closed=False, start=3), {"closed": False, "start": 3})
