"""The search on a GPU: many odd instances at a time, checked on the device; an emulator does without one."""

from __future__ import annotations

import importlib
import random
import sys
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from georoutenet.device import gpu_possible
from georoutenet.problem.instance import DistanceRule, Instance
from georoutenet.problem.tour import is_permutation, tour_length
from georoutenet.stop import AnyOf, MaxIterations, MaxTime, NoImprovement, Stop
from research.torture import Outcome, tally

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch
    from torch import Tensor

KIND = "GPU solves" if gpu_possible("auto") else "emulated"
SIZES = [5, 5, 6, 7, 8, 9, 10, 12, 16, 20, 31, 32, 33, 50, 50, 64, 100, 100, 129, 200, 255, 256, 257, 500,
         1000, 1022, 1023, 1024]  # fmt: skip
INSTANCES, CITIES = 60_000, 3_000_000
"""On a GPU at a time, at most."""
RULES = (DistanceRule.EUCLIDEAN, DistanceRule.EUC_2D, DistanceRule.CEIL_2D)
SAME = 1e-12
"""Relative difference of lengths in float64 that were summed in another order."""


def _shape(points: Tensor, source: random.Random) -> Tensor:
    """Cities ``(B, n, 2)`` of the unit square, bent: in few places, on lines, huge, tiny, far off."""
    import torch

    _, n, _ = points.shape
    kind = source.randrange(10)
    if kind == 1:  # n cities in fewer places
        few = source.choice([1, 2, 3, max(1, n // 2), n - 1])
        points = points[:, (points[0, :, 0] * few).long().clamp_(0, few - 1)]
    elif kind == 2:  # on a line: upright, level or oblique
        across, along = source.choice([(0.0, 1.0), (1.0, 0.0), (1 / 3, 1.0), (-1.0, 1.0)])
        points = points[..., :1] * torch.tensor([across, along], dtype=points.dtype, device=points.device)
    elif kind == 3:  # a lattice with ties, each city on it once or more often
        points = (points * source.choice([2, 3, 10, 30])).floor() * source.choice([1.0, 7.0, 0.1])
    elif kind == 4:  # a whole lattice
        row = source.choice([2, 5, max(2, round(n**0.5))])
        place = torch.arange(n, device=points.device)
        lattice = torch.stack([place % row, place // row], dim=1).to(points.dtype)
        points = lattice[points[..., 0].argsort(dim=1)]
    elif kind == 5:  # clusters far smaller than the gaps between them
        points = (3 * points).round() + source.choice([1e-3, 1e-7, 1e-12]) * points.flip(1)
    elif kind == 6:  # one city far from the others
        points[:, source.randrange(n)] = source.choice([1e3, 1e8, 1e30])
    elif kind == 7:  # a circle: all on the hull
        angle = 6.283185307179586 * points[..., 0]
        points = torch.stack([angle.cos(), angle.sin()], dim=-1)
    factor = source.choice([1.0, 1.0, 1.0, 1e-300, 1e-30, 1e6, 1e9, 1e60, -1.0])
    return points * factor + source.choice([0.0, 0.0, 1.0, -1e9, 1e-9])


def _stop(source: random.Random, n: int) -> Stop:
    kicks = MaxIterations(source.choice([0, 1, 2, 17, 64, 65] + ([200, 500] if n <= 100 else [])))
    timed = AnyOf(kicks, MaxTime(source.choice([0, 0.02])))
    stops: list[Stop] = [kicks, kicks, kicks, AnyOf(kicks, NoImprovement(5)), timed]
    return source.choice(stops)


@contextmanager
def _emulated() -> Iterator[None]:
    """The CPU is taken for a GPU, its kernels run in the tests' emulator."""
    import pytest
    import torch

    from georoutenet.search.gpu.engine import why_not
    from georoutenet.solver import api, batch, batch_gpu, many_gpu

    sys.path.append(str(Path(__file__).parents[2] / "tests" / "kernels" / "cuda"))
    emulate = importlib.import_module("emulated").emulate

    def gpus_for(_: Any, n: int, rule: Any, ends: Any, count: int) -> list[torch.device]:
        return [] if why_not(n, rule, ends) else [torch.device("cpu")]

    with pytest.MonkeyPatch.context() as patch:
        emulate(patch)
        for module in (api, batch):
            patch.setattr(module, "gpu_possible", lambda _: True)
        for module in (batch_gpu, many_gpu):
            patch.setattr(module, "gpus_for", gpus_for)
        patch.setattr(batch_gpu, "walks_to_fill", lambda *_: 2)
        yield


def attack_gpu(source: random.Random, folder: Path) -> Outcome:
    """Tens of thousands of odd instances in one call: closed or open, with ends or without, maybe one bad."""
    import torch

    from georoutenet.solver.batch import solve_batch

    real = torch.cuda.is_available()
    device = torch.device("cuda" if real else "cpu")
    n = source.choice(SIZES if real else [n for n in SIZES if n <= 64] + [257])
    count = min(INSTANCES, CITIES // n) if real else source.choice([1, 2, 3])
    if source.random() < 0.2:
        count = source.choice([1, 2, 33, 1000][: 4 if real else 2])
    closed = source.random() < 0.5
    options: dict[str, Any] = {"closed": closed, "seed": source.randrange(2**64), "device": "cuda"}
    for end in ("start", "end"):
        if source.random() < 0.3:
            options[end] = source.choice([0, n - 1, source.randrange(n)])
    if not closed and n == 1024 and not {"start", "end"} <= options.keys():
        n = 1023  # a path's free city counts, and with one more the CPU would search
    rule = source.choice([DistanceRule.EUCLIDEAN, DistanceRule.EUCLIDEAN, *RULES])
    stop = _stop(source, n)
    generator = torch.Generator(device).manual_seed(source.randrange(2**63))
    points = torch.rand((count, n, 2), dtype=torch.float64, device=device, generator=generator)
    points = _shape(points, source).to(source.choice([torch.float64, torch.float64, torch.float32]))
    points = points.nan_to_num(nan=0.0, posinf=1e30, neginf=-1e30)  # beyond float32
    largest = 2.0**52 / (
        4 * n
    )  # under rules that round: beyond it they are refused, which is seen now and then
    if rule is not DistanceRule.EUCLIDEAN and float(points.abs().max()) > largest and source.random() < 0.8:
        points = points * (largest / float(points.abs().max()))
    bad = source.random() < 0.1
    if bad:
        points[source.randrange(count), source.randrange(n), source.randrange(2)] = source.choice(
            [float("nan"), float("inf"), -float("inf")]
        )
    context: AbstractContextManager[None] = nullcontext() if real else _emulated()
    with context:
        tours, lengths = solve_batch(points, rule=rule, stop=stop, **options)
        if source.random() < 0.15 and not isinstance(stop, AnyOf):
            again = solve_batch(points, rule=rule, stop=stop, tours=False, **options)
            assert torch.equal(again, lengths), "the same call gave other lengths"
    assert not bad, "an instance that is none was taken"
    tally[KIND] += count
    _check(points.double(), rule, tours, lengths, options)
    return "accepted"


def attack_gpu_sizes(source: random.Random, folder: Path) -> Outcome:
    """Thousands of odd instances of many sizes, under two rules, in one call of ``solve_many``."""
    import torch

    from georoutenet.solver.api import solve_many

    real = torch.cuda.is_available()
    sizes = [n for n in [1, 2, 3, 4, *SIZES] if n <= (300 if real else 20)]
    options: dict[str, Any] = {"closed": source.random() < 0.5, "seed": source.randrange(2**64)}
    if source.random() < 0.3:
        options["start"] = 0
    if not options["closed"] and source.random() < 0.3:
        options["end"] = source.choice([0, 1])
    rules = [DistanceRule.EUCLIDEAN, source.choice([*RULES, DistanceRule.ATT])]
    instances = []
    for n in source.sample(sizes, source.randint(1, min(8, len(sizes)))):
        count = source.choice([1, 64, 1000]) if real else source.choice([1, 2])
        generator = torch.Generator().manual_seed(source.randrange(2**63))
        points = torch.rand((count, n, 2), dtype=torch.float64, generator=generator)
        points = _shape(points, source) if n > 4 else points
        rule = source.choice(rules)
        if rule is not DistanceRule.EUCLIDEAN:
            points = points.clamp(-(2.0**40), 2.0**40)
        instances += [Instance(cities, rule=rule) for cities in points.numpy()]
    source.shuffle(instances)
    context: AbstractContextManager[None] = nullcontext() if real else _emulated()
    with context:
        results = solve_many(instances, device="cuda", stop=_stop(source, max(sizes)), **options)
    tally[KIND] += len(instances)
    assert len(results) == len(instances)
    for instance, result in zip(instances, results, strict=True):
        order = result.tour
        assert is_permutation(order, instance.n), "no permutation"
        assert order[0] == options.get("start", order[0]), "another start"
        assert order[-1] == options.get("end", order[-1]), "another end"
        exact = tour_length(instance, order, closed=options["closed"])
        assert np.isclose(result.length, exact, rtol=SAME, atol=0.0), (result.length, exact)
    return "accepted"


def _check(
    points: Tensor, rule: DistanceRule, tours: Tensor, lengths: Tensor, options: dict[str, Any]
) -> None:
    """All tours on their device, a few of them by the plain code."""
    import torch

    count, n, _ = points.shape
    assert (tours.shape, lengths.shape) == ((count, n), (count,))
    assert (tours.dtype, lengths.dtype) == (torch.int64, torch.float64)
    assert bool((tours.sort(dim=1).values == torch.arange(n, device=tours.device)).all()), "no permutation"
    assert options.get("start") is None or bool((tours[:, 0] == options["start"]).all()), "another start"
    assert options.get("end") is None or bool((tours[:, -1] == options["end"]).all()), "another end"
    measured = _measured(points, tours, rule, closed=options["closed"])
    wrong = (measured - lengths).abs() > SAME * measured
    assert not bool(wrong.any()), f"{int(wrong.sum())} lengths are wrong"
    for k in {0, count // 2, count - 1}:
        order = tours[k].cpu().numpy()
        instance = Instance(points[k].cpu().numpy(), rule=rule)
        exact = tour_length(instance, order, closed=options["closed"])
        assert np.isclose(float(lengths[k]), exact, rtol=SAME, atol=0.0), (k, float(lengths[k]), exact)


def _measured(points: Tensor, tours: Tensor, rule: DistanceRule, *, closed: bool) -> Tensor:
    """Lengths of tours, written without the product: no square of a plain distance vanishes."""
    import torch

    places = torch.stack([points[..., axis].gather(1, tours) for axis in (0, 1)])
    following = torch.cat([places[..., 1:], places[..., :1]], dim=-1)
    if not closed:
        places, following = places[..., :-1], following[..., :-1]
    across, up = (following - places).abs()
    if rule is not DistanceRule.EUCLIDEAN:  # whole numbers are not to be missed by rounding
        exact = (across * across + up * up).sqrt()
        return ((exact + 0.5).floor() if rule is DistanceRule.EUC_2D else exact.ceil()).sum(dim=1)
    low, high = torch.minimum(across, up), torch.maximum(across, up)
    return (high * (1 + (low / torch.where(high > 0, high, 1)) ** 2).sqrt()).sum(dim=1)
