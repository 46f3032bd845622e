from __future__ import annotations

import math
import random

import numpy as np
import pytest

from georoutenet.errors import InputError
from georoutenet.evaluate.results import Results, Row
from georoutenet.evaluate.statistics import (
    bootstrap_all,
    bootstrap_mean,
    bootstrap_means,
    pair_results,
    paired,
)


def test_resamples_are_means_of_draws_with_replacement() -> None:
    """Against a plain loop over another generator: the same distribution."""
    values = [0.0, 1.0, 1.0, 4.0, 10.0]
    generator = random.Random(1)
    slow = [sum(generator.choice(values) for _ in values) / len(values) for _ in range(20_000)]
    fast = bootstrap_means(np.array(values), 20_000, 0)
    for level in (0.025, 0.25, 0.5, 0.75, 0.975):
        assert np.quantile(fast, level) == pytest.approx(np.quantile(slow, level), abs=0.21)
    assert fast.std() == pytest.approx(np.std(values) / math.sqrt(5), rel=0.03)


@pytest.mark.parametrize(("size", "resamples"), [(1, 3), (7, 50), (40, 101)])
def test_counting_draws_is_drawing(size: int, resamples: int) -> None:
    """Against one draw after the other."""
    values = np.random.default_rng(5).random(size)
    generator = np.random.default_rng(9)
    plain = [values[generator.integers(0, size, size)].mean() for _ in range(resamples)]
    np.testing.assert_allclose(bootstrap_means(values, resamples, 9), plain, rtol=1e-12)


def test_many_samples_have_the_intervals_of_each() -> None:
    samples = [np.random.default_rng(k).random(size) for k, size in enumerate((30, 7, 30, 7, 7))]
    for found, sample in zip(bootstrap_all(samples), samples, strict=True):
        expected = bootstrap_mean(sample)
        assert (found.mean, found.low, found.high) == pytest.approx(
            (expected.mean, expected.low, expected.high), rel=1e-12
        )


def test_the_interval_is_that_of_the_normal_for_many_values() -> None:
    values = np.random.default_rng(3).normal(2.0, 1.0, 4_000)
    interval = bootstrap_mean(values)
    half = 1.96 * values.std() / math.sqrt(4_000)
    assert interval.mean == pytest.approx(values.mean())
    assert interval.low == pytest.approx(values.mean() - half, abs=half / 8)
    assert interval.high == pytest.approx(values.mean() + half, abs=half / 8)
    narrower = bootstrap_mean(values, level=0.5)
    assert interval.low < narrower.low < narrower.mean < narrower.high < interval.high


def test_the_interval_is_seeded() -> None:
    values = np.random.default_rng(0).random(50)
    assert bootstrap_mean(values) == bootstrap_mean(values)
    assert bootstrap_mean(values) != bootstrap_mean(values, seed=1)
    assert bootstrap_mean([2.0, 2.0]).low == bootstrap_mean([2.0, 2.0]).high == 2.0
    assert str(bootstrap_mean([2.0])) == "2.000 (2.000 to 2.000)"


@pytest.mark.parametrize("values", [[], [1.0, math.nan], [[1.0]]])
def test_values_must_be_a_list_of_finite_numbers(values: list[float]) -> None:
    with pytest.raises(InputError, match="finite numbers"):
        bootstrap_mean(values)
    with pytest.raises(InputError, match="resamples"):
        bootstrap_mean([1.0], resamples=0)


def test_paired() -> None:
    result = paired([10.0, 11.0, 12.0, 10.0], [10.0, 10.0, 12.000001, 13.0], [10.0, 10.0, 10.0, 10.0])
    assert (result.wins, result.ties, result.losses) == (1, 2, 1)
    np.testing.assert_allclose(result.differences, [0, -10, 1e-5, 30])
    assert result.mean.mean == pytest.approx(5.0, abs=1e-4)
    assert result.largest(2) == [3, 1]
    with pytest.raises(InputError, match="one length"):
        paired([1.0], [1.0, 2.0], [1.0])
    with pytest.raises(InputError, match="greater than 0"):
        paired([1.0], [1.0], [math.nan])


def results(set_name: str, *rows: Row) -> Results:
    return Results({"set": set_name}, list(rows))


def test_results_are_paired_by_instance() -> None:
    a = results("val50", Row("x", 5, 11, 10), Row("y", 5, 12, 10), Row("z", 5, 13, 10))
    b = results("val50", Row("z", 5, 10, 10), Row("x", 5, 11, 10))
    names, result = pair_results(a, b)
    assert names == ["x", "z"]
    np.testing.assert_allclose(result.differences, [0, -30])
    with pytest.raises(InputError, match="different sets cannot be compared: val50 and test50"):
        pair_results(a, results("test50", Row("x", 5, 11, 10)))
    with pytest.raises(InputError, match="no instance in common"):
        pair_results(a, results("val50", Row("w", 5, 11, 10)))
    with pytest.raises(InputError, match="x against different lengths: 10 and 9"):
        pair_results(a, results("val50", Row("x", 5, 11, 9)))
