from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import georoutenet as grn
from georoutenet import clock
from georoutenet.decode import RECOMMENDED, Decoding, decode_views
from georoutenet.errors import InputError
from georoutenet.policy.weights import load_policy
from georoutenet.problem.instance import DistanceRule, Instance
from georoutenet.problem.tour import canonical, is_permutation, tour_length
from georoutenet.search.path import Ends
from georoutenet.solver import network as neural
from georoutenet.solver.edges import LIKELY, likely_edges
from georoutenet.solver.options import SolveOptions
from georoutenet.stop import Progress

VARIANTS: list[dict[str, Any]] = [
    {"closed": closed, "start": start, "end": end}
    for closed in (True, False)
    for start in (None, 1)
    for end in (None, 0)
]


def random_instance(n: int, seed: int = 0, **options: Any) -> Instance:
    return Instance(np.random.default_rng(seed).random((n, 2)) * 1000, **options)


def check(result: grn.Result, options: dict[str, Any] | None = None) -> None:
    options = options or {}
    instance, closed = result.instance, options.get("closed", True)
    assert is_permutation(result.tour, instance.n)
    assert result.length == tour_length(instance, result.tour, closed=closed)
    assert type(result.length) is (int if instance.rule.is_integer else float)
    assert options.get("start") in (None, result.tour[0])
    assert options.get("end") in (None, result.tour[-1])
    lengths = [step.length for step in result.history]
    assert lengths == sorted(lengths, reverse=True)
    assert result.history[-1].length == pytest.approx(result.length, rel=1e-9, abs=1e-12)
    assert all(seconds >= 0 for seconds in result.timings.values())
    stages = [seconds for stage, seconds in result.timings.items() if stage not in ("total", "compile")]
    assert sum(stages) <= result.timings["total"] + 0.01


def test_one_call_solves_an_instance(tmp_path: Path) -> None:
    result = grn.solve(np.random.default_rng(0).random((50, 2)), first="network")
    check(result)
    assert set(result.timings) - {"compile"} == {"load", "network", "decode", "improve", "total"}
    assert result.method == "georoutenet, beam-1000-views-4-dominance-length-60"
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


@pytest.mark.parametrize("limit", [0.0, 0.001, 2.0, 10.0])
@pytest.mark.parametrize("n", [5, 60, 2000])
def test_time_limits(n: int, limit: float, fake_clock: Any) -> None:
    instance = random_instance(n, 1)
    grn.solve(random_instance(10))  # imports and compiled code
    began = fake_clock.seconds
    result = grn.solve(instance, max_seconds=limit)
    seconds = fake_clock.seconds - began
    check(result)
    assert result.timings["total"] == pytest.approx(seconds, abs=3 * fake_clock.step)
    assert seconds < limit + 20 * fake_clock.step  # looks at the clock after the limit
    proven = result.gap_bound is not None and result.gap_bound < 1e-7
    if limit >= 2.0 and not proven:
        assert seconds >= limit
        assert result.timings["improve"] > 0.5 * limit


def test_no_time_for_the_network_is_said() -> None:
    result = grn.solve(random_instance(100, 1), max_seconds=0.005, weights="georoutenet-50")
    check(result)
    assert result.edges is None
    assert "network" not in result.timings
    assert result.timings["construct"] > 0
    assert any("no room for the network" in note for note in result.notes)


def test_a_short_limit_in_a_new_process_imports_neither_torch_nor_numba() -> None:
    code = (
        "import sys, numpy, georoutenet as grn\n"
        "result = grn.solve(numpy.random.default_rng(0).random((80, 2)), max_seconds=0.05)\n"
        "assert sorted(result.tour) == list(range(80))\n"
        "assert result.method == 'space-filling curve', result.method\n"
        "assert 'torch' not in sys.modules and 'numba' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


FIRST_CALL = """
import json, sys, numpy, georoutenet as grn
cities = numpy.random.default_rng(0).random((150, 2))
result = grn.solve(cities, max_seconds=float(sys.argv[1]))
assert sorted(result.tour) == list(range(150))
print(json.dumps([result.timings, result.notes]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("limit", [2.0, 8.0])  # without and with the network
def test_the_first_call_on_a_machine_says_that_it_compiled(limit: float, tmp_path: Path) -> None:
    """With an empty cache the code is compiled, which the limit does not count: a search has its time."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    arguments = [sys.executable, "-c", FIRST_CALL, str(limit)]
    found = []
    for _ in range(2):
        done = subprocess.run(arguments, env=environment, capture_output=True, text=True, check=True)
        found.append(json.loads(done.stdout))
    timings, notes = found[0]
    assert "compile" in timings
    assert any("compiling, once on this machine" in note for note in notes)
    assert timings["improve"] > 0
    timings, notes = found[1]  # now from the cache
    assert "compile" not in timings
    assert not any("compiling" in note for note in notes)


def test_the_clock_stands_still_while_compiling(fake_clock: Any) -> None:
    import numba
    from numba.core import event

    clock.watch_compiler()
    fake_clock.step = 0.0
    began, compiled = clock.now(), clock.compiled_seconds()
    fake_clock.advance(2.0)
    with event.trigger_event("numba:compile"):
        fake_clock.advance(3.0)
        with event.trigger_event("numba:compile"):  # a callee
            fake_clock.advance(4.0)
        assert clock.now() - began == pytest.approx(2.0)
    fake_clock.advance(5.0)
    assert clock.now() - began == pytest.approx(2.0 + 5.0)
    assert clock.compiled_seconds() - compiled == pytest.approx(3.0 + 4.0)

    fake_clock.step, compiled = 1.0, clock.compiled_seconds()
    numba.njit(lambda x: x + 1)(1)
    assert clock.compiled_seconds() > compiled  # Numba still tells when it compiles


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


@pytest.mark.parametrize("workers", [1, 3])
def test_many_instances_share_a_time_limit(workers: int, fake_clock: Any) -> None:
    grn.solve(random_instance(10))
    began = fake_clock.seconds
    results = grn.solve_many([random_instance(30, k) for k in range(6)], max_seconds=2.0, workers=workers)
    assert fake_clock.seconds - began < 6 * (2.0 + 20 * fake_clock.step)
    for result in results:
        check(result)


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


@pytest.mark.skipif(os.name == "nt", reason="needs POSIX signals")
def test_ctrl_c_ends_searches_side_by_side() -> None:
    instances = [random_instance(100, k) for k in range(8)]
    grn.solve(instances[0], stop=grn.MaxIterations(1))
    seen = threading.Event()

    def interrupt() -> None:
        seen.wait(30)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    results = grn.solve_many(
        instances,
        stop=grn.MaxTime(60),
        workers=3,
        progress=lambda stage, step: seen.set() if stage == "improve" and step.iterations else None,
    )
    thread.join()
    for result in results:
        check(result)
        assert result.interrupted
    assert any(result.iterations for result in results)
    assert results[-1].iterations == 0  # never reached


def test_a_size_that_cannot_be_solved_is_an_error_of_solve_many() -> None:
    with pytest.raises(InputError, match=r"start must be a city in 0..4, got 7"):
        grn.solve_many([random_instance(9), random_instance(5)], start=7)
    with pytest.raises(InputError, match="workers must be a whole number of at least 1, got 0"):
        grn.solve_many([random_instance(9)], workers=0)


@pytest.mark.parametrize("n", [1, 2, 3, 30, 310])
def test_probabilities_are_asked_for_when_a_picture_needs_them(n: int) -> None:
    instance = random_instance(n, 1)
    unasked = grn.solve(instance, initial_tour=np.arange(n), stop=grn.MaxIterations(0))
    assert unasked.edges is None
    drawn = unasked.plot(probabilities=True).axes[0].collections
    assert len(drawn) == (0 if n == 1 else 1)
    if n == 30:
        asked = grn.solve(instance, stop=grn.MaxIterations(0), decoder="greedy")
        assert asked.edges is not None
        segments = asked.plot(probabilities=True).axes[0].collections[0].get_segments()
        np.testing.assert_array_equal(drawn[0].get_segments(), segments)
    bare = replace(unasked, score=None)
    if n > 1:
        with pytest.raises(InputError, match="no edge probabilities to draw"):
            bare.plot(probabilities=True)


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


def test_too_large_a_request_says_what_would_fit() -> None:
    with pytest.raises(InputError, match=r"beam over 3,000,000 cities needs about .* cities would fit"):
        neural.check_memory(3_000_000, Decoding("beam"), "cpu")
    wide = choose(100, beam_width=10**9)
    with pytest.raises(InputError, match=r"a width of about ([\d,]+) would fit") as caught:
        neural.check_memory(100, wide, "cpu", available=10**9)
    width = int(str(caught.value).split("about ")[-1].split(" would")[0].replace(",", ""))
    neural.check_memory(100, choose(100, beam_width=int(0.99 * width)), "cpu", available=10**9)
    neural.check_memory(100_000, choose(100_000, decoder="greedy"), "cpu", available=2**31)


def test_likely_edges_are_softmax_of_the_scores() -> None:
    policy = load_policy("georoutenet-50")
    coordinates = torch.rand(2, 30, 2, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        dense, sparse = policy(coordinates), policy(coordinates, candidates=29)
    logits = dense.logits.clone()
    logits[:, torch.arange(30), torch.arange(30)] = -torch.inf
    expected = torch.softmax(logits, dim=2)
    for k in range(2):
        for scores in (dense, sparse):
            found = likely_edges(scores)[k]
            assert found.neighbors.shape == (30, LIKELY)
            rows = np.arange(30)[:, None]
            np.testing.assert_allclose(
                found.probabilities, expected[k].numpy()[rows, found.neighbors], rtol=1e-4, atol=1e-6
            )
            assert (np.diff(found.probabilities, axis=1) <= 0).all()


def choose(n: int, device: str = "cpu", **options: Any) -> Decoding:
    return neural.choose_decoding(n, SolveOptions(**options), device)


@pytest.mark.parametrize("device", ["cpu", "cuda", "cuda:1"])
def test_the_default_decoder_is_the_recommended_one_on_every_device(device: str) -> None:
    assert choose(50, device, improve=False) == RECOMMENDED
    assert not choose(50, device, decoder="beam").dominance  # the paper's


@pytest.mark.parametrize(
    ("n", "options", "expected"),
    [
        (50, {}, "beam-1000-views-4-dominance-length-60"),
        (200, {}, "beam-1000-dominance-length-60"),
        (200, {"improve": False}, "beam-1000-views-2-dominance-length-60"),
        (301, {}, "greedy-candidates-16"),
        (50, {"decoder": "beam"}, "beam-1000-views-4"),
        (50, {"decoder": "beam", "improve": False}, "beam-1000"),
        (301, {"decoder": "beam"}, "beam-1000"),
        (301, {"decoder": "sample"}, "sample-16-candidates-16"),
        (50, {"decoder": "greedy", "views": 3}, "greedy-views-3"),
        (50, {"decoder": "beam-7-views-3-finalists-2"}, "beam-7-views-3-finalists-2"),
        (301, {"decoder": "sample-64"}, "sample-64-candidates-16"),
        (301, {"decoder": "greedy-candidates-5-bfloat16"}, "greedy-candidates-5-bfloat16"),
        (50, {"decoder": Decoding("beam", width=9)}, "beam-9"),
    ],
)
def test_what_is_not_asked_for_is_chosen_by_size(n: int, options: dict[str, Any], expected: str) -> None:
    assert str(choose(n, **options)) == expected


@pytest.mark.parametrize("decoder", ["beam-30-views-6-finalists-2-dominance-length-60", "sample-9-views-2"])
def test_a_decoder_in_full_is_what_decode_views_does(decoder: str) -> None:
    instance = random_instance(40, 3)
    result = grn.solve(instance, improve=False, decoder=decoder)
    expected = decode_views(load_policy("georoutenet"), [instance], decoder, together=1)
    assert expected.lengths is not None
    assert result.length == pytest.approx(float(expected.lengths[0, 0]), rel=1e-12)
    assert result.method == f"georoutenet, {decoder}"
    same = grn.solve(instance, improve=False, decoder=Decoding.parse(decoder))
    np.testing.assert_array_equal(same.tour, result.tour)


def test_products_in_bfloat16_leave_the_policy_as_it_was() -> None:
    policy, instance = load_policy("georoutenet-50"), random_instance(30)
    seen: list[torch.dtype | None] = []
    policy.register_forward_pre_hook(lambda *_: seen.append(policy.compute_dtype))
    check(grn.solve(instance, weights=policy, improve=False, decoder="greedy-bfloat16"))
    check(grn.solve(instance, weights=policy, improve=False, decoder="greedy-views-1"))
    assert seen == [torch.bfloat16, None]
    assert policy.compute_dtype is None


def test_time_ends_the_views_and_the_result_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    policy, instance = load_policy("georoutenet-50"), random_instance(20)
    decoding = Decoding("beam", views=5, width=10)
    found = neural.neural_tours(policy, [instance], decoding, Ends(20), remaining=lambda: -1.0)
    assert (str(found.decoding), found.complete) == ("beam-10", False)
    assert neural.neural_tours(policy, [instance], decoding, Ends(20)).decoding == decoding
    monkeypatch.setattr("georoutenet.solver.stages.Group._remaining", lambda _: 1e-9)
    monkeypatch.setattr("georoutenet.solver.stages.Group._affordable", lambda *_: True)
    result = grn.solve(instance, decoder="beam-40-views-5-finalists-2", max_seconds=60, improve=False)
    check(result)
    assert result.method == "georoutenet, beam-40"
    assert result.notes[0] == "time for 1 of 5 views and no more for all finalists"


def test_estimates_do_not_depend_on_earlier_calls() -> None:
    before = [neural.seconds_per_view(n, choose(n)) for n in (50, 300, 500)]
    grn.solve_many([random_instance(n) for n in (100, 350)], improve=False)
    assert [neural.seconds_per_view(n, choose(n)) for n in (50, 300, 500)] == before


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


def test_no_time_for_greedy_edge_is_said() -> None:
    result = grn.solve_many([random_instance(30), random_instance(30)], first="greedy-edge", max_seconds=0)[0]
    check(result)
    assert result.method == "space-filling curve"
    assert sum("no time for greedy edge" in note for note in result.notes) == 1


def test_warming_up_loads_what_solve_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    grn.warm_up(device="cpu")
    monkeypatch.setattr("georoutenet.policy.weights.load_policy", None)  # it is kept
    check(grn.solve(random_instance(20), stop=grn.MaxIterations(1), device="cpu"))
    grn.warm_up(None, device="cpu")
    with pytest.raises(InputError, match="no weights 'georoutenet-7'"):
        grn.warm_up("georoutenet-7")


@pytest.mark.parametrize("where", ["stages.load", "stages.neural_tours", "network.likely_edges"])
def test_ctrl_c_in_the_network_returns_a_tour(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(f"georoutenet.solver.{where}", interrupted)
    results = grn.solve_many([random_instance(20), random_instance(30)], first="network")
    for result in results:
        check(result)
        assert result.interrupted
        assert result.method == "space-filling curve"


def test_ctrl_c_in_the_construction_returns_a_tour(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("georoutenet.solver.stages.NETWORK", 10)
    monkeypatch.setattr("georoutenet.search.construct.greedy_edge", interrupted)
    result = grn.solve(random_instance(20))
    check(result)
    assert result.interrupted


@pytest.mark.skipif(os.name == "nt", reason="needs POSIX signals")
def test_ctrl_c_in_the_search_returns_the_best_so_far() -> None:
    instance = random_instance(300, 2)
    seen = threading.Event()

    def interrupt() -> None:
        seen.wait(30)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    result = grn.solve(
        instance, stop=grn.MaxTime(60), progress=lambda stage, _: seen.set() if stage == "improve" else None
    )
    thread.join()
    check(result)
    assert result.interrupted
    assert result.length < result.initial_length


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
