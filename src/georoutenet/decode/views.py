"""The decode loop: views of each instance are scored and decoded, and the cheapest tour is kept.

Views are the instance rotated and reflected. The network is not invariant to rotation, so views give it
several opinions of one instance, and a total beam width spread over views finds more than the same width
spent on one. Costs always come from the original instance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from georoutenet.clock import OutOfTime, now
from georoutenet.decode.api import greedy, sample, search
from georoutenet.decode.beam_task import cheapest, prepare_beam, stacked
from georoutenet.decode.common import City, Decoded, prepare
from georoutenet.decode.costs import Costs, as_costs
from georoutenet.decode.decoding import RECOMMENDED, Decoding
from georoutenet.decode.merge import merge_tours
from georoutenet.errors import InputError, whole
from georoutenet.model.scores import Scores
from georoutenet.problem.instance import Instance, fill_square

MERGED = 32
"""Tours of each view that are merged at most, the cheapest of its beams or samples; one per ten cities."""

ScoreFunction = Callable[[Tensor], Scores]
"""Coordinates ``(V, n, 2)`` float32 in the unit square -> scores of ``V`` instances: a policy, for one."""


def view_matrices(count: int, seed: int) -> Tensor:
    """Orthogonal matrices ``(count, 2, 2)``: the eight of the square, identity first, then random ones."""
    count = whole("views", count)
    square = [
        [[sx, 0.0], [0.0, sy]] if straight else [[0.0, sx], [sy, 0.0]]
        for straight in (True, False)
        for sx in (1.0, -1.0)
        for sy in (1.0, -1.0)
    ]
    generator = np.random.Generator(np.random.PCG64(seed))
    matrices = square[:count]
    for _ in range(count - len(matrices)):
        angle = 2 * math.pi * generator.random()
        mirror = 1.0 if generator.random() < 0.5 else -1.0
        matrices.append(
            [[math.cos(angle), -mirror * math.sin(angle)], [math.sin(angle), mirror * math.cos(angle)]]
        )
    return torch.tensor(matrices, dtype=torch.float64)


def make_views(coordinates: Tensor | ArrayLike, count: int, seed: int = 0) -> Tensor:
    """``count`` views of each instance: ``(n, 2)`` gives ``(count, n, 2)``, ``(B, n, 2)`` a leading ``B``."""
    # A copy of what is not a tensor: torch warns of read-only arrays, such as an instance's coordinates.
    given = coordinates if isinstance(coordinates, Tensor) else np.array(coordinates)
    points = torch.as_tensor(given, dtype=torch.float64)
    return _seen(points[..., None, :, :], view_matrices(count, seed).to(points.device))


def _seen(points: Tensor, matrices: Tensor) -> Tensor:
    """Float64 ``points (..., n, 2)`` rotated by ``matrices (..., 2, 2)`` and made to fill the unit square."""
    # About the center, so that far-away coordinates do not lose digits in the rotation.
    centered = points - points.mean(dim=-2, keepdim=True)
    rotated = (centered[..., None, :] * matrices[..., None, :, :]).sum(dim=-1)
    return fill_square(rotated)


def shares(total: int, views: int) -> list[int]:
    """How a total width is shared: as evenly as can be, the first views getting the rest; none gets zero."""
    views = min(views, total)
    return [total // views + (view < total % views) for view in range(views)]


def looks(decoding: Decoding) -> tuple[list[int], list[int]]:
    """The widths of the views in the first look at all of them, and those of the finalists after it."""
    if decoding.decoder == "greedy":
        return [1] * decoding.views, []
    if not decoding.finalists:
        return shares(decoding.width, decoding.views), []
    first = max(decoding.width // 4, decoding.views)
    return shares(first, decoding.views), shares(decoding.width - first, decoding.finalists)


@dataclass(frozen=True)
class DecodedViews(Decoded):
    """The cheapest tours over the views, and how far the loop came."""

    views: int = 0
    """Views that were looked at; of a beam narrower than its views, fewer than asked for."""
    complete: bool = True
    """Whether time sufficed for all views and finalists."""
    interrupted: bool = False
    """Whether Ctrl-C ended the loop."""


@torch.no_grad()
def decode_views(
    score: ScoreFunction,
    problems: Tensor | ArrayLike | Sequence[Instance],
    decoding: Decoding | str = RECOMMENDED,
    *,
    start: City = None,
    end: City = None,
    closed: bool = True,
    keep: int = 1,
    seed: int = 0,
    device: torch.device | str = "cpu",
    batch: int = 128,
    together: int | None = None,
    remaining: Callable[[], float] = lambda: math.inf,
    inputs: Tensor | None = None,
) -> DecodedViews:
    """Score and decode the views of each instance; its ``keep`` cheapest tours, ``(B, keep, n)``.

    ``problems`` are coordinates ``(B, n, 2)`` or instances of one size, and the cost is theirs. ``score``
    gives the scores, on ``device``, of at most ``batch`` views at a time; candidate lists and precision
    are its business. ``inputs (B, n, 2)`` take the place of a single view, where the network is to
    see the instances as they are.

    With finalists the views of a beam get only a quarter of the width (a beam each at least); those that
    found the shortest tours are scored once more and share the rest. A tour may then be found twice.
    Where tours are merged, the first one kept is, and there are no log-probabilities.

    All views go through together, or at most ``together`` at a time. Between two such rounds the loop
    looks at the clock: it begins another one while ``remaining()`` seconds suffice for it. Ctrl-C or an
    ``OutOfTime`` from ``score`` end the loop with what there is, and are raised where there is nothing yet.
    """
    decoding = decoding if isinstance(decoding, Decoding) else Decoding.parse(decoding)
    keep, batch = whole("keep", keep), whole("batch", batch)
    costs = _costs(problems, closed, torch.device(device))
    (count, n), views, home = costs.coordinates.shape[:2], decoding.views, costs.coordinates.device
    each = max(keep, min(MERGED, -(-n // 10))) if decoding.merge else keep  # tours of a view
    if inputs is not None and views > 1:
        raise InputError(f"inputs take the place of a single view; {views} views are asked for")
    matrices = view_matrices(views, seed).to(home)
    inputs = None if inputs is None else inputs.to(home)

    def decode(instance: Tensor, view: Tensor, share: int, offset: int) -> Decoded:
        """One call of the network: pairs of instance and view, all with one share of the width."""
        own = costs.selected(instance)
        seen = _seen(own.coordinates, matrices[view]) if inputs is None else inputs[instance]
        scores = score(seen.float())
        fixed: dict[str, Any] = {"start": _selected(start, instance), "end": _selected(end, instance)}
        fixed["coordinates"] = own.coordinates
        if decoding.decoder == "beam":
            task = prepare_beam(
                prepare(scores, **fixed),
                own,
                width=share,
                keep=each,
                dominance=decoding.dominance,
                length_weight=decoding.length_weight,
                filled=True,
            )
            return search(task, "auto")
        if decoding.decoder == "greedy":
            found = greedy(scores, log_probabilities=False, **fixed)
        else:
            found = sample(scores, share, seed=seed + offset, log_probabilities=False, **fixed)
        return cheapest(found.tours, None, own, each)

    def look(chosen: Tensor, share: int, offset: int) -> Decoded:
        """Decode these views of each instance ``(B, V)``: the tours ``(B, V * keep, n)``."""
        instance = torch.arange(count, device=home).repeat_interleave(chosen.shape[1])
        view = chosen.flatten()
        parts = [
            decode(instance[low : low + batch], view[low : low + batch], share, offset + low)
            for low in range(0, len(view), batch)
        ]
        return _grouped(stacked(parts, filled=decoding.decoder == "beam"), count)

    first, last = looks(decoding)
    done: list[tuple[int, Decoded]] = []  # views and their tours, round by round

    def rounds() -> Iterator[tuple[Tensor, int]]:
        """Views of each instance ``(B, V)`` and the width of each: all of them, then the finalists."""
        every = torch.arange(len(first), device=home).expand(count, -1)
        for places in _rounds(first, together):
            yield every[:, places], first[places.start]
        if last:
            best = torch.cat([_lengths_by_view(part, views) for views, part in done], dim=1)
            order = torch.sort(best, dim=1, stable=True).indices
            for places in _rounds(last, together):
                yield order[:, places], last[places.start]

    began, beams, offset, complete, interrupted = now(), 0, 0, True, False
    try:
        for chosen, share in rounds():
            width = share * chosen.shape[1]
            if done:
                wider = max(1.0, width * len(done) / beams)
                if wider * (now() - began) / len(done) > remaining():
                    complete = False
                    break
            done.append((chosen.shape[1], look(chosen, share, offset)))
            beams, offset = beams + width, offset + chosen.shape[1]
    except (KeyboardInterrupt, OutOfTime) as error:
        if not done:
            raise
        complete, interrupted = False, isinstance(error, KeyboardInterrupt)
    parts = [part for _, part in done]
    leaders = [_tours(part, views, slice(1)) for views, part in done]
    if not bool(torch.cat([lengths for _, lengths in leaders], dim=1).isfinite().all()):
        raise InputError("a view has no tour of finite length: scores or coordinates are too large or NaN")
    if decoding.merge:
        offered = [*leaders, *(_tours(part, views, slice(1, None)) for views, part in done)]
        tours, lengths = (torch.cat([each[k] for each in offered], dim=1) for k in (0, 1))
        merged = merge_tours(tours, lengths, costs, bases=offset, start=start, end=end)
        parts = [Decoded(part.tours, None, part.lengths) for part in parts]
        parts.insert(0, Decoded(merged, None, costs.lengths(merged)))
    best = _best(parts, keep)
    return DecodedViews(
        best.tours, best.log_probabilities, best.lengths, min(offset, len(first)), complete, interrupted
    )


def _rounds(widths: list[int], together: int | None) -> Iterator[slice]:
    """Neighboring views of one width, at most ``together`` of them; the wider ones come first."""
    low = 0
    while low < len(widths):
        high = low + widths[low:].count(widths[low])
        high = high if together is None else min(high, low + together)
        yield slice(low, high)
        low = high


def _costs(problems: Tensor | ArrayLike | Sequence[Instance], closed: bool, device: torch.device) -> Costs:
    if isinstance(problems, Sequence) and problems and isinstance(problems[0], Instance):
        instances = list[Instance](problems)  # type: ignore[arg-type]
        costs = as_costs(len(instances), instances[0].n, device, instances=instances, closed=closed)
    else:
        given = torch.as_tensor(problems)
        if given.dim() != 3 or given.shape[2] != 2:
            raise InputError(
                f"problems must be coordinates of shape (B, n, 2) or a list of instances, "
                f"got the shape {tuple(given.shape)}"
            )
        costs = as_costs(given.shape[0], given.shape[1], device, coordinates=given, closed=closed)
    assert costs is not None
    return costs


def _selected(city: City, instance: Tensor) -> City:
    """A fixed city for each of the chosen instances."""
    given = None if city is None else torch.as_tensor(city).reshape(-1)
    return given if given is None or len(given) == 1 else given.to(instance.device)[instance]


def _grouped(decoded: Decoded, count: int) -> Decoded:
    """Results of ``B * V`` views as those of ``B`` instances."""
    assert decoded.lengths is not None
    chances, n = decoded.log_probabilities, decoded.tours.shape[2]
    return Decoded(
        decoded.tours.reshape(count, -1, n),
        None if chances is None else chances.reshape(count, -1),
        decoded.lengths.reshape(count, -1),
    )


def _lengths_by_view(decoded: Decoded, views: int) -> Tensor:
    """The cheapest length of each view ``(B, V)``."""
    assert decoded.lengths is not None
    return decoded.lengths.unflatten(1, (views, -1)).amin(2)


def _tours(decoded: Decoded, views: int, which: slice) -> tuple[Tensor, Tensor]:
    """Those tours of each view, ``(B, V * ..., n)``, and their lengths."""
    assert decoded.lengths is not None
    tours, lengths = (x.unflatten(1, (views, -1)) for x in (decoded.tours, decoded.lengths))
    return tours[:, :, which].flatten(1, 2), lengths[:, :, which].flatten(1, 2)


def _best(parts: list[Decoded], keep: int) -> Decoded:
    """The cheapest of all tours found, as many of each instance; equal ones in the order of the views."""
    joined = {
        name: torch.cat([getattr(part, name) for part in parts], dim=1)
        for name in ("tours", "log_probabilities", "lengths")
        if getattr(parts[0], name) is not None
    }
    lengths, order = torch.sort(joined["lengths"], dim=1, stable=True)
    if keep > 1 and len(lengths):  # what fills a beam is infinite
        keep = min(keep, int(lengths.isfinite().sum(dim=1).min()))
    order = order[:, :keep]
    rows = torch.arange(len(order), device=order.device)[:, None]
    chosen = {name: part[rows, order] for name, part in joined.items()}
    return Decoded(chosen["tours"], chosen.get("log_probabilities"), chosen["lengths"])
