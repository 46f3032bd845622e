"""``solve_batch`` on a GPU, emulated: chunks, limits, what falls back to the CPU."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import chain, repeat
from typing import Any

import numpy as np
import pytest
import torch
from emulated import emulate

import georoutenet as grn
from georoutenet.errors import GeoRouteNetWarning, InputError
from georoutenet.problem.instance import DistanceRule, Instance
from georoutenet.problem.tour import is_permutation, tour_length
from georoutenet.search.gpu import engine
from georoutenet.search.path import Ends
from georoutenet.solver import batch_gpu
from georoutenet.solver.batch import _is_good_on_gpu
from georoutenet.solver.options import SolveOptions
from georoutenet.stop import AnyOf, Budget, Gap, MaxIterations, MaxTime, NoImprovement, Progress, Stop
from tests.solver.solved import VARIANTS

CPU = torch.device("cpu")
POINTS = np.random.default_rng(1).random((5, 12, 2)) * 100


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The CPU is taken for a GPU; how many instances each search had."""
    emulate(monkeypatch)
    monkeypatch.setattr(batch_gpu, "gpus_for", lambda *_: [CPU])
    monkeypatch.setattr("georoutenet.solver.batch.gpu_possible", lambda name: name != "cpu")
    monkeypatch.setattr(batch_gpu, "walks_to_fill", lambda *_: 1)
    sizes: list[int] = []

    def count(points: torch.Tensor, *arguments: Any, **options: Any) -> engine.Found:
        sizes.append(len(points))
        return engine.improve_batch(points, *arguments, **options)

    monkeypatch.setattr(batch_gpu, "improve_batch", count)
    return sizes


def check(tours: Any, lengths: Any, options: dict[str, Any]) -> None:
    for cities, tour, length in zip(POINTS, np.asarray(tours), np.asarray(lengths), strict=True):
        assert is_permutation(tour, 12)
        assert Ends(12, **options).fits(tour)
        exact = tour_length(Instance(cities), tour, closed=options.get("closed", True))
        assert length == pytest.approx(exact, rel=1e-12)


@pytest.mark.parametrize("options", VARIANTS)
def test_the_tours_are_as_short_as_the_cpus(gpu: list[int], options: dict[str, Any]) -> None:
    tours, lengths = grn.solve_batch(POINTS, device="cuda", stop=MaxIterations(30), **options)
    assert isinstance(tours, np.ndarray)
    assert (tours.dtype, lengths.dtype) == (np.int64, np.float64)
    check(tours, lengths, options)
    exact = grn.solve_batch(POINTS, device="cpu", tours=False, **options)
    assert lengths.tolist() == pytest.approx(exact.tolist(), rel=1e-9)
    assert gpu == [5]


def test_tensors_and_lengths_alone(gpu: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    given = torch.from_numpy(POINTS).float()
    tours, lengths = grn.solve_batch(given, device="cuda", stop=MaxIterations(5))
    assert (tours.dtype, lengths.dtype, tours.device) == (torch.int64, torch.float64, CPU)
    copied, joined = list[str](), batch_gpu.GpuBatches.joined
    monkeypatch.setattr(
        batch_gpu.GpuBatches, "joined", lambda batches, name: copied.append(name) or joined(batches, name)
    )
    for keep_tours in (True, False):
        copied.clear()
        found = grn.solve_batch(given, device="cuda", stop=MaxIterations(5), tours=keep_tours)
        assert torch.equal(found[1] if keep_tours else found, lengths)
        assert ("tours" in copied) is keep_tours
    assert one_gpu(CPU, keep_tours=False).tours is None


def test_too_little_memory_halves_the_chunk(gpu: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    search = batch_gpu.improve_batch

    def greedy(points: torch.Tensor, *arguments: Any, **options: Any) -> engine.Found:
        if len(points) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return search(points, *arguments, **options)

    seen: list[int] = []
    whole, _ = grn.solve_batch(POINTS, device="cuda", stop=MaxIterations(5))
    gpu.clear()
    monkeypatch.setattr(batch_gpu, "improve_batch", greedy)
    halved, _ = grn.solve_batch(
        POINTS, device="cuda", stop=MaxIterations(5), progress=lambda _, step: seen.append(step.iterations)
    )
    np.testing.assert_array_equal(halved, whole)
    assert gpu == [2, 2, 1]
    assert seen == [2, 4, 5]
    monkeypatch.setattr(batch_gpu, "improve_batch", lambda *_, **__: greedy(torch.zeros(3, 1)))
    with pytest.raises(torch.OutOfMemoryError):
        grn.solve_batch(POINTS, device="cuda")


def test_without_time(gpu: list[int]) -> None:
    with pytest.warns(GeoRouteNetWarning, match="time ended before 5 of 5 instances were searched"):
        tours, lengths = grn.solve_batch(POINTS, device="cuda", max_seconds=0)
    check(tours, lengths, {})
    assert gpu == []


def test_the_network_makes_first_tours(gpu: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("georoutenet.solver.batch.gpu_possible", lambda name: name != "cpu")
    first, stop = list[torch.Tensor](), MaxIterations(0)
    search = batch_gpu.improve_batch
    monkeypatch.setattr(
        batch_gpu,
        "improve_batch",
        lambda *given, **options: first.append(given[1]) or search(*given, **options),
    )
    for options in VARIANTS[::3]:
        tours, lengths = grn.solve_batch(POINTS, decoder="greedy-views-1", stop=stop, **options)
        check(tours, lengths, options)
        decoded = [
            grn.solve(cities, decoder="greedy-views-1", improve=False, **options).tour for cities in POINTS
        ]
        np.testing.assert_array_equal(first.pop(), decoded)
    assert gpu == [5, 5, 5]


def test_limits() -> None:
    assert batch_gpu.limits(MaxIterations(7)) == (7, float("inf"))
    assert batch_gpu.limits(AnyOf(MaxTime(1), NoImprovement(3), MaxIterations(9))) == (9, 3)
    assert batch_gpu.limits(NoImprovement(3)) == (float("inf"), 3)


def one_gpu(
    device: torch.device, limit: Stop | None = None, left: float = float("inf"), *, keep_tours: bool = True
) -> batch_gpu.GpuBatch:
    return batch_gpu.GpuBatch(
        torch.from_numpy(POINTS),
        device,
        Ends(12),
        DistanceRule.EUCLIDEAN,
        SolveOptions(),
        limit=limit,
        left=lambda: left,
        report=lambda *_: None,
        keep_tours=keep_tours,
    )


def test_what_is_found_is_kept_where_the_instances_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """The device needs no memory for the tours of the whole batch."""
    monkeypatch.setattr(batch_gpu, "walks_to_fill", lambda *_: 1)
    batch = one_gpu(torch.device("meta"))
    for name in ("tours", "lengths", "first", "kicked", "searched", "ready"):
        assert getattr(batch, name).device == CPU, name


@pytest.mark.parametrize("kind", [torch.float64, torch.float32, torch.bfloat16])
def test_a_tensor_on_a_gpu_is_looked_through_without_a_copy(kind: torch.dtype) -> None:
    class OnGpu(torch.Tensor):
        is_cuda = True

    for value, good in ((1.0, True), (-1e30, True), (float("nan"), False), (-float("inf"), False)):
        given = torch.ones(2, 5, 2, dtype=kind)
        given[1, 2, 0] = value
        given = given.as_subclass(OnGpu)
        assert _is_good_on_gpu(given, DistanceRule.EUCLIDEAN) is good
        assert _is_good_on_gpu(given, DistanceRule.EUC_2D) is (value == 1.0)
    assert not _is_good_on_gpu(given[:0], DistanceRule.EUCLIDEAN)


def test_what_ends_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_gpu, "walks_to_fill", lambda *_: 1)

    def found(limit: Stop | None, left: float) -> tuple[float, float, int]:
        batch = one_gpu(CPU, limit, left)
        return batch.kicks, batch.idle, batch.agreed

    forever = float("inf")
    assert found(None, forever) == (12 * batch_gpu.KICKS_PER_CITY, 20_000, 7)
    assert found(MaxIterations(7), forever) == (7, forever, 0)
    assert found(MaxTime(1), 1.0) == (forever, 20_000, 7)
    for stop in (Gap(1.0), AnyOf(Gap(1.0)), AnyOf(AnyOf(Gap(1.0), Gap(2.0)), Gap(3.0)), Watch()):
        assert found(stop, forever) == found(None, forever)  # there are no bounds, nor lengths on the way
    assert found(AnyOf(Gap(1.0), MaxIterations(7)), forever) == found(MaxIterations(7), forever)


class Watch:
    """Gives neither seconds nor kicks until it says stop."""

    def __init__(self, questions: float = float("inf")) -> None:
        self.questions = questions

    def budget(self, _: Progress) -> Budget:
        self.questions -= 1
        return Budget() if self.questions > 0 else Budget(seconds=0.0)


def test_a_criterion_is_asked_between_launches(gpu: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    launches, run = list[int](), engine.Walks.run
    monkeypatch.setattr(engine.Walks, "run", lambda walks, kicks: (launches.append(kicks), run(walks, kicks)))
    tours, lengths = grn.solve_batch(POINTS, device="cuda", stop=Watch(10))
    check(tours, lengths, {})
    assert 2 < len(launches) < 10
    assert launches == [0, *[64] * (len(launches) - 1)]


def test_the_network_alone(gpu: list[int]) -> None:
    """Tours are those of ``solve``, decoded together; what is not Euclidean goes another way."""
    for decoder, options in zip(("greedy", "beam-16-views-2-dominance-merge"), VARIANTS[1::3], strict=False):
        how: dict[str, Any] = {"decoder": decoder, "improve": False, **options}
        tours, lengths = grn.solve_batch(POINTS, device="cuda", **how)
        check(tours, lengths, options)
        alone = [grn.solve(cities, **how) for cities in POINTS]
        np.testing.assert_array_equal(tours, [result.tour for result in alone])
    assert gpu == []


def test_gpus_share_a_batch(gpu: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    one, lengths = grn.solve_batch(POINTS, device="cuda", stop=MaxIterations(5))
    monkeypatch.setattr(batch_gpu, "gpus_for", lambda *_: [CPU, CPU])
    monkeypatch.setattr(batch_gpu, "ThreadPoolExecutor", lambda _: ThreadPoolExecutor(1))  # one emulator
    seen: list[tuple[int, float]] = []
    two, same = grn.solve_batch(
        POINTS,
        device="cuda",
        stop=MaxIterations(5),
        progress=lambda _, step: seen.append((step.iterations, step.length)),
    )
    np.testing.assert_array_equal(two, one)
    assert same.tolist() == lengths.tolist()
    assert sorted(gpu) == [2, 3, 5]
    assert seen[-1] == (5, pytest.approx(float(lengths.mean())))


def test_an_error_on_one_gpu_ends_the_others(gpu: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_gpu, "gpus_for", lambda *_: [CPU, CPU])
    monkeypatch.setattr(batch_gpu, "ThreadPoolExecutor", lambda _: ThreadPoolExecutor(1))
    waited: list[bool] = []

    def search(points: torch.Tensor, *_: Any, goes_on: Any, **__: Any) -> engine.Found:
        waited.append(goes_on())
        raise RuntimeError("the first")

    monkeypatch.setattr(batch_gpu, "improve_batch", search)
    with pytest.raises(RuntimeError, match="the first"):
        grn.solve_batch(POINTS, device="cuda")
    assert len(waited) == 1


def test_the_network_alone_keeps_a_limit(gpu: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock is looked at before each call of the network; a tour along a curve is called that."""

    def found() -> tuple[Any, Any]:
        return grn.solve_batch(POINTS, device="cuda", improve=False, decoder="greedy", max_seconds=0.5)

    curves = batch_gpu.curves(torch.from_numpy(POINTS)).numpy()
    monkeypatch.setattr(batch_gpu, "DECODED", 12 * 8 * 2)  # two instances at a time
    whole, _ = grn.solve_batch(POINTS, device="cuda", improve=False, decoder="greedy")
    clock = iter(range(10**6))
    monkeypatch.setattr(batch_gpu, "now", lambda: float(next(clock)))
    with pytest.warns(GeoRouteNetWarning, match="time ended before 5 of 5 instances"):
        tours, lengths = found()
    check(tours, lengths, {})
    np.testing.assert_array_equal(tours, curves)

    looks = chain([0.0] * 4, repeat(1.0))  # the third pair finds no time
    monkeypatch.setattr(batch_gpu, "now", lambda: next(looks))
    with pytest.warns(GeoRouteNetWarning, match="time ended before 1 of 5 instances"):
        tours, lengths = found()
    check(tours, lengths, {})
    np.testing.assert_array_equal(tours, [*whole[:4], curves[4]])


def test_what_the_cpu_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_gpu, "choose_device", lambda name: torch.device(name.replace("auto", "cuda")))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(engine, "problem", lambda *_: "RuntimeError: no compiler")
    engine.compiles.cache_clear()
    plain = DistanceRule.EUCLIDEAN

    def gpus(name: str, n: int, rule: DistanceRule = plain, count: int = 1, **others: Any) -> list[str]:
        options = SolveOptions(device=name, **others)
        return [str(each) for each in batch_gpu.gpus_for(options, n, rule, Ends(n), count)]

    with pytest.warns(GeoRouteNetWarning, match=r"does not run .*; the CPU searches .RuntimeError: no comp"):
        assert gpus("cuda", 9) == []
    assert gpus("cuda", 9) == []  # said once
    with pytest.warns(GeoRouteNetWarning, match="the GPU measures by .*, got ATT; the CPU searches"):
        assert gpus("cuda", 9, DistanceRule.ATT) == []
    with pytest.warns(GeoRouteNetWarning, match="5 to 1,024 cities, got 2,000; the CPU searches"):
        assert gpus("cuda", 2000) == []
    assert gpus("auto", 2000) == []
    assert gpus("cuda", 4) == []
    assert gpus("cuda", 2000, improve=False) == ["cuda:0"]
    assert gpus("cuda", 9, DistanceRule.ATT, improve=False) == []
    assert gpus("cuda", 9, improve=False, first="curve") == []
    monkeypatch.setattr(engine, "problem", lambda *_: "")
    engine.compiles.cache_clear()
    assert gpus("auto", 9) == ["cuda:0"]
    assert gpus("cuda", 9, count=5000) == ["cuda:0", "cuda:1"]
    assert gpus("cuda:1", 9, count=5000) == ["cuda:1"]
    assert gpus("cpu", 9) == []
    engine.compiles.cache_clear()


@pytest.mark.gpu
@pytest.mark.parametrize("n", [5, 12, 50, 100, 300, 1000])
def test_on_the_device(n: int) -> None:
    points = torch.rand(200, n, 2, generator=torch.Generator().manual_seed(n)).cuda()
    tours, lengths = grn.solve_batch(points, device="cuda", stop=MaxIterations(200))
    again, _ = grn.solve_batch(points, device="cuda", stop=MaxIterations(200))
    assert tours.is_cuda
    assert torch.equal(tours, again)
    assert torch.equal(tours.sort(dim=1).values, torch.arange(n, device="cuda").expand(200, n))
    few = grn.solve_batch(points[:20].cpu(), device="cpu", tours=False, stop=MaxIterations(200))
    assert float((lengths[:20].cpu() / few).mean()) < 1.03


def test_instances_too_large_for_a_rule_that_rounds(gpu: list[int]) -> None:
    for factor, device in ((1e20, "cpu"), (1e20, "cuda"), (1e90, "cuda")):
        with pytest.raises(InputError, match=r"instance 1.*too far apart for the integer rule EUC_2D"):
            grn.solve_batch(POINTS * [[[1]], [[factor]], [[1]], [[1]], [[1]]], rule="EUC_2D", device=device)
    tours, lengths = grn.solve_batch(POINTS * 1e11, rule="EUC_2D", device="cuda", stop=MaxIterations(5))
    for cities, tour, length in zip(POINTS * 1e11, tours, lengths, strict=True):
        assert tour_length(Instance(cities, rule="EUC_2D"), tour) == length
    assert gpu == [5]
