"""Views of an instance, and the best tour over them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from georoutenet.decode import RECOMMENDED, Decoding, beam, decode_views, greedy, make_views
from georoutenet.decode.common import Decoded
from georoutenet.decode.views import DecodedViews, looks, shares
from georoutenet.errors import InputError
from georoutenet.model.scores import Scores
from georoutenet.problem.instance import DistanceRule, Instance, normalize
from georoutenet.problem.tour import tour_length


def policy(coordinates: Tensor) -> Scores:
    """A synthetic policy that is not invariant: it prefers short edges and edges to the upper right."""
    assert coordinates.dtype == torch.float32
    assert coordinates.min() >= 0
    assert coordinates.max() <= 1
    logits = -20 * torch.cdist(coordinates, coordinates)
    logits = logits + 3 * torch.sin(40 * (coordinates[:, None] - coordinates[:, :, None]).sum(dim=3))
    return Scores(torch.log_softmax(coordinates.sum(dim=2), dim=1), logits)


def instances(count: int, n: int) -> Tensor:
    return torch.rand(count, n, 2, generator=torch.Generator().manual_seed(n), dtype=torch.float64)


def test_views_are_the_instance_rotated_reflected_and_scaled() -> None:
    points = 1000 + 37 * instances(1, 20)[0].numpy()
    views = make_views(points, 14, seed=5).numpy()
    assert views.shape == (14, 20, 2)
    assert views.dtype == np.float64
    np.testing.assert_allclose(views[0], normalize(points), atol=1e-12)
    distances = np.linalg.norm(points[:, None] - points, axis=2)
    for view in views:
        assert view.min() == 0
        assert view.max() == 1
        seen = np.linalg.norm(view[:, None] - view, axis=2)
        np.testing.assert_allclose(seen / seen.max(), distances / distances.max(), atol=1e-12)
    for a in range(14):
        for b in range(a):
            assert np.abs(views[a] - views[b]).max() > 0.01


def test_the_first_eight_views_are_the_symmetries_of_the_square() -> None:
    corners = np.array([[0, 0], [1, 0], [1, 1], [0, 1], [0.2, 0.1]])
    views = make_views(corners, 8).numpy()
    for view in views:
        assert {tuple(corner) for corner in view[:4].round(12)} == {(0, 0), (0, 1), (1, 0), (1, 1)}
    assert len({tuple(view.round(9).ravel()) for view in views}) == 8


def test_views_are_seeded_and_batched() -> None:
    points = instances(3, 9)
    batch = make_views(points, 11, seed=2)
    assert batch.shape == (3, 11, 9, 2)
    for b in range(3):
        torch.testing.assert_close(batch[b], make_views(points[b], 11, seed=2), rtol=0, atol=1e-15)
    assert torch.equal(batch, make_views(points, 11, seed=2))
    other = make_views(points, 11, seed=3)
    assert torch.equal(other[:, :8], batch[:, :8])
    assert not torch.equal(other[:, 8:], batch[:, 8:])
    assert make_views(np.ones((4, 2)), 9).abs().max() == 0


@pytest.mark.filterwarnings("error")
def test_read_only_coordinates_are_no_reason_to_warn() -> None:
    own = Instance(instances(1, 6)[0].numpy()).coordinates
    assert not own.flags.writeable
    np.testing.assert_allclose(make_views(own, 1)[0], normalize(own), atol=1e-12)


def test_width_is_shared_evenly() -> None:
    assert shares(1000, 32) == [32] * 8 + [31] * 24
    assert shares(7, 3) == [3, 2, 2]
    assert shares(2, 5) == [1, 1]
    assert all(sum(shares(total, views)) == total for total in range(1, 20) for views in range(1, 9))


@pytest.mark.parametrize(
    "settings", [{}, {"dominance": True, "length_weight": 20.0}, {"end": 2, "closed": False}]
)
def test_result_is_the_best_of_separate_beams(settings: dict[str, Any]) -> None:
    points = instances(3, 15)
    of_beam = {name: value for name, value in settings.items() if name not in ("end", "closed")}
    others = {name: value for name, value in settings.items() if name in ("end", "closed")}
    decoding = Decoding("beam", views=5, width=17, **of_beam)
    found = decode_views(policy, points, decoding, seed=4, batch=4, **others)
    assert found.tours.shape == (3, 1, 15)
    assert (found.views, found.complete, found.interrupted) == (5, True, False)
    by_view = decode_views(policy, points, decoding, seed=4, together=1, **others)
    assert torch.equal(by_view.tours, found.tours)
    for b in range(3):
        views = make_views(points[b], 5, seed=4).float()
        lengths = [
            beam(policy(views[v : v + 1]), share, coordinates=points[b : b + 1], **settings).lengths.item()
            for v, share in enumerate(shares(17, 5))
        ]
        assert found.lengths[b].item() == min(lengths)
        closed = settings.get("closed", True)
        own = tour_length(Instance(points[b].numpy()), found.tours[b, 0], closed=closed)
        assert own == pytest.approx(min(lengths), rel=1e-12)


@pytest.mark.parametrize(("views", "width", "finalists"), [(5, 43, 2), (6, 40, 3), (9, 30, 4), (4, 5, 3)])
def test_finalists_share_the_rest_of_the_width(views: int, width: int, finalists: int) -> None:
    """Every step written out: a first look, the views in the order of their tours, and the last shares."""
    points = instances(3, 15)
    settings: dict[str, Any] = {"dominance": True, "length_weight": 5.0}
    decoding = Decoding("beam", views=views, width=width, finalists=finalists, **settings)
    found = decode_views(policy, points, decoding, seed=4, batch=4)
    by_view = decode_views(policy, points, decoding, seed=4, batch=4, together=1)
    assert torch.equal(by_view.tours, found.tours)
    first = max(width // 4, views)
    for b in range(3):
        own = points[b : b + 1]
        seen = [policy(make_views(points[b], views, seed=4)[v : v + 1].float()) for v in range(views)]
        looks = [
            beam(seen[v], share, coordinates=own, **settings).lengths.item()
            for v, share in enumerate(shares(first, views))
        ]
        order = sorted(range(views), key=lambda v: (looks[v], v))
        last = [
            beam(seen[v], share, coordinates=own, **settings).lengths.item()
            for v, share in zip(order, shares(width - first, finalists), strict=False)
        ]
        assert found.lengths[b].item() == min(looks + last)


def test_finalists_keep_several_tours_best_first() -> None:
    several = decode_views(policy, instances(2, 12), "beam-20-views-4-finalists-2", keep=3)
    assert several.tours.shape == (2, 3, 12)
    assert (several.lengths.diff(dim=1) >= 0).all()


def test_looks_spend_the_whole_width() -> None:
    assert looks(Decoding("greedy", views=3)) == ([1, 1, 1], [])
    assert looks(Decoding("sample", width=7, views=3)) == ([3, 2, 2], [])
    for width, views, finalists in ((1000, 32, 8), (40, 6, 3), (9, 8, 4)):
        first, last = looks(Decoding("beam", width=width, views=views, finalists=finalists))
        assert sum(first) + sum(last) == width
        assert (len(first), len(last)) == (views, min(finalists, width - sum(first)))


class Clock:
    """Counts the calls of the network, and lets each of them take a second."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, interrupt_at: int | None = None) -> None:
        self.calls, self.interrupt_at = 0, interrupt_at
        monkeypatch.setattr("georoutenet.decode.views.now", lambda: float(self.calls))

    def __call__(self, coordinates: Tensor) -> Scores:
        if self.calls == self.interrupt_at:
            raise KeyboardInterrupt
        self.calls += 1
        return policy(coordinates)

    def run(self, decoding: str, limit: float) -> DecodedViews:
        return decode_views(
            self, instances(2, 12), decoding, together=1, remaining=lambda: limit - self.calls
        )


@pytest.mark.parametrize(
    ("decoding", "limit", "views", "complete"),
    [
        ("greedy-views-5", 0.0, 1, False),  # the first view is always finished
        ("greedy-views-5", 3.5, 3, False),
        ("greedy-views-5", 5.0, 5, True),
        ("beam-20-views-5", 2.0, 2, False),
        ("beam-40-views-4-finalists-2", 4.5, 4, False),  # a finalist has more beams and takes longer
        ("beam-40-views-4-finalists-2", 12.0, 4, True),
    ],
)
def test_another_view_is_begun_only_while_there_is_time(
    decoding: str, limit: float, views: int, complete: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    found = clock.run(decoding, limit)
    assert (found.views, found.complete, found.interrupted) == (views, complete, False)
    assert clock.calls == views + (2 if complete and "finalists" in decoding else 0)


def test_ctrl_c_after_the_first_view_keeps_its_tours(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Clock(monkeypatch, interrupt_at=2).run("greedy-views-5", 99.0)
    assert (found.views, found.complete, found.interrupted) == (2, False, True)
    two = decode_views(policy, instances(2, 12), "greedy-views-2")
    assert torch.equal(found.tours, two.tours)
    with pytest.raises(KeyboardInterrupt):
        Clock(monkeypatch, interrupt_at=0).run("greedy-views-5", 99.0)


def test_inputs_take_the_place_of_a_single_view() -> None:
    points = 0.5 * instances(3, 12)
    seen: list[Tensor] = []

    def watching(coordinates: Tensor) -> Scores:
        seen.append(coordinates)
        return policy(coordinates)

    found = decode_views(watching, points, "beam-7", inputs=points.float(), batch=2)
    assert torch.equal(torch.cat(seen), points.float())
    expected = beam(policy(points.float()), 7, coordinates=points)
    assert torch.equal(found.tours, expected.tours)
    assert torch.equal(found.lengths, expected.lengths)
    with pytest.raises(InputError, match="a single view; 2 views are asked for"):
        decode_views(policy, points, "beam-7-views-2", inputs=points.float())


def test_greedy_and_sampling_over_views() -> None:
    points = instances(4, 12)
    best = decode_views(policy, points, Decoding("greedy", views=9))
    single = [greedy(policy(make_views(points, 9)[:, v].float())) for v in range(9)]
    lengths = torch.tensor(
        [[tour_length(Instance(points[b].numpy()), one.tours[b, 0]) for one in single] for b in range(4)]
    )
    torch.testing.assert_close(best.lengths[:, 0], lengths.double().amin(dim=1), rtol=1e-6, atol=0)
    drawn = decode_views(policy, points, "sample-10-views-3", seed=1, keep=4)
    assert drawn.tours.shape == (4, 4, 12)
    assert (drawn.lengths.diff(dim=1) >= 0).all()
    again = decode_views(policy, points, "sample-10-views-3", seed=1, keep=4)
    assert torch.equal(drawn.tours, again.tours)


def test_cost_is_that_of_the_original_instance() -> None:
    points = 20 * instances(2, 10).numpy()
    problems = [Instance(one, rule=DistanceRule.EUC_2D) for one in points]
    found = decode_views(policy, problems, "beam-40-views-10", keep=3)
    for b in range(2):
        lengths = [tour_length(problems[b], tour) for tour in found.tours[b].numpy()]
        assert found.lengths[b].tolist() == lengths == sorted(lengths)


def test_more_views_never_hurt_at_equal_width_per_view() -> None:
    points = instances(10, 20)
    lengths = [
        decode_views(policy, points, Decoding("beam", views=v, width=4 * v)).lengths.mean().item()
        for v in (1, 4, 16)
    ]
    assert lengths[0] >= lengths[1] >= lengths[2]
    assert lengths[2] < lengths[0]


def test_recommended_settings_find_shorter_tours_than_a_plain_beam_of_that_width() -> None:
    points = instances(6, 30)
    good = decode_views(policy, points, RECOMMENDED).lengths[:, 0]
    plain = decode_views(policy, points, Decoding("beam", width=RECOMMENDED.width)).lengths[:, 0]
    assert good.mean() < 0.99 * plain.mean()


def test_one_city_and_fixed_starts_for_each_instance() -> None:
    assert decode_views(policy, torch.zeros(2, 1, 2), "beam-5-views-3").tours.tolist() == [[[0]], [[0]]]
    found = decode_views(policy, instances(3, 7), "beam-8-views-4", start=[1, 5, 2])
    assert found.tours[:, 0, 0].tolist() == [1, 5, 2]


def test_errors_say_what_is_allowed() -> None:
    points = instances(1, 5)
    with pytest.raises(InputError, match="'best'; allowed: greedy, sample, beam"):
        decode_views(policy, points, "best")
    with pytest.raises(InputError, match="batch must be a whole number of at least 1, got 0"):
        decode_views(policy, points, batch=0)
    with pytest.raises(InputError, match=r"shape \(B, n, 2\) .* got the shape \(5, 2\)"):
        decode_views(policy, points[0])
    with pytest.raises(InputError, match="or a list of instances"):
        decode_views(policy, [])


def test_views_without_any_tour_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a beam on a GPU gives for scores that are not numbers: nothing but room that was filled up."""
    monkeypatch.setattr("georoutenet.decode.views.search", lambda task, backend: nothing)
    nothing = Decoded(torch.zeros(3, 2, 9).long(), torch.zeros(3, 2), torch.full((3, 2), torch.inf).double())
    for text in ("beam-8-views-1", "beam-8-views-1-merge"):
        with pytest.raises(InputError, match="a view has no tour of finite length"):
            decode_views(policy, instances(3, 9), text, keep=2)


def test_beams_that_hold_few_tours_take_none_from_others() -> None:
    """Dominance leaves some instances fewer tours than others: as many come as all have, merged or not."""
    points = instances(12, 9)
    for text in ("beam-24-views-2-dominance", "beam-24-views-2-dominance-merge"):
        alone = [decode_views(policy, each[None], text, keep=24) for each in points]
        together = decode_views(policy, points, text, keep=24)
        assert together.lengths is not None
        assert bool(together.lengths.isfinite().all())
        counts = [each.tours.shape[1] for each in alone]
        assert min(counts) < max(counts)
        assert together.tours.shape[1] == min(counts)
        for b, each in enumerate(alone):
            assert torch.equal(each.tours[0, : min(counts)], together.tours[b])
