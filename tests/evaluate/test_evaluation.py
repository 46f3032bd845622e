from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from georoutenet.decode import Decoding, beam, decode_views, greedy
from georoutenet.errors import GeoRouteNetError, InputError
from georoutenet.evaluate import batch_solver
from georoutenet.evaluate.batch_solver import BatchSolver, Memory, Problems, batch_size, consecutive
from georoutenet.evaluate.evaluation import choose_device, default_file, evaluate, summarize, weights_name
from georoutenet.evaluate.references import load_references
from georoutenet.evaluate.results import Results, Row, read_results
from georoutenet.evaluate.settings import Settings, parse_decoder
from georoutenet.io import provenance as machine
from georoutenet.io.datasets import dataset
from georoutenet.io.tsplib import format_tsp
from georoutenet.model.config import PolicyConfig
from georoutenet.model.scores import Scores
from georoutenet.policy.policy import Policy
from georoutenet.policy.weights import load_policy, save_weights
from georoutenet.problem.instance import DistanceRule, Instance
from georoutenet.problem.tour import tour_length


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def tiny(path: Path, encoder: str = "georoutenet") -> Path:
    torch.manual_seed(5)
    policy = Policy(PolicyConfig(encoder=encoder, hidden=8, heads=2, layers=2, neighbors=3, rbf=4)).eval()
    policy.collect_statistics(torch.rand(16, 20, 2))
    save_weights(path, policy, {"recipe": {"objective": "pg"}})
    return path


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    return tiny(tmp_path / "tiny.safetensors")


def make(decoder: str = "greedy", **settings: Any) -> Settings:
    return parse_decoder(decoder, **settings)


def run(weights: Path, set_name: str = "test20", name: str = "out.csv", **settings: Any) -> Results:
    out = weights.parent / name
    return evaluate(weights, set_name, out, make(**settings), device="cpu", fresh=True)


def test_lengths_are_those_of_the_greedy_tours(weights: Path) -> None:
    results = run(weights, limit=7, batch=3)
    policy, data = load_policy(weights), dataset("test20")
    for index, row in enumerate(results.rows):
        cities = data.coordinates[index]
        with torch.no_grad():
            tour = greedy(policy(torch.tensor(cities[None])), backend="reference").tours[0, 0]
        assert row.instance == f"test20-{index}"
        assert row.n == 20
        assert row.length == pytest.approx(tour_length(Instance(cities), tour.numpy()), abs=1e-9)
        assert row.reference == pytest.approx(load_references("test20").lengths[index], abs=1e-9)
        assert row.seconds > row.network_seconds > 0
    assert read_results(weights.parent / "out.csv").rows == results.rows
    assert not list(weights.parent.glob("*.partial"))


def test_the_header_says_how(weights: Path) -> None:
    header = run(weights, limit=2, decoder="beam", width=5).header
    said = {key: header[key] for key in ("weights", "encoder", "objective", "set", "instances", "decoder")}
    assert said == {
        "weights": "tiny",
        "encoder": "georoutenet",
        "objective": "pg",
        "set": "test20",
        "instances": "2 of 10000",
        "decoder": "beam",
    }
    assert (header["width"], header["batch"], header["views"]) == ("5", "128", "1")
    assert len(header["sha256"]) == 64
    assert header["device"]
    assert header["torch"] == torch.__version__


def test_neither_the_batch_nor_a_wider_beam_makes_it_worse(weights: Path) -> None:
    one = run(weights, limit=6, batch=1)
    np.testing.assert_array_equal(run(weights, limit=6, batch=4).lengths, one.lengths)
    narrow = run(weights, limit=6, decoder="beam", width=4)
    wide = run(weights, limit=6, decoder="beam", width=400)
    assert wide.lengths.mean() < narrow.lengths.mean()
    assert (wide.gaps > -1e-4).all()


def test_sampling_takes_the_shortest_of_its_tours_and_is_seeded(weights: Path) -> None:
    one, many, again, other = (
        run(weights, limit=4, decoder="sample", width=width, seed=seed)
        for width, seed in ((1, 0), (64, 0), (64, 0), (64, 1))
    )
    assert (many.lengths <= one.lengths).all()
    assert many.lengths.mean() < one.lengths.mean()
    np.testing.assert_array_equal(many.lengths, again.lengths)
    assert (many.lengths != other.lengths).any()


@pytest.mark.parametrize(
    "settings", [{}, {"views": 3}, {"decoder": "beam", "width": 9}, {"decoder": "sample", "width": 4}]
)
def test_candidates(weights: Path, settings: dict[str, object]) -> None:
    """All cities as candidates are no difference; few are another result, which says so."""
    everything = run(weights, limit=5, **settings)
    all_near = run(weights, limit=5, candidates=19, **settings)
    few = run(weights, limit=5, candidates=2, **settings)
    assert [each.header["candidates"] for each in (everything, all_near, few)] == ["", "19", "2"]
    if settings.get("decoder") != "sample":  # sparse scores are drawn from in another order
        np.testing.assert_allclose(all_near.lengths, everything.lengths, atol=1e-8)
    assert (few.lengths != everything.lengths).any()


def test_decoders_share_scores(weights: Path) -> None:
    """The network runs once for all of them; tours are the same, and its time counts for each."""
    decoders = [
        Settings(limit=7, batch=3),
        make("beam-5", limit=7, batch=3),
        make("beam-9-dominance-length-60", limit=7, batch=3),
        make("sample-4", limit=7, batch=3),
        make("greedy-views-3", limit=7, batch=3),
        make("greedy-bfloat16", limit=7, batch=3),
        make("greedy-candidates-4", limit=7, batch=3),
    ]
    policy, memory = load_policy(weights), Memory()
    calls: list[int] = []
    policy.register_forward_pre_hook(lambda *given: calls.append(len(given[1][0])))
    for number, settings in enumerate(decoders):
        out = weights.parent / f"shared{number}.csv"
        calls.clear()
        shared = evaluate(weights, "test20", out, settings, device="cpu", policy=policy, memory=memory)
        alone = evaluate(weights, "test20", weights.parent / "alone.csv", settings, device="cpu", fresh=True)
        np.testing.assert_array_equal(shared.lengths, alone.lengths)
        assert all(row.seconds > row.network_seconds > 0 for row in shared.rows)
        if number in (1, 2, 3):
            assert calls == [1]  # warming up
        else:
            assert len(calls) > 1


def test_warming_up_is_not_remembered(weights: Path, fake_clock: Any) -> None:
    policy, memory = load_policy(weights), Memory()
    naps = iter([300.0])
    policy.register_forward_pre_hook(lambda *_: fake_clock.advance(next(naps, 0.0)))
    settings = Settings(limit=2, batch=1)
    results = evaluate(
        weights, "test20", weights.parent / "m.csv", settings, device="cpu", policy=policy, memory=memory
    )
    assert next(naps, None) is None
    assert results.network_seconds.max() < 300.0


def test_a_full_memory_takes_no_more() -> None:
    scores = Scores(torch.zeros(2, 5), torch.zeros(2, 5, 5))
    size = 4 * (2 * 5 + 2 * 5 * 5)
    memory = Memory(2 * size)
    for key in (b"a", b"a", b"b", b"c"):
        memory.put(key, scores, 0.1)
    assert set(memory.known) == {b"a", b"b"}
    assert memory.left == 0
    few = Memory()
    few.put(b"sparse", Scores(scores.start, scores.logits, neighbors=torch.zeros(2, 5, 5).long()), 0.1)
    assert not few.known


def test_views_are_those_of_the_decoder(weights: Path) -> None:
    results = run(weights, limit=3, decoder="beam", width=16, views=8)
    cities = dataset("test20").coordinates[:3].copy()
    found = decode_views(load_policy(weights), cities, "beam-16-views-8")
    assert found.lengths is not None
    np.testing.assert_allclose(results.lengths, found.lengths[:, 0], atol=1e-8)
    assert results.header["inputs"] == "each view fills the unit square"


@pytest.mark.parametrize("views", [1, 3])
def test_dominance_and_length_weight_are_those_of_the_decoder(weights: Path, views: int) -> None:
    settings = {"decoder": "beam", "width": 30, "views": views}
    plain = run(weights, limit=6, **settings)
    better = run(weights, limit=6, **settings, dominance=True, length_weight=60.0)
    assert (better.header["dominance"], better.header["length_weight"]) == ("yes", "60")
    assert (plain.header["dominance"], plain.header["length_weight"]) == ("", "")
    policy, cities = load_policy(weights), dataset("test20").coordinates[:6].copy()
    options: dict[str, Any] = {"dominance": True, "length_weight": 60.0}
    with torch.no_grad():
        if views > 1:
            found = decode_views(policy, cities, Decoding("beam", views=views, width=30, **options))
        else:
            found = beam(policy(torch.tensor(cities)), 30, coordinates=cities, **options)
    assert found.lengths is not None
    np.testing.assert_allclose(better.lengths, found.lengths[:, 0], atol=1e-8)
    assert better.lengths.mean() < plain.lengths.mean()


@pytest.mark.parametrize("decoder", ["greedy", "beam"])
def test_local_search_shortens_the_decoded_tours(weights: Path, decoder: str, fake_clock: Any) -> None:
    plain = run(weights, limit=4, batch=2, decoder=decoder, width=4)
    better = run(weights, limit=4, batch=2, decoder=decoder, width=4, improve=2.0)
    assert (better.lengths <= plain.lengths + 1e-9).all()
    assert better.gaps.mean() < plain.gaps.mean()
    assert (better.gaps > -1e-4).all()
    assert (plain.header["improve"], better.header["improve"]) == ("", "2")
    assert (plain.improve_seconds == 0).all()
    for row in better.rows:
        used = row.improve_seconds
        assert 0 < used < row.seconds - row.network_seconds
        assert used >= 2.0 or row.length <= row.reference + 1e-6  # all the time, or proven optimal before
    summary = summarize(better)
    parts = summary.network_seconds + summary.decode_seconds + summary.improve_seconds
    assert parts == pytest.approx(summary.seconds)
    assert summary.decode_seconds > 0


def test_local_search_under_the_integer_rule(weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cities = np.round(np.random.default_rng(0).random((51, 2)) * 100)
    instance = Instance(cities, name="eil51", rule=DistanceRule.EUC_2D)
    (weights.parent / "eil51.tsp").write_text(format_tsp(instance))
    monkeypatch.setenv("GEOROUTENET_TSPLIB", str(weights.parent))
    plain, better = (run(weights, "tsplib36", limit=1, improve=seconds) for seconds in (0.0, 0.2))
    assert better.rows[0].length < plain.rows[0].length
    assert better.rows[0].length == int(better.rows[0].length)


def test_a_finished_file_is_kept(weights: Path) -> None:
    out = weights.parent / "done.csv"
    first = evaluate(weights, "test20", out, Settings(limit=3), device="cpu")
    before = out.stat().st_mtime_ns
    again = evaluate(weights, "test20", out, Settings(limit=3, batch=2), device="cpu")
    assert out.stat().st_mtime_ns == before
    assert again.rows == first.rows
    for other in ({"limit": 4}, {"limit": 3, "views": 2}, {"limit": 3, "improve": 0.1}):
        with pytest.raises(InputError, match=r"done\.csv was made with other settings .*--fresh replaces"):
            evaluate(weights, "test20", out, make(**other), device="cpu")
    evaluate(weights, "test20", out, Settings(limit=4), device="cpu", fresh=True)
    assert len(read_results(out)) == 4


def test_other_weights_are_other_results(weights: Path) -> None:
    out = weights.parent / "done.csv"
    evaluate(weights, "test20", out, Settings(limit=3), device="cpu")
    with pytest.raises(InputError, match="sha256"):
        evaluate(tiny(weights, "nar4tsp"), "test20", out, Settings(limit=3), device="cpu")


def test_names_of_files(tmp_path: Path) -> None:
    settings = make("beam-100")
    assert default_file("w.safetensors", "val50", settings) == Path("results/w/val50-beam-100.csv.gz")
    assert default_file("w", "tsplib36", settings, Path("x")) == Path("x/tsplib36-beam-100.csv")
    (tmp_path / "val50-beam-100.csv").write_text("")  # from before files were compressed
    assert default_file("w", "val50", settings, tmp_path).name == "val50-beam-100.csv"
    assert weights_name("runs/nar4tsp-pg/best.safetensors") == "nar4tsp-pg"
    assert weights_name("georoutenet-50") == "georoutenet-50"


def test_batches_of_the_protocol() -> None:
    for name, settings, size in (
        ("val50", {}, 128),
        ("test1000", {}, 128),
        ("tsplib36", {}, 1),
        ("val50", {"statistics": "batch"}, 128),
        ("test200", {"statistics": "batch"}, 128),
        ("test1000", {"statistics": "batch"}, 5),
        ("test1000", {"statistics": "batch", "batch": 7}, 7),
    ):
        assert batch_size(dataset(name), make(**settings)) == size


class Killed(Exception):
    pass


@pytest.mark.parametrize("decoder", ["greedy", "sample"])
def test_a_killed_run_goes_on(weights: Path, decoder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = make(decoder, limit=10, batch=3, width=2)
    out = weights.parent / "killed.csv"

    def killer(done: int, total: int) -> None:
        assert total == 10
        if done == 6:
            raise Killed

    with pytest.raises(Killed):
        evaluate(weights, "test20", out, settings, device="cpu", progress=killer)
    partial = out.with_name("killed.csv.partial")
    assert not out.exists()
    text = partial.read_text()
    partial.write_text(text[: text.rindex("test20-5")])  # five rows: one batch and two thirds
    begun: list[int] = []
    results = evaluate(
        weights, "test20", out, settings, device="cpu", progress=lambda done, total: begun.append(done)
    )
    assert begun == [3, 6, 9, 10]
    assert not partial.exists()
    whole = evaluate(weights, "test20", weights.parent / "whole.csv", settings, device="cpu")
    assert [row.instance for row in results.rows] == [f"test20-{index}" for index in range(10)]
    np.testing.assert_array_equal(results.lengths, whole.lengths)


@pytest.mark.parametrize("settings", [{"decoder": "greedy-views-4"}, {"improve": 0.1}])
def test_what_an_interrupt_broke_off_is_no_result(
    weights: Path, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decoders and search hand out what they have by then; that is not measured."""
    name = "improve" if "improve" in settings else "decode_views"
    whole, calls = getattr(batch_solver, name), []

    def broken_off(*args: Any, **kwargs: Any) -> Any:
        calls.append(name)
        return replace(whole(*args, **kwargs), interrupted=len(calls) == 3)

    monkeypatch.setattr(batch_solver, name, broken_off)
    with pytest.raises(KeyboardInterrupt):
        run(weights, limit=6, batch=2, **settings)
    assert not (weights.parent / "out.csv").exists()
    rows = (weights.parent / "out.csv.partial").read_text().splitlines()
    assert len([row for row in rows if row.startswith("test20-")]) == 2  # the first batch


def test_other_settings_do_not_go_on(weights: Path) -> None:
    out = weights.parent / "killed.csv"

    def kill(done: int, total: int) -> None:
        raise Killed

    with pytest.raises(Killed):
        evaluate(weights, "test20", out, Settings(limit=4), device="cpu", progress=kill)
    with pytest.raises(InputError, match=r"decoder: greedy there, beam here"):
        evaluate(weights, "test20", out, make("beam", limit=4), device="cpu")
    done = evaluate(weights, "test20", out, make("beam", limit=4), device="cpu", fresh=True)
    assert len(done) == 4


def test_tsplib_is_measured_by_its_integer_rule(weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of that name and size with other cities: far from the unit square, and stretched."""
    cities = np.random.default_rng(0).random((51, 2)) * [3000, 800] + 5000
    instance = Instance(np.round(cities), name="eil51", rule=DistanceRule.EUC_2D)
    (weights.parent / "eil51.tsp").write_text(format_tsp(instance))
    monkeypatch.setenv("GEOROUTENET_TSPLIB", str(weights.parent))
    results = run(weights, "tsplib36", limit=1)
    with torch.no_grad():
        scores = load_policy(weights)(torch.tensor(instance.normalized()[None]).float())
    tour = greedy(scores, backend="reference").tours[0, 0].numpy()
    assert results.rows[0].length == tour_length(instance, tour)
    assert results.rows[0].reference == 426  # the published optimum goes by name, size and rule
    assert results.header["batch"] == "1"
    assert results.header["inputs"] == "normalized to the unit square"


def test_frozen_statistics_are_the_default_and_do_not_see_the_batch(tmp_path: Path) -> None:
    weights = tiny(tmp_path / "nar.safetensors", "nar4tsp")
    frozen = [run(weights, limit=6, batch=batch) for batch in (1, 6)]
    np.testing.assert_array_equal(frozen[0].lengths, frozen[1].lengths)
    assert frozen[0].header["statistics"] == "frozen"
    batch = [run(weights, limit=6, batch=batch, statistics="batch") for batch in (2, 6)]
    assert (batch[0].lengths != batch[1].lengths).any()


def test_what_is_no_tour_is_never_measured(weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(scores: object, **options: object) -> object:
        found = greedy(scores, **options)  # type: ignore[arg-type]
        found.tours[0, 0, 0] = found.tours[0, 0, 1]
        return found

    monkeypatch.setattr("georoutenet.decode.views.greedy", broken)
    with pytest.raises(
        GeoRouteNetError, match="test20-0: the decoder returned no tour: the tour visits city"
    ):
        run(weights, limit=2)


def test_a_set_without_references_has_lengths_only(weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_solver, "has_references", lambda name: False)
    results = run(weights, limit=3)
    assert np.isnan(results.gaps).all()
    assert summarize(results).gap is None
    assert summarize(results).length == pytest.approx(results.lengths.mean())


def test_summary() -> None:
    rows = [Row("a", 5, 11, 10, 0.5, 0.25), Row("b", 5, 10, 10, 0.5, 0.25)]
    summary = summarize(Results({}, rows))
    assert summary.gap is not None
    assert (summary.gap.mean, summary.gap.low, summary.gap.high) == (5.0, 0.0, 10.0)
    assert (summary.instances, summary.length) == (2, 10.5)
    assert (summary.seconds, summary.network_seconds, summary.decode_seconds) == (1.0, 0.5, 0.5)
    assert math.isnan(summarize(Results({}, [Row("a", 5, 11, 10)])).seconds)
    searched = summarize(Results({}, [Row("a", 5, 11, 10, 1.0, 0.5, 0.25)]))
    assert (searched.improve_seconds, searched.decode_seconds) == (0.25, 0.25)


def test_consecutive() -> None:
    assert consecutive([5] * 7, 3) == [(0, 3), (3, 6), (6, 7)]
    assert consecutive([5, 5, 6, 6, 6, 5], 2) == [(0, 2), (2, 4), (4, 5), (5, 6)]
    assert consecutive([], 4) == []


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert choose_device("auto") == torch.device("cpu")
    for name, message in (("cuda", "0 CUDA devices"), ("meta", "allowed: auto"), ("abacus", "allowed: auto")):
        with pytest.raises(InputError, match=message):
            choose_device(name)
    made_current: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", made_current.append)
    assert choose_device("cuda") == torch.device("cuda")
    assert choose_device("cuda:1") == torch.device("cuda:1")
    assert made_current == [torch.device("cuda:1")]


def test_the_commit_is_that_of_this_checkout_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")  # no git
    assert machine.commit.__wrapped__() == ""  # as if it was not asked before


@pytest.mark.gpu
@pytest.mark.parametrize("settings", [{}, {"decoder": "beam", "width": 50}, {"decoder": "beam", "views": 4}])
def test_a_gpu_finds_the_tours_of_a_cpu(weights: Path, settings: dict[str, object]) -> None:
    options = make(limit=40, batch=16, **settings)
    cpu = evaluate(weights, "test20", weights.parent / "cpu.csv", options, device="cpu")
    gpu = evaluate(weights, "test20", weights.parent / "gpu.csv", options, device="cuda")
    assert int(gpu.header["peak_device_bytes"]) > 0
    # Rounding may break a tie of nearly equal scores the other way, rarely.
    assert (np.abs(cpu.lengths - gpu.lengths) < 1e-6).mean() > 0.9


@pytest.mark.parametrize(
    ("device", "batches", "solved"),
    [
        ("cpu", [(0, 3), (3, 6), (6, 8)], [["test20-0"]]),
        ("cuda", [(0, 3), (3, 6)], [["test20-0", "test20-1", "test20-2"]]),
        ("cuda", [(0, 40)], [[f"test20-{k}" for k in range(16)]]),
    ],
)
def test_warming_up_solves_little(
    weights: Path,
    device: str,
    batches: list[tuple[int, int]],
    solved: list[list[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    solver = BatchSolver(load_policy(weights), Settings(improve=1.0), torch.device("cpu"))
    seen: list[list[str]] = []
    monkeypatch.setattr(solver, "device", torch.device(device))
    monkeypatch.setattr(solver, "_decode", lambda instances: seen.append([each.name for each in instances]))
    solver.warm_up(Problems(dataset("test20"), None), batches)
    assert seen == solved


def test_warming_up_on_a_gpu_takes_every_size(weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    problems = Problems(dataset("test20"), 4)
    problems.sizes = [5, 5, 6, 7]
    solver = BatchSolver(load_policy(weights), Settings(), torch.device("cpu"))
    seen: set[str] = set()
    monkeypatch.setattr(solver, "device", torch.device("cuda"))
    monkeypatch.setattr(solver, "_decode", lambda instances: seen.update(each.name for each in instances))
    solver.warm_up(problems, [(0, 1), (1, 2), (2, 3), (3, 4)])
    assert seen == {"test20-0", "test20-2", "test20-3"}
