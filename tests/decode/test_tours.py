"""Greedy and sampled tours: the Numba kernels against the reference, and both against the policy."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from scipy import stats

from georoutenet.decode import greedy, rollout, sample
from georoutenet.decode.reference import draw
from georoutenet.decode.replay import replay
from georoutenet.errors import InputError
from georoutenet.model.scores import Scores

SHAPES = [(1, 1), (3, 2), (2, 3), (5, 7), (4, 16), (3, 17), (2, 33), (2, 61), (6, 130)]


def example(batch: int, n: int, *, ties: bool = False, seed: int = 0) -> Scores:
    generator = torch.Generator().manual_seed(1000 * seed + 10 * n + batch)
    points = torch.rand(batch, n, 2, generator=generator)
    logits = -20 * torch.cdist(points, points) + torch.randn(batch, n, n, generator=generator)
    start = torch.randn(batch, n, generator=generator)
    if ties:
        logits = torch.randint(-2, 3, (batch, n, n), generator=generator).float()
        start = torch.zeros(batch, n)
    return Scores(torch.log_softmax(start, dim=1), logits)


def assert_permutations(tours: torch.Tensor) -> None:
    n = tours.shape[-1]
    assert tours.dtype == torch.int64
    assert (tours.sort(dim=-1).values == torch.arange(n)).all()


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize(("batch", "n"), SHAPES)
def test_greedy_numba_equals_reference(batch: int, n: int, ties: bool) -> None:
    scores = example(batch, n, ties=ties)
    fast, slow = greedy(scores, backend="numba"), greedy(scores, backend="reference")
    assert_permutations(fast.tours)
    assert fast.tours.shape == (batch, 1, n)
    assert (fast.tours == slow.tours).all()
    torch.testing.assert_close(fast.log_probabilities, slow.log_probabilities, rtol=1e-5, atol=1e-5)


def test_greedy_takes_the_most_probable_city_at_every_step() -> None:
    scores = example(4, 12)
    for b, tour in enumerate(greedy(scores).tours[:, 0].tolist()):
        assert tour[0] == int(scores.start[b].argmax())
        for step in range(11):
            rest = scores.logits[b, tour[step], tour[step + 1 :]]
            assert rest.argmax() == 0


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize(("batch", "n"), SHAPES)
def test_sample_numba_equals_reference(batch: int, n: int, ties: bool) -> None:
    scores = example(batch, n, ties=ties)
    fast = sample(scores, 5, seed=7, temperature=2.0, backend="numba")
    slow = sample(scores, 5, seed=7, temperature=2.0, backend="reference")
    assert_permutations(fast.tours)
    assert fast.tours.shape == (batch, 5, n)
    assert (fast.tours == slow.tours).all()
    torch.testing.assert_close(fast.log_probabilities, slow.log_probabilities, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("samples", [1, 2, 3])
@pytest.mark.parametrize("spread", [10.0, 60.0])
def test_samples_of_sharp_scores_equal_reference(samples: int, spread: float) -> None:
    """Rows in which what is left is worth far less, or far more, than what the last step chose."""
    scores = example(3, 40)
    generator = torch.Generator().manual_seed(5)
    level = 500 * torch.randn(3, 40, 1, generator=generator)  # of a row: it changes no probability
    scores = Scores(scores.start, spread * scores.logits + level)
    fast = sample(scores, samples, seed=3, backend="numba")
    slow = sample(scores, samples, seed=3, backend="reference")
    assert (fast.tours == slow.tours).all()
    torch.testing.assert_close(fast.log_probabilities, slow.log_probabilities, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("backend", ["numba", "reference"])
def test_log_probabilities_are_the_replayed_ones(backend: str) -> None:
    scores = example(3, 20)
    for decoded in (greedy(scores, backend=backend), sample(scores, 6, seed=1, backend=backend)):
        chance, _ = replay(scores.start.double(), scores.logits.double(), decoded.tours)
        torch.testing.assert_close(decoded.log_probabilities.double(), chance, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("fixed", [{}, {"start": 2}, {"end": 1}, {"start": 3, "end": 0}])
def test_sampling_follows_the_enumerated_tour_probabilities(fixed: dict[str, int]) -> None:
    n, count = 4, 40_000
    scores = example(2, n, seed=3)
    scores = Scores(scores.start, scores.logits / 8)  # flat enough for every tour to be expected
    decoded = sample(scores, count, seed=11, **fixed)
    for b in range(2):
        expected = {}
        for tour in itertools.permutations(range(n)):
            if fixed.get("start", tour[0]) != tour[0] or fixed.get("end", tour[-1]) != tour[-1]:
                continue
            starts = [i for i in range(n) if i == fixed.get("start", i) and i != fixed.get("end")]
            chance = torch.softmax(scores.start[b, starts].double(), 0)[starts.index(tour[0])].item()
            for step in range(n - 1):
                rest = [j for j in tour[step + 1 :] if step == n - 2 or j != fixed.get("end")]
                chance *= torch.softmax(scores.logits[b, tour[step], rest].double(), 0)[
                    rest.index(tour[step + 1])
                ].item()
            expected[tour] = chance
        assert sum(expected.values()) == pytest.approx(1)
        code = (decoded.tours[b] * n ** torch.arange(n)).sum(1)
        codes = {sum(c * n**k for k, c in enumerate(tour)): p for tour, p in expected.items()}
        assert set(code.unique().tolist()) <= set(codes)
        observed = np.array([int((code == key).sum()) for key in codes])
        chances = np.array(list(codes.values()))
        result = stats.chisquare(observed, count * chances / chances.sum())
        assert result.pvalue > 1e-4


def test_same_seed_same_tours_whatever_batch_and_threads() -> None:
    scores = example(6, 25)
    whole = sample(scores, 4, seed=5).tours
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        assert (sample(scores, 4, seed=5).tours == whole).all()
        torch.set_num_threads(3)
        assert (sample(scores, 4, seed=5).tours == whole).all()
    finally:
        torch.set_num_threads(threads)
    part = Scores(scores.start[:2], scores.logits[:2])
    assert (sample(part, 2, seed=5).tours == whole[:2, :2]).all()
    assert not (sample(scores, 4, seed=6).tours == whole).all()


def test_exponentials_are_exact_to_the_last_bits() -> None:
    from georoutenet.decode.cpu.math import exponentials

    for size in (1, 7, 64, 1001):
        row = -np.random.default_rng(size).exponential(40, (2, size)).astype(np.float32)
        out, scratch = np.zeros((3, size)), np.empty(size)
        exponentials(row[None], 0, 1, 0.0, out, 2, scratch)
        np.testing.assert_allclose(out[2], np.exp(row[1].astype(np.float64)), rtol=5e-16)
        assert not out[:2].any()
    out, scratch = np.zeros((1, 4)), np.empty(4)
    row = np.array([[[-np.inf, -1e30, 0.0, 9.0]]], dtype=np.float32)
    exponentials(row, 0, 0, 0.0, out, 0, scratch)
    np.testing.assert_allclose(out[0], [np.exp(-700), np.exp(-700), 1.0, 1.0], rtol=5e-16)
    exponentials(row, 0, 0, float(np.float32(-1e30)), out, 0, scratch)
    assert (out == 1.0).all()  # all at the floor are equal


def test_row_top_orders_floats() -> None:
    from georoutenet.decode.cpu.math import row_top

    for top in (-np.inf, -1e31, -2.5, -0.0, 0.0, 1e-30, 3.0):
        row = np.array([[[-np.inf, top, -1e32]]], dtype=np.float32)
        assert row_top(row.view(np.int32), 0, 0) == max(np.float32(top), np.float32(-1e30))


@pytest.mark.parametrize("backend", ["numba", "reference"])
@pytest.mark.parametrize("fixed", [{"start": 4}, {"end": 2}, {"start": 0, "end": 5}, {"start": [1, 2, 3]}])
def test_fixed_ends(backend: str, fixed: dict[str, int | list[int]]) -> None:
    scores = example(3, 6)
    for decoded in (
        greedy(scores, backend=backend, **fixed),
        sample(scores, 9, seed=1, backend=backend, **fixed),
    ):
        assert_permutations(decoded.tours)
        if "start" in fixed:
            assert (decoded.tours[:, :, 0] == torch.tensor(fixed["start"]).reshape(-1, 1)).all()
        if "end" in fixed:
            assert (decoded.tours[:, :, -1] == fixed["end"]).all()
        assert torch.isfinite(decoded.log_probabilities).all()


@pytest.mark.parametrize("backend", ["numba", "reference"])
@pytest.mark.parametrize("fill", [5000.0, -5000.0, -torch.inf])
def test_underflow_and_impossible_cities(backend: str, fill: float) -> None:
    scores = example(2, 9)
    logits = scores.logits.clone()
    logits[:, :, :3] = fill
    decoded = sample(Scores(scores.start, logits), 20, seed=4, backend=backend)
    assert_permutations(decoded.tours)
    assert not decoded.log_probabilities.isnan().any()
    if fill < 0:  # the impossible cities come last, except as a first city
        assert (decoded.tours[:, :, -2:] < 3).all()
        assert_permutations(greedy(Scores(scores.start, logits), backend=backend).tours)


def test_scores_below_the_floor_are_equal_to_it() -> None:
    logits = torch.zeros(1, 20, 20)
    logits[0, :, 5:] = torch.tensor([-1e31, -torch.inf, -1e30, -2e30, -1e30] * 3)
    start = torch.full((1, 20), -torch.inf)
    start[0, 3] = -1e30
    for n in (9, 20):
        scores = Scores(start[:, :n], logits[:, :n, :n])
        fast, slow = greedy(scores, backend="numba"), greedy(scores, backend="reference")
        assert fast.tours.tolist() == slow.tours.tolist()
        assert fast.tours[0, 0, 5:].tolist() == list(range(5, n))
        torch.testing.assert_close(fast.log_probabilities, slow.log_probabilities)
        fixed = {"start": 7, "end": 6}
        assert (greedy(scores, **fixed).tours == greedy(scores, backend="reference", **fixed).tours).all()
        drawn = (sample(scores, 40, seed=1, backend=backend).tours for backend in ("numba", "reference"))
        assert (next(drawn) == next(drawn)).all()


def test_infinite_scores_are_the_largest() -> None:
    scores = example(2, 20)
    logits = scores.logits.clone()
    logits[:, :, 7] = torch.inf
    assert (greedy(Scores(scores.start, logits)).tours[:, :, :2] == 7).any(dim=2).all()


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_not_a_number_is_an_error(sign: float) -> None:
    for n in (5, 30):
        scores = example(2, n)
        for part in ("start", "logits"):
            broken = {"start": scores.start.clone(), "logits": scores.logits.clone()}
            broken[part][1] = math.copysign(torch.nan, sign)
            with pytest.raises(InputError, match="not numbers"):
                greedy(Scores(**broken))
            with pytest.raises(InputError, match="not numbers"):
                sample(Scores(**broken), 3, seed=1)


def test_draw_never_takes_a_forbidden_city_even_at_the_top_of_the_range() -> None:
    rows = torch.tensor([[0.0, 1.0, -torch.inf], [-torch.inf, 0.0, -torch.inf]])
    assert draw(rows, torch.tensor([1 - 2.0**-52] * 2, dtype=torch.float64)).tolist() == [1, 1]
    assert draw(rows, torch.zeros(2, dtype=torch.float64)).tolist() == [0, 1]


def test_draws_pass_the_open_cities_in_their_order() -> None:
    from georoutenet.decode.cpu.tours import BLOCK, _passed, _running_sums

    n = 3 * BLOCK
    generator = np.random.default_rng(1)
    weights, mask = np.zeros((2, n)), np.zeros((1, n))
    weights[1, : n - 5], mask[0] = generator.random(n - 5), generator.random(n) < 0.4
    weights[1, [3, 20]] = 0.0  # open and of no weight: never drawn
    mask[0, [3, 20]] = 1
    mask[0, BLOCK : 2 * BLOCK - 1] = 0
    sums = np.empty(3)
    total = _running_sums(weights, 1, mask, sums)
    running = (weights[1] * mask[0]).cumsum()
    assert total == pytest.approx(running[-1], rel=1e-15)
    for share in [0.0, *generator.random(300), 1 - 2.0**-52]:
        city = _passed(weights, 1, mask, sums, share * total)
        assert mask[0, city] == 1
        assert weights[1, city] > 0
        assert city == np.argmax(running > share * total) or share > 0.999
    sums[2] += 1e-12  # as if rounding had left a target above the last city
    assert _passed(weights, 1, mask, sums, total + 5e-13) == np.flatnonzero(weights[1] * mask[0])[-1]


@pytest.mark.parametrize("n", [1, 5, 16, 17, 33, 101])
def test_first_largest_is_the_arg_max_of_what_is_open(n: int) -> None:
    from georoutenet.decode.cpu.math import first_largest

    generator = np.random.default_rng(n)
    for trial in range(40):
        scores = generator.normal(size=n) if trial % 2 else generator.integers(-3, 4, n)
        allowed = generator.random(n) < generator.choice([0.1, 0.5, 1.0])
        allowed[int(generator.integers(n))] = True
        wanted = np.where(allowed, scores, -np.inf).argmax()
        rows = np.stack([scores, -scores])[None].astype(np.float32)
        assert first_largest(rows.view(np.int32), 0, 0, allowed[None].astype(np.uint8)) == wanted


def test_first_largest_takes_the_lowest_of_equals() -> None:
    from georoutenet.decode.cpu.math import first_largest

    values = np.array([[[-np.inf, -1.0, -0.0, 0.0, 2.5, 2.5, -1e31, np.inf, -1e30]]], np.float32)
    for allowed, wanted in [
        ({0, 1}, 1),
        ({2, 3}, 2),
        ({1, 3}, 3),
        ({4, 5}, 4),
        ({7, 1}, 7),
        ({6, 8}, 6),  # below the floor, so equal to it
        ({0, 6, 8}, 0),
    ]:
        mask = np.array([[j in allowed for j in range(9)]], np.uint8)
        assert first_largest(values.view(np.int32), 0, 0, mask) == wanted


def test_rollout_is_samples_then_greedy() -> None:
    scores = example(3, 10)
    tours = rollout(scores.start, scores.logits, 4, 9)
    assert tours.shape == (3, 5, 10)
    assert (tours[:, :4] == sample(scores, 4, seed=9).tours).all()
    assert (tours[:, 4:] == greedy(scores).tours).all()
    assert (rollout(scores.start, scores.logits, samples=4, seed=torch.tensor([9])) == tours).all()
    assert (rollout(scores.start, scores.logits, 0, 9) == tours[:, 4:]).all()
    grads = scores.logits.clone().requires_grad_()
    assert not rollout(scores.start, grads, 2, 1).requires_grad


def test_errors_say_what_is_allowed() -> None:
    scores = example(2, 5)
    with pytest.raises(InputError, match="'cuda'; allowed: auto, reference, numba, triton"):
        greedy(scores, backend="cuda")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="needs scores on a CUDA device"):
        greedy(scores, backend="triton")
    with pytest.raises(InputError, match="from 0 to 4, got 5"):
        greedy(scores, start=5)
    with pytest.raises(InputError, match="same city"):
        greedy(scores, start=1, end=1)
    with pytest.raises(InputError, match="at least 1, got 0"):
        sample(scores, 0, seed=1)
    with pytest.raises(InputError, match="temperature must be greater than 0"):
        sample(scores, 1, seed=1, temperature=0.0)
    with pytest.raises(InputError, match="seed must be a whole number"):
        sample(scores, 1, seed=1.5)  # type: ignore[arg-type]
    broken = Scores(scores.start, scores.logits * torch.nan)
    with pytest.raises(InputError, match="not numbers"):
        greedy(broken)
    with pytest.raises(InputError, match="not numbers"):
        sample(broken, 1, seed=1)


def test_a_second_process_does_not_compile() -> None:
    scores = example(1, 5)
    greedy(scores)
    sample(scores, 1, seed=0)
    code = (
        "import torch; from georoutenet.decode import greedy, sample;"
        "from georoutenet.decode.cpu import tours as k;"
        "from georoutenet.model.scores import Scores;"
        "s = Scores(torch.zeros(1, 5), torch.zeros(1, 5, 5)); greedy(s); sample(s, 1, seed=0);"
        "print(sum(sum(f.stats.cache_misses.values()) for f in (k._greedy, k._sample)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0"]


def test_importing_the_decoders_loads_neither_triton_nor_numba() -> None:
    code = "import sys, georoutenet.decode; print('triton' in sys.modules, 'numba' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
