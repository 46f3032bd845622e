"""``solve_many`` on a GPU, emulated: which instances are searched together, and what is said of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from emulated import emulate

import georoutenet as grn
from georoutenet.errors import GeoRouteNetWarning
from georoutenet.problem.instance import DistanceRule, Instance
from georoutenet.problem.tour import is_permutation, tour_length
from georoutenet.search.gpu import engine
from georoutenet.solver import batch_gpu, many_gpu
from georoutenet.solver.options import SolveOptions
from georoutenet.stop import MaxIterations

RANDOM = np.random.default_rng(5)
SIZES = (5, 9, 3, 12, 70, 12, 1)


def instances(rule: DistanceRule = DistanceRule.EUCLIDEAN) -> list[Instance]:
    return [Instance(RANDOM.random((n, 2)) * 1000, rule=rule) for n in SIZES]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The CPU is taken for a GPU; the shapes that were searched together."""
    emulate(monkeypatch)
    monkeypatch.setattr(many_gpu, "gpus_for", lambda *_: [torch.device("cpu")])
    monkeypatch.setattr(batch_gpu, "walks_to_fill", lambda *_: 1)
    for module in ("api", "stages"):
        monkeypatch.setattr(f"georoutenet.solver.{module}.gpu_possible", lambda name: name != "cpu")
    monkeypatch.setattr("georoutenet.solver.stages.choose_device", lambda name: torch.device("cpu"))
    shapes: list[tuple[int, ...]] = []

    def noted(points: torch.Tensor, *given: Any, **options: Any) -> engine.Found:
        shapes.append(tuple(points.shape[:2]))
        return engine.improve_batch(points, *given, **options)

    monkeypatch.setattr(batch_gpu, "improve_batch", noted)
    return shapes


def check(problems: list[Instance], found: list[grn.Result], **options: Any) -> None:
    for instance, result in zip(problems, found, strict=True):
        assert result.instance is instance
        assert is_permutation(result.tour, instance.n)
        assert result.length == tour_length(instance, result.tour, closed=options.get("closed", True)) or (
            result.length == pytest.approx(tour_length(instance, result.tour, **options), rel=1e-12)
        )
        assert result.length <= result.initial_length


@pytest.mark.parametrize("rule", [DistanceRule.EUCLIDEAN, DistanceRule.CEIL_2D])
def test_sizes_are_searched_together(gpu: list[tuple[int, ...]], rule: DistanceRule) -> None:
    problems = instances(rule)
    found = grn.solve_many(problems, device="cuda", stop=MaxIterations(30))
    check(problems, found)
    assert sorted(gpu) == [(1, 70), (4, 12)]
    by_gpu = [result.method == "space-filling curve" and result.lower_bound is None for result in found]
    assert by_gpu == [n >= 5 for n in SIZES]
    assert [result.iterations for result in found] == [30 if n >= 5 else 0 for n in SIZES]
    if rule is DistanceRule.CEIL_2D:
        assert all(isinstance(result.length, int) for result in found)
    shortest = grn.solve_many(problems, device="cpu")
    assert [float(x.length) for x in found[:4]] == pytest.approx([float(x.length) for x in shortest[:4]])


def test_instances_share_a_launch_with_those_of_about_their_size() -> None:
    """What a walk takes of shared memory is what the largest of its launch needs."""
    sizes = (5, 64, 65, 128, 129, 256, 257, 300, 512, 513, 1024)
    problems = [Instance(RANDOM.random((n, 2))) for n in sizes]
    groups = many_gpu._groups(problems, SolveOptions())
    together = [[sizes[k] for k in positions] for positions in groups.values()]
    assert together == [[5, 64], [65, 128], [129, 256], [257, 300, 512], [513, 1024]]


def test_paths_and_fixed_ends_go_size_by_size(gpu: list[tuple[int, ...]]) -> None:
    problems = [each for each in instances() if each.n > 3]
    found = grn.solve_many(problems, device="cuda", start=2, closed=False, stop=MaxIterations(8))
    check(problems, found, closed=False)
    assert all(result.tour[0] == 2 for result in found)
    assert sorted(gpu) == [(1, 5), (1, 9), (1, 70), (2, 12)]


@pytest.mark.parametrize("first", ["curve", "greedy-edge", "network"])
@pytest.mark.parametrize("rule", [DistanceRule.EUCLIDEAN, DistanceRule.EUC_2D])
def test_ends_by_name(gpu: list[tuple[int, ...]], first: str, rule: DistanceRule) -> None:
    columns = {"id": tuple("abcdefghi")}
    problems = [
        Instance(RANDOM.random((9, 2)) * 99, rule=rule, columns=columns, id_column="id") for _ in range(2)
    ]
    found = grn.solve_many(
        problems, device="cuda", first=first, start="d", end="b", closed=False, stop=MaxIterations(4)
    )
    check(problems, found, closed=False)
    assert [(int(result.tour[0]), int(result.tour[-1])) for result in found] == [(3, 1)] * 2
    assert gpu == [(2, 9)]
    assert [result.iterations for result in found] == [4, 4]


def test_what_is_left_to_the_cpu(gpu: list[tuple[int, ...]]) -> None:
    problems = [*instances(), Instance(matrix=np.ones((6, 6)) - np.eye(6))]
    assert len(grn.solve_many(problems, stop=MaxIterations(2))) == len(problems)
    assert gpu == []  # few, and no GPU was named
    with pytest.warns(
        GeoRouteNetWarning, match="measures by .*, got EXPLICIT; the CPU searches such"
    ) as said:
        check(problems, grn.solve_many(problems, device="cuda", stop=MaxIterations(2)))
    assert len(said) == 1
    assert sorted(gpu) == [(1, 70), (4, 12)]
    gpu.clear()
    large = [*problems[:2], Instance(RANDOM.random((1025, 2)))]
    with pytest.warns(GeoRouteNetWarning, match="5 to 1,024 cities, got 1,025; the CPU searches such"):
        check(large, grn.solve_many(large, device="cuda", stop=MaxIterations(2)))
    assert gpu == [(2, 9)]
    gpu.clear()
    check(problems[:2], grn.solve_many(problems[:2], device="cuda", improve=False, first="curve"))
    assert gpu == []


def test_without_time(gpu: list[tuple[int, ...]]) -> None:
    with pytest.warns(GeoRouteNetWarning, match="the time limit was too short for a good tour of 5 of 7"):
        found = grn.solve_many(instances(), device="cuda", max_seconds=0)
    assert gpu == []
    assert [is_permutation(result.tour, result.instance.n) for result in found] == [True] * 7


def test_ctrl_c_leaves_what_was_found(gpu: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups searched before and while it came are kept; what follows is constructed."""
    launches, run = list[int](), engine.Walks.run

    def interrupted(walks: engine.Walks, kicks: int) -> None:
        launches.append(kicks)
        if len(launches) == 5:  # two of the first group, and the descent and a launch of the second
            raise KeyboardInterrupt
        run(walks, kicks)

    monkeypatch.setattr(engine.Walks, "run", interrupted)
    problems = [Instance(RANDOM.random((n, 2))) for n in (30, 90, 30, 300)]
    found = grn.solve_many(problems, device="cuda", stop=MaxIterations(100))
    check(problems, found)
    assert gpu == [(2, 30), (1, 90)]
    assert launches == [0, 64, 36, 0, 64]
    assert [result.interrupted for result in found] == [False, True, False, True]
    assert [result.iterations for result in found] == [100, 0, 100, 0]
    assert found[1].length < found[1].initial_length  # the descent was made


def test_pictures_know_the_ends(gpu: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    (result,) = grn.solve_many([instances()[3]], device="cuda", closed=False, end=4, stop=MaxIterations(2))
    assert gpu == [(1, 12)]
    monkeypatch.setattr("georoutenet.solver.network.choose_device", lambda name: torch.device("cpu"))
    edges = result.edge_marginals()
    assert edges.probabilities[(edges.edges == 4).any(axis=1)].sum() == pytest.approx(1.0)


@pytest.mark.gpu
def test_on_the_device() -> None:
    random = np.random.default_rng(2)
    problems = [Instance(random.random((int(n), 2))) for n in random.integers(5, 400, 300)]
    found = grn.solve_many(problems, device="cuda", stop=MaxIterations(300))
    check(problems, found)
    again = grn.solve_many(problems, device="cuda", stop=MaxIterations(300))
    assert all(np.array_equal(x.tour, y.tour) for x, y in zip(found, again, strict=True))
    few = [k for k in range(300) if problems[k].n < 120][:10]
    shortest = grn.solve_many([problems[k] for k in few], device="cpu")
    assert sum(found[k].length for k in few) < 1.01 * sum(result.length for result in shortest)
