from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from georoutenet.errors import InputError
from georoutenet.evaluate.evaluation import evaluate
from georoutenet.evaluate.references import load_references
from georoutenet.evaluate.results import Results, Row
from georoutenet.evaluate.settings import Settings, parse_decoder
from georoutenet.evaluate.worst import best_tour, draw_worst, solve_again, worst_position
from georoutenet.io.datasets import dataset
from georoutenet.io.tsplib import format_tour, format_tsp
from georoutenet.model.config import PolicyConfig
from georoutenet.policy.policy import Policy
from georoutenet.policy.weights import save_weights
from georoutenet.problem.instance import DistanceRule, Instance
from georoutenet.problem.tour import tour_length


def tiny(folder: Path, encoder: str = "georoutenet") -> Path:
    torch.set_num_threads(1)
    torch.manual_seed(5)
    policy = Policy(PolicyConfig(encoder=encoder, hidden=8, heads=2, layers=1, neighbors=3, rbf=4)).eval()
    policy.collect_statistics(torch.rand(16, 20, 2))
    save_weights(folder / "tiny.safetensors", policy)
    return folder / "tiny.safetensors"


@pytest.mark.parametrize(
    ("encoder", "settings"),
    [
        ("georoutenet", parse_decoder("greedy", limit=5, batch=3)),
        ("georoutenet", parse_decoder("beam-4-views-2", limit=5, batch=3)),
        ("georoutenet", parse_decoder("sample-2", limit=5, batch=3, seed=3)),
        ("nar4tsp", parse_decoder("greedy", limit=5, batch=3, statistics="batch")),
    ],
)
def test_a_tour_is_found_again(tmp_path: Path, encoder: str, settings: Settings) -> None:
    weights = tiny(tmp_path, encoder)
    results = evaluate(weights, "test20", tmp_path / "x.csv", settings, device="cpu")
    for row in (results.rows[0], results.rows[2]):  # in a whole batch, whatever the limit was
        instance, tour = solve_again(results, row.instance, weights=weights)
        assert instance.name == row.instance
        assert tour_length(instance, tour) == pytest.approx(row.length, abs=1e-8)


def test_other_weights_or_instances_are_refused(tmp_path: Path) -> None:
    weights = tiny(tmp_path)
    results = evaluate(weights, "test20", tmp_path / "x.csv", Settings(limit=1), device="cpu")
    for name in ("val50-0", "test20-10000", "test20-x", "eil51"):
        with pytest.raises(InputError, match="test20 has no instance"):
            solve_again(results, name, weights=weights)
    with pytest.raises(InputError, match="no weights 'tiny'"):
        solve_again(results, "test20-0")
    with pytest.raises(InputError, match="not the weights of these results"):
        solve_again(results, "test20-0", weights="georoutenet-50")


def test_the_worst_row() -> None:
    rows = [Row("a", 5, 11.0, 10.0), Row("b", 5, 15.0, 10.0), Row("c", 5, 12.0, 10.0)]
    assert worst_position(Results({}, rows)) == 1
    with pytest.raises(InputError, match="reference"):
        worst_position(Results({}, [*rows, Row("d", 5, 1.0)]))


def test_the_best_tour_of_a_random_set_is_the_packaged_one() -> None:
    data, known = dataset("test20"), load_references("test20")
    instance = Instance(data.coordinates[7], name="test20-7")
    tour, words = best_tour(data, instance, np.arange(20))
    assert words == "optimal"
    assert tour_length(instance, tour) == pytest.approx(known.lengths[7])


def test_the_best_tour_of_tsplib_is_published_or_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    angles = np.arange(12) * (np.pi / 6)
    circle = np.round(1000 * np.stack([np.cos(angles), np.sin(angles)], axis=1))
    instance = Instance(circle, name="eil51", rule=DistanceRule.EUC_2D)
    monkeypatch.setenv("GEOROUTENET_TSPLIB", str(tmp_path))
    (tmp_path / "eil51.tsp").write_text(format_tsp(instance))
    mixed = np.random.default_rng(0).permutation(12)
    tour, words = best_tour(dataset("tsplib36"), instance, mixed)
    assert tour_length(instance, tour) == tour_length(instance, np.arange(12))
    assert words == "local search"  # nobody said what its optimum is
    (tmp_path / "eil51.opt.tour").write_text(format_tour(mixed, name="eil51"))
    tour, words = best_tour(dataset("tsplib36"), instance, np.arange(12))
    assert tour.tolist() == mixed.tolist()
    assert words == "optimal"


def test_the_picture(tmp_path: Path) -> None:
    weights = tiny(tmp_path)
    results = [
        evaluate(weights, "test20", tmp_path / f"{name}.csv", parse_decoder(name, limit=4), device="cpu")
        for name in ("greedy", "beam")
    ]
    picture = tmp_path / "worst.png"
    files: list[str | Path | None] = [weights, weights]
    assert draw_worst(results, picture, weights=files) == f"test20-{np.argmax(results[0].gaps)}"
    assert picture.stat().st_size > 10_000
    assert draw_worst(results[:1], tmp_path / "x.svg", name="test20-3", weights=files[:1]) == "test20-3"
