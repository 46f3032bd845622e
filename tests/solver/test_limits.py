"""Time limits, the first call on a machine, and Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from solved import check, random_instance

import georoutenet as grn
from georoutenet import clock
from georoutenet.errors import GeoRouteNetWarning, InputError


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


@pytest.mark.parametrize(
    ("n", "decoder", "piece"),
    [(1436, "greedy", "edge_states"), (300, "beam", "edge_states"), (200, "beam", "node")],
)
def test_the_network_does_not_outlast_a_limit(
    n: int, decoder: str, piece: str, fake_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy core each piece of its work takes half a second: a limit is exceeded by one piece at most."""
    from georoutenet.model.georoutenet import GeoRouteNet, Layer

    instance, fake_clock.step = random_instance(n), 0.001
    grn.warm_up(device="cpu")
    owner: Any = Layer if piece == "node" else GeoRouteNet
    usual = getattr(owner, piece)

    def slow(*given: Any) -> Any:
        fake_clock.advance(0.5)
        return usual(*given)

    monkeypatch.setattr(owner, piece, slow)
    began = fake_clock.seconds
    result = grn.solve(instance, decoder=decoder, improve=False, max_seconds=1.9)
    check(result)
    assert fake_clock.seconds - began < 1.9 + 0.5 + 0.1
    assert "the time limit ended the network's work; the first tour was constructed" in result.notes
    assert result.method in ("greedy edge", "space-filling curve")
    assert grn.solve(instance, decoder=decoder, improve=False).method.startswith(f"georoutenet, {decoder}")


def test_whoever_leaves_ends_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    from georoutenet.model.georoutenet import GeoRouteNet
    from georoutenet.solver.api import solve_one
    from georoutenet.solver.options import read_options

    cancel, calls, usual = threading.Event(), [0], GeoRouteNet.edge_states

    def leaving(*given: Any) -> Any:
        calls[0] += 1
        cancel.set()
        return usual(*given)

    monkeypatch.setattr(GeoRouteNet, "edge_states", leaving)
    options = read_options("solve", {"decoder": "greedy", "improve": False})
    result = solve_one(random_instance(1436), options, cancel=cancel)
    check(result)
    assert calls[0] == 1
    assert "who asked ended the network's work; the first tour was constructed" in result.notes


def test_no_time_for_the_network_is_said() -> None:
    result = grn.solve(random_instance(100, 1), max_seconds=0.005, weights="georoutenet-50")
    check(result)
    assert result.edges is None
    assert "network" not in result.timings
    assert result.timings["construct"] > 0
    assert any("no room for the network" in note for note in result.notes)


def test_no_time_at_all_in_a_new_process_imports_neither_torch_nor_numba() -> None:
    code = (
        "import sys, numpy, georoutenet as grn\n"
        "result = grn.solve(numpy.random.default_rng(0).random((80, 2)), max_seconds=0)\n"
        "assert sorted(result.tour) == list(range(80))\n"
        "assert result.method == 'space-filling curve', result.method\n"
        "assert 'torch' not in sys.modules and 'numba' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_limit_that_is_too_short_warns(fake_clock: Any) -> None:
    """Without a search, and where the clock ends one before its first local optimum; with enough time not."""
    instance = random_instance(600)
    grn.solve(instance, stop=grn.MaxIterations(0), workers=1)  # loads and compiles
    with pytest.warns(GeoRouteNetWarning, match="600 cities: .*, not searched.*warm_up") as caught:
        result = grn.solve(instance, max_seconds=0)
    assert caught[0].filename == __file__
    assert "the time limit left no room for local search" in result.notes
    fake_clock.step = 0.01
    with pytest.warns(GeoRouteNetWarning, match="600 cities: greedy edge, hardly searched"):
        result = grn.solve(instance, max_seconds=0.4, workers=1)
    assert result.iterations == 0
    assert result.length < result.initial_length
    assert grn.solve(instance, max_seconds=50, workers=1).iterations > 0


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


@pytest.mark.parametrize("workers", [1, 3])
def test_many_instances_share_a_time_limit(workers: int, fake_clock: Any) -> None:
    grn.solve(random_instance(10))
    began = fake_clock.seconds
    results = grn.solve_many([random_instance(30, k) for k in range(6)], max_seconds=2.0, workers=workers)
    assert fake_clock.seconds - began < 6 * (2.0 + 20 * fake_clock.step)
    for result in results:
        check(result)


@pytest.mark.skipif(os.name == "nt", reason="needs POSIX signals")
@pytest.mark.parametrize("taken_by", ["the main thread", "another thread"])
def test_ctrl_c_ends_searches_side_by_side(taken_by: str) -> None:
    """A signal that another thread takes does not wake the main thread, which must look for it."""
    instances = [random_instance(100, k) for k in range(8)]
    grn.solve(instances[0], stop=grn.MaxIterations(1))
    seen = threading.Event()

    def interrupt() -> None:
        seen.wait(30)
        if taken_by == "another thread":
            signal.pthread_kill(threading.get_ident(), signal.SIGINT)
        else:
            os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    results = grn.solve_many(
        instances,
        stop=grn.MaxTime(20),
        workers=3,
        progress=lambda stage, step: seen.set() if stage == "improve" and step.iterations else None,
    )
    thread.join()
    for result in results:
        check(result)
        assert result.interrupted
    assert any(result.iterations for result in results)
    assert results[-1].iterations == 0  # never reached


@pytest.mark.filterwarnings("ignore:the time limit was too short")
def test_the_notes_name_the_first_tour_that_was_made() -> None:
    instance = random_instance(30)
    grn.solve(instance)  # loads and compiles
    for limit, method in ((None, "greedy edge"), (0, "space-filling curve")):
        result = grn.solve(instance, max_seconds=limit)
        assert result.method == method
        assert any("the first tour is greedy edge" in note for note in result.notes) is (limit is None)


def test_no_time_for_greedy_edge_is_said() -> None:
    with pytest.warns(GeoRouteNetWarning, match="too short for a good tour of 2 of 2 problems"):
        many = grn.solve_many([random_instance(30), random_instance(30)], first="greedy-edge", max_seconds=0)
    result = many[0]
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


@pytest.mark.parametrize("where", ["load_compiled", "tour_length", "Result"])
def test_ctrl_c_after_the_first_tour_returns_it(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from georoutenet.solver import stages

    usual, calls = getattr(stages, where), [0]

    def interrupted_once(*given: Any, **others: Any) -> Any:
        calls[0] += 1
        if calls[0] == 1:
            raise KeyboardInterrupt
        return usual(*given, **others)

    monkeypatch.setattr(stages, where, interrupted_once)
    result = grn.solve(random_instance(20), stop=grn.MaxIterations(1))
    check(result)
    assert calls[0] > (where != "load_compiled")
    assert result.interrupted
    assert result.method == "greedy edge"


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
