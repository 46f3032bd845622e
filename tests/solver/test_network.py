"""What the network is asked, in what memory and time."""

from __future__ import annotations

import threading
from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from solved import check, random_instance

import georoutenet as grn
from georoutenet.clock import OutOfTime
from georoutenet.decode import RECOMMENDED, Decoding, decode_views
from georoutenet.errors import GeoRouteNetWarning, InputError
from georoutenet.policy.weights import load_policy
from georoutenet.problem.instance import Instance
from georoutenet.search.path import Ends
from georoutenet.solver import network as neural
from georoutenet.solver.edges import LIKELY, count_edges, likely_edges
from georoutenet.solver.options import SolveOptions


def test_too_large_a_request_says_what_would_fit() -> None:
    with pytest.raises(InputError, match=r"beam over 3,000,000 cities needs about .* cities would fit"):
        neural.check_memory(3_000_000, Decoding("beam"), "cpu")
    wide = choose(100, beam_width=10**9)
    with pytest.raises(InputError, match=r"a width of about ([\d,]+) would fit") as caught:
        neural.check_memory(100, wide, "cpu", available=10**9)
    width = int(str(caught.value).split("about ")[-1].split(" would")[0].replace(",", ""))
    neural.check_memory(100, choose(100, beam_width=int(0.99 * width)), "cpu", available=10**9)
    neural.check_memory(100_000, choose(100_000, decoder="greedy"), "cpu", available=2**31)


@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("n", [2, 3, 7])
def test_edges_are_counted(n: int, closed: bool) -> None:
    tours = np.stack([np.random.default_rng(k).permutation(n) for k in range(5)])
    expected: Counter[tuple[int, int]] = Counter()
    for tour in tours.tolist():
        way = [*tour, tour[0]] if closed else tour
        expected.update({(min(a, b), max(a, b)) for a, b in pairwise(way)})  # two cities have one edge
    edges, shares = count_edges(tours, closed=closed)
    assert {tuple(edge): share for edge, share in zip(edges.tolist(), shares.tolist(), strict=True)} == {
        edge: count / 5 for edge, count in expected.items()
    }
    assert (np.diff(shares) <= 0).all()


def test_marginals_support_the_tour_more_than_the_next_city_does() -> None:
    instance = Instance(np.random.default_rng(4).random((60, 2)))
    result = grn.solve(instance, first="network", decoder="greedy", stop=grn.MaxIterations(2000))
    found = neural.edge_marginals(instance, "georoutenet", "cpu")
    by_city = np.bincount(found.edges.ravel(), np.repeat(found.probabilities, 2))
    np.testing.assert_allclose(by_city, 2.0)  # every tour comes and leaves
    assert found.start.sum() == pytest.approx(1.0, abs=1e-4)
    marginal = np.zeros((60, 60))
    marginal[tuple(found.edges.T)] = found.probabilities
    assert result.edges is not None
    following = np.zeros((60, 60))
    np.put_along_axis(following, result.edges.neighbors.astype(np.int64), result.edges.probabilities, axis=1)
    tour, then = result.tour, np.roll(result.tour, -1)
    supported = (marginal + marginal.T)[tour, then].mean()
    next_alone = np.maximum(following, following.T)[tour, then].mean()
    assert supported > 0.7 > 0.6 > next_alone


def test_marginals_are_drawn_where_the_policy_is(monkeypatch: pytest.MonkeyPatch) -> None:
    policy, instance = load_policy("georoutenet-50"), random_instance(12)
    here = neural.edge_marginals(instance, policy, "cpu")
    monkeypatch.setattr(
        neural, "choose_device", lambda name: torch.device("cuda:0")
    )  # as where there is a GPU
    there = neural.edge_marginals(instance, policy, "auto")
    np.testing.assert_array_equal(there.edges, here.edges)


def test_marginals_of_a_path_are_of_paths() -> None:
    instance, ends = (
        Instance(np.random.default_rng(4).random((12, 2))),
        Ends(12, start=3, end=5, closed=False),
    )
    found = neural.edge_marginals(instance, "georoutenet-50", "cpu", ends)
    by_city = np.bincount(found.edges.ravel(), np.repeat(found.probabilities, 2))
    np.testing.assert_allclose(by_city, np.where(np.isin(np.arange(12), [3, 5]), 1.0, 2.0))
    assert neural.edge_marginals(Instance([[0, 0]]), "georoutenet", "cpu").edges.shape == (0, 2)


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
    assert choose(50, device, improve=False, precision="float32") == RECOMMENDED
    assert not choose(50, device, decoder="beam").dominance  # the paper's


def test_products_are_bfloat16_on_gpus_that_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def precision(device: str, **options: Any) -> str:
        return choose(50, device, **options).precision

    assert precision("cpu") == "float32"
    assert precision("cpu", precision="bfloat16") == "bfloat16"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for has in (True, False):
        monkeypatch.setattr("georoutenet.kernels.choose.has_bf16", lambda device, has=has: has)
        expected = "bfloat16" if has else "float32"
        assert precision("cuda:1") == precision("cuda:1", decoder="beam-9-views-2") == expected
        assert precision("cuda", precision="float32") == "float32"
        assert precision("cuda", decoder="greedy-bfloat16") == "bfloat16"
        assert precision("cuda", weights=lambda: None) == "float32"  # a policy keeps its own
        assert precision("cpu") == "float32"


def test_a_result_says_its_precision() -> None:
    cities = np.random.default_rng(0).random((12, 2))
    narrow = grn.solve(cities, decoder="greedy", improve=False, precision="bfloat16", device="cpu")
    wide = grn.solve(cities, decoder="greedy", improve=False, device="cpu")
    assert "bfloat16" in narrow.method
    assert "bfloat16" not in wide.method


@pytest.mark.parametrize(
    ("n", "options", "expected"),
    [
        (50, {}, "beam-1000-views-4-dominance-length-60-merge"),
        (200, {}, "beam-1000-dominance-length-60-merge"),
        (200, {"improve": False}, "beam-1000-views-2-dominance-length-60-merge"),
        (301, {}, "greedy-candidates-16"),
        (301, {"improve": False}, "beam-1000-views-8-dominance-length-120-merge-candidates-32"),
        (301, {"improve": False, "views": 2}, "beam-1000-views-2-dominance-length-120-merge-candidates-32"),
        (
            1000,
            {"improve": False, "beam_width": 64},
            "beam-64-views-8-dominance-length-120-merge-candidates-32",
        ),
        (1001, {"improve": False}, "greedy-candidates-16"),
        (301, {"improve": False, "decoder": "greedy"}, "greedy-candidates-16"),
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


def test_calls_on_one_thread_leave_all_others_the_usual_number() -> None:
    """Two that overlap, the first to begin being the first to end; then one that begins anew."""
    usual, seen = torch.get_num_threads(), list[int]()
    first_in, second_in, first_out = (threading.Event() for _ in range(3))

    def first() -> None:
        with neural._threads.use(1):
            first_in.set()
            assert second_in.wait(60)
        first_out.set()

    def second() -> None:
        assert first_in.wait(60)
        with neural._threads.use(1):
            seen.append(torch.get_num_threads())
            second_in.set()
            assert first_out.wait(60)
        seen.append(torch.get_num_threads())

    def third() -> None:
        seen.append(torch.get_num_threads())
        with neural._threads.use(neural.PAIRS_ALONE + 1):
            seen.append(torch.get_num_threads())

    torch.set_num_threads(3)
    try:
        for group in ((first, second), (third,)):
            threads = [threading.Thread(target=each) for each in group]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert seen == [1, 3, 3, 3]
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(usual)


def test_products_in_bfloat16_leave_the_policy_as_it_was() -> None:
    """Also while they are made: a thread that asks for float32 meanwhile gets it."""
    policy, instance = load_policy("georoutenet-50"), random_instance(30)
    seen: list[tuple[torch.dtype | None, torch.dtype | None]] = []
    policy.register_forward_pre_hook(
        lambda asked, _: seen.append((asked.compute_dtype, policy.compute_dtype))
    )
    check(grn.solve(instance, weights=policy, improve=False, decoder="greedy-bfloat16"))
    check(grn.solve(instance, weights=policy, improve=False, decoder="greedy-views-1"))
    assert seen == [(torch.bfloat16, None), (None, None)]
    assert policy.compute_dtype is None


def test_time_ends_the_views_and_the_result_says_so(monkeypatch: pytest.MonkeyPatch, fake_clock: Any) -> None:
    policy, instance = load_policy("georoutenet-50"), random_instance(20)
    decoding = Decoding("beam", views=5, width=10)
    found = neural.neural_tours(policy, [instance], decoding, Ends(20), remaining=lambda: 0.0)
    assert (str(found.decoding), found.complete) == ("beam-10", False)
    assert neural.neural_tours(policy, [instance], decoding, Ends(20)).decoding == decoding
    with pytest.raises(OutOfTime):
        neural.neural_tours(
            policy, [random_instance(400)], Decoding("greedy"), Ends(400), remaining=lambda: -1.0
        )
    grn.warm_up(device="cpu")
    score = neural._score

    def slow(*given: Any) -> Any:
        fake_clock.advance(40.0)
        return score(*given)

    monkeypatch.setattr(neural, "_score", slow)
    result = grn.solve(instance, decoder="beam-40-views-5-finalists-2", max_seconds=60, improve=False)
    check(result)
    assert result.method == "georoutenet, beam-40"
    assert result.notes[0] == "time for 1 of 5 views and no more for all finalists"


def test_estimates_do_not_depend_on_earlier_calls() -> None:
    before = [neural.seconds_per_view(n, choose(n)) for n in (50, 300, 500)]
    grn.solve_many([random_instance(n) for n in (100, 350)], improve=False)
    assert [neural.seconds_per_view(n, choose(n)) for n in (50, 300, 500)] == before


@pytest.mark.parametrize("options", [{"decoder": "beam-1000-views-10000"}, {"views": 10_000}])
def test_minutes_of_views_are_announced_before_they_begin(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However they are asked for; a limit would end them, so with one nothing is said."""

    def stopped(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("georoutenet.solver.stages.neural_tours", stopped)
    instance = random_instance(100)
    with pytest.warns(GeoRouteNetWarning, match="10,000 views of 100 cities take about 11 minutes on a CPU"):
        check(grn.solve(instance, improve=False, device="cpu", **options))
    check(grn.solve(instance, improve=False, device="cpu", max_seconds=600, **options))
    check(grn.solve(instance, improve=False, device="cpu", decoder="beam-1000-views-100"))
