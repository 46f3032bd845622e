"""Contrasts of the 2x2: the printed ones recomputed from the files by plain loops, the rest by hand."""

from __future__ import annotations

import math
import statistics
from pathlib import Path

import numpy as np
import pytest
from made_up import header

from georoutenet.errors import InputError
from georoutenet.evaluate.packed import Packed
from georoutenet.evaluate.results import Results, Row
from research.report.contrasts import (
    CONTRASTS,
    SIMPLE,
    Runs,
    difference,
    estimate,
    mean_over_seeds,
    possible_lists,
    read_runs,
    seeds_of,
)

ROOT = Path(__file__).resolve().parents[3]
SEEDS = ("", "-seed2", "-seed3", "-seed4")
MODELS = ["nar4tsp-pg", "nar4tsp-mcs", "georoutenet-pg", "georoutenet-mcs"]
SIGNS = {
    "encoder": (0.5, 0.5, -0.5, -0.5),
    "objective": (0.5, -0.5, 0.5, -0.5),
    "interaction": (1, -1, -1, 1),
}
SIGNS["log-ratio"] = SIGNS["interaction"]
T_OF = {4: 2.7764451052, 8: 2.3060041352, 12: 2.1788128297}
"""The 97.5 % quantile of Student's t by the degrees of freedom, from a table."""


def printed() -> dict[tuple[str, str], list[str]]:
    """The rows of the page's table."""
    page = ROOT / "docs" / "results.md"
    if not page.exists() or not (ROOT / "results").exists():
        pytest.skip("the page or the results are not part of this installation")
    lines = page.read_text(encoding="utf-8").split("## Contrasts over seeds")[1].split("## ")[0].splitlines()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("| t")]
    return {(row[0], row[1]): row[2:] for row in rows}


def gaps_from_files(set_name: str) -> list[list[list[float]]]:
    """Gaps by model, seed and instance."""
    cell = f"{set_name}-beam-1000"
    files = {seed: [ROOT / "results" / f"paper-{model}{seed}.npz" for model in MODELS] for seed in SEEDS}
    seeds = [
        seed
        for seed, paths in files.items()
        if all(path.exists() and cell in Packed(path).results() for path in paths)
    ]
    found = []
    for model in MODELS:
        found.append([])
        for seed in seeds:
            rows = Packed(ROOT / "results" / f"paper-{model}{seed}.npz")[cell].rows
            found[-1].append([100 * (row.length - row.reference) / row.reference for row in rows])
    return found


def numbers(cell: str) -> list[float]:
    return [float(word) for word in cell.replace("/", " ").replace("to", " ").split()]


@pytest.mark.parametrize("set_name", ["test50", "test100", "tsplib36"])
def test_the_printed_contrasts(set_name: str) -> None:
    table, gaps = printed(), gaps_from_files(set_name)
    means = [[math.fsum(seed) / len(seed) for seed in model] for model in gaps]
    count = len(gaps[0])
    columns = np.array(gaps).reshape(4 * count, -1).T
    generator = np.random.default_rng(12)  # draws of its own: the intervals agree but for their noise
    drawn = []
    for _ in range(600):
        own = columns[generator.integers(0, len(columns), len(columns))].mean(axis=0).reshape(4, count)
        drawn.append([[own[m, s] for s in generator.integers(0, count, count)] for m in range(4)])
    for name, signs in SIGNS.items():
        seeds, mean, bootstrap, t, _ = table[set_name, name]
        scale = math.log if name == "log-ratio" else float

        def value(of: list[list[float]], signs=signs, scale=scale) -> float:
            return sum(
                sign * sum(scale(x) for x in each) / len(each) for sign, each in zip(signs, of, strict=True)
            )

        own = [value([[each[k]] for each in means]) for k in range(count)]
        assert numbers(seeds) == pytest.approx(own, abs=6e-4)
        assert float(mean) == pytest.approx(value(means), abs=6e-4)
        variances = [statistics.variance(map(scale, each)) for each in means]
        variance = sum(variances) / 4 * sum(sign**2 for sign in signs) / count
        width = T_OF[4 * (count - 1)] * math.sqrt(variance)
        assert numbers(t) == pytest.approx([value(means) - width, value(means) + width], abs=6e-4)
        low, high = np.quantile([value(each) for each in drawn], [0.025, 0.975])
        assert numbers(bootstrap) == pytest.approx([low, high], abs=0.12 * (high - low))


def made(seeds: int, count: int, seed: int = 0) -> Runs:
    generator = np.random.default_rng(seed)
    return Runs(
        [f"i{k}" for k in range(count)], np.full(count, 50), generator.random((seeds, count, 2, 2)) + 1
    )


def test_contrasts_by_hand() -> None:
    gaps = np.array([[8.0, 6.0], [3.0, 2.0]])
    values = [float(each(gaps)) for each in CONTRASTS]
    assert values == pytest.approx([4.5, 1.5, 1.0, math.log(8 * 2 / (3 * 6))])
    assert [float(each(gaps)) for each in SIMPLE] == [5.0, 4.0, 2.0, 1.0, 1.0]


def test_one_seed_has_an_interval_of_instances_alone() -> None:
    runs = made(1, 400)
    found = estimate(runs, CONTRASTS[0])
    assert found.t is None
    each = CONTRASTS[0](runs.gaps[0])
    width = 1.96 * each.std(ddof=1) / 20
    assert found.bootstrap.high - found.bootstrap.mean == pytest.approx(width, rel=0.1)
    single = mean_over_seeds(runs.gaps[:, :, 0, 0])
    assert single.mean == pytest.approx(runs.gaps[..., 0, 0].mean())
    assert single.low < single.mean < single.high


def test_lists_of_27_have_the_bounds_that_sorting_gives() -> None:
    """The least sum of 7 of a group is that of its 7 least; pr152, of no group, is in no list."""
    sizes = np.array([60] * 5 + [100] * 8 + [120] * 10 + [152] + [200] * 12)
    runs = Runs([str(k) for k in range(36)], sizes, np.random.default_rng(3).random((2, 36, 2, 2)))
    lists = possible_lists(runs)
    assert lists.shape == (120 * 792, 2, 2, 2)
    for contrast in SIMPLE:
        each = contrast(runs.gaps)  # (seeds, instances)
        third, fourth = np.sort(each[:, 13:23]), np.sort(each[:, 24:])
        least = (each[:, :13].sum(1) + third[:, :7].sum(1) + fourth[:, :7].sum(1)) / 27
        most = (each[:, :13].sum(1) + third[:, -7:].sum(1) + fourth[:, -7:].sum(1)) / 27
        np.testing.assert_allclose(contrast(lists).min(axis=0), least)
        np.testing.assert_allclose(contrast(lists).max(axis=0), most)


def test_difference_of_means() -> None:
    a, b = np.arange(100.0), np.arange(50.0) + 7
    found = difference(a, b)
    assert found.mean == pytest.approx(31.5 - 49.5)
    assert found.high - found.mean == pytest.approx(
        1.959964 * math.sqrt(a.var(ddof=1) / 100 + b.var(ddof=1) / 50)
    )


def test_seeds_by_name() -> None:
    names = [
        "paper-nar4tsp-pg-seed10",
        "paper-nar4tsp-pg-seed2",
        "paper-nar4tsp-pg",
        "paper-nar4tsp-pg-seedy",
    ]
    assert seeds_of([*names, "paper-nar4tsp-mcs", "x"], "NAR4TSP-PG") == [names[2], names[1], names[0]]


def results_of(model: str, seed: str = "", reference: float = 1.0, **other: str) -> tuple[str, Results]:
    encoder, objective = model.split("-")
    about = {"encoder": encoder, "objective": objective, "weights": f"paper-{model}{seed}"}
    rows = [Row(f"i{k}", 50, reference * (1.01 + k / 100), reference) for k in range(3)]
    return "file", Results(header("test50", **about, **other), rows)


def test_runs_are_read_of_the_seeds_that_all_four_have() -> None:
    files = [results_of(model, seed) for model in MODELS for seed in ("", "-seed2")]
    runs = read_runs(files, "test50", "Beam-1000")
    assert runs is not None
    assert runs.gaps.shape == (2, 3, 2, 2)
    np.testing.assert_allclose(runs.gaps[1, :, 1, 0], [1.0, 2.0, 3.0])
    assert runs.names == ("1234", "2")
    common = read_runs([*files[1:], results_of(MODELS[2], "-seed3")], "test50", "Beam-1000")
    assert common is not None
    assert common.names == ("2",)  # the only one that all four have
    assert read_runs(files[2:], "test50", "Beam-1000") is None
    assert read_runs([], "test50", "Beam-1000") is None
    batch = [results_of(model, statistics="batch") for model in MODELS[:2]]
    plain = [results_of(model) for model in MODELS[2:]]
    assert read_runs([*batch, *plain], "test50", "Beam-1000") is None
    assert read_runs([*batch, *plain], "test50", "Beam-1000, batch statistics") is not None
    with pytest.raises(InputError, match="different references"):
        read_runs([*files[1::2], results_of(MODELS[0], "-seed2", 2.0)][1:], "test50", "Beam-1000")
